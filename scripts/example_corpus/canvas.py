"""Canvas, Book and Poster: pages that remember where each marked piece of text was drawn.

Lengths are PDF points, the origin is the top left corner, `y` of a line of text is its baseline.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pymupdf
from PIL import Image, ImageFilter

from .typeset import Glyph, break_lines, font, glyphs, measure, plain, runs

Point = tuple[float, float]
Rect = tuple[float, float, float, float]

A4: Point = (595.0, 842.0)
WIDE: Point = (960.0, 540.0)
ASCENT, DESCENT = 0.84, 0.22


@dataclass(frozen=True)
class Theme:
    """Colours are #rrggbb strings; `family` is the Latin face of the running text."""

    ink: str
    muted: str
    accent: str
    accent2: str
    line: str
    soft: str
    palette: tuple[str, ...]
    paper: str = "#ffffff"
    family: str = "sans"


@dataclass(frozen=True)
class Scan:
    """How a page without a text layer came about: printed and scanned, or (`paper=False`) exported as a flat picture."""

    paper: bool = True
    angle: float = 0.5
    noise: float = 5.0
    dpi: int = 118
    quality: int = 52
    colour: bool = False
    blur: float = 0.45


@dataclass(frozen=True)
class Mark:
    """Where a piece of text stands: file, page from 1, box as fractions of the page, and whether the text layer holds it."""

    file: str
    page: int
    box: Rect
    text: str
    in_layer: bool


def rgb(colour: str) -> tuple[float, float, float]:
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))  # type: ignore[return-value]


def mix(a: str, b: str, share: float) -> str:
    """`a` with `share` of `b`."""
    parts = [round(255 * (x * (1 - share) + y * share)) for x, y in zip(rgb(a), rgb(b), strict=True)]
    return "#" + "".join(f"{p:02x}" for p in parts)


def union(boxes: Sequence[Rect]) -> Rect:
    x0, y0, x1, y1 = zip(*boxes, strict=True)
    return min(x0), min(y0), max(x1), max(y1)


def jpeg(image: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, optimize=True)
    return out.getvalue()


@dataclass
class Canvas:
    """One page to draw on. Text is drawn above the shapes of the same layer; `flush` starts a new layer."""

    page: pymupdf.Page
    theme: Theme
    size: Point
    marks: dict[str, tuple[list[Rect], str, bool]] = field(default_factory=dict)
    texts: list[tuple[Rect, str]] = field(default_factory=list)
    in_layer: bool = True

    def __post_init__(self) -> None:
        self.shape = self.page.new_shape()
        self._faces: set[str] = set()
        self.rect((0, 0, *self.size), fill=self.theme.paper)

    @property
    def width(self) -> float:
        return self.size[0]

    @property
    def height(self) -> float:
        return self.size[1]

    def flush(self) -> None:
        self.shape.commit()
        self.shape = self.page.new_shape()

    # text

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 10,
        colour: str | None = None,
        *,
        bold: bool = False,
        italic: bool = False,
        align: str = "left",
        family: str | None = None,
        mark: str | None = None,
        max_width: float | None = None,
    ) -> Rect:
        """One line of text at baseline `y`; returns its box. Raises ValueError when it is wider than `max_width`."""
        line = glyphs(text, family or self.theme.family, bold, italic)
        width = measure(line, size)
        if max_width is not None and width > max_width + 0.1:
            raise ValueError(f"{plain(text)!r} is {width:.0f} pt wide, the room is {max_width:.0f} pt")
        x -= {"left": 0.0, "center": width / 2, "right": width}[align]
        return self._set_line(x, y, line, size, colour or self.theme.ink, mark)

    def paragraph(
        self,
        x: float,
        top: float,
        width: float,
        text: str,
        size: float = 10,
        colour: str | None = None,
        *,
        leading: float = 1.45,
        bold: bool = False,
        italic: bool = False,
        align: str = "left",
        family: str | None = None,
        mark: str | None = None,
        bottom: float | None = None,
    ) -> float:
        """Text broken to `width`, first line's top at `top`; returns the y below it. ValueError when it passes `bottom`."""
        y = top
        for line in break_lines(glyphs(text, family or self.theme.family, bold, italic), size, width):
            free = width - measure(line, size)
            left = x + {"left": 0.0, "center": free / 2, "right": free}[align]
            self._set_line(left, y + size * ASCENT, line, size, colour or self.theme.ink, mark)
            y += size * leading
        if bottom is not None and y > bottom:
            raise ValueError(f"{plain(text)[:40]!r}... ends at {y:.0f} pt, the room ends at {bottom:.0f} pt")
        return y

    def _set_line(self, x: float, y: float, line: Sequence[Glyph], size: float, colour: str, mark: str | None) -> Rect:
        for run in runs(line, size):
            if run.face not in self._faces:
                self.page.insert_font(fontname=run.face, fontbuffer=font(run.face).buffer)
                self._faces.add(run.face)
            outlined = run.bold and run.face == "cjk"
            self.shape.insert_text(
                (x + run.x, y),
                run.text,
                fontname=run.face,
                fontsize=size,
                color=rgb(colour),
                fill=rgb(colour),
                render_mode=2 if outlined else 0,
                border_width=0.035 if outlined else 0.05,
            )
            for name in {run.mark, mark} - {None}:
                self.mark(name, (x + run.x, y - size * ASCENT, x + run.x + run.width, y + size * DESCENT), run.text)
        box = (x, y - size * ASCENT, x + measure(line, size), y + size * DESCENT)
        self.texts.append((box, "".join(g.char for g in line)))
        return box

    def mark(self, name: str | None, box: Rect, text: str) -> None:
        """Remember `box` under `name`; a second box of the same name (the next line) widens it."""
        if name is not None:
            boxes, before, _ = self.marks.get(name, ([], "", True))
            self.marks[name] = ([*boxes, box], before + text, self.in_layer)

    # shapes

    def _finish(
        self, fill: str | None, stroke: str | None, width: float, dashes: str | None, opacity: float, close: bool
    ) -> None:
        self.shape.finish(
            fill=rgb(fill) if fill else None,
            color=rgb(stroke) if stroke else None,
            width=width if stroke else 0,
            dashes=dashes,
            fill_opacity=opacity,
            stroke_opacity=opacity,
            closePath=close,
            lineJoin=1,
            lineCap=1,
        )

    def rect(
        self,
        box: Rect,
        fill: str | None = None,
        stroke: str | None = None,
        width: float = 0.8,
        radius: float = 0,
        opacity: float = 1,
    ) -> None:
        """`radius` in points."""
        rect = pymupdf.Rect(box)
        share = min(0.5, radius / min(rect.width, rect.height)) if radius else None
        self.shape.draw_rect(rect, radius=share)
        self._finish(fill, stroke, width, None, opacity, True)

    def tab(self, box: Rect, fill: str, radius: float) -> None:
        """A rectangle whose upper corners are round."""
        x0, y0, x1, y1 = box
        arc = [(math.cos(math.radians(a)), math.sin(math.radians(a))) for a in range(0, 91, 6)]
        left = [(x0 + radius - radius * u, y0 + radius - radius * v) for u, v in arc]
        right = [(x1 - radius + radius * u, y0 + radius - radius * v) for u, v in reversed(arc)]
        self.polygon([(x0, y1), *left, *right, (x1, y1)], fill)

    def line(
        self, a: Point, b: Point, colour: str | None = None, width: float = 0.8, dashes: str | None = None
    ) -> None:
        self.shape.draw_line(a, b)
        self._finish(None, colour or self.theme.line, width, dashes, 1, False)

    def polyline(self, points: Sequence[Point], colour: str, width: float = 1.5, dashes: str | None = None) -> None:
        self.shape.draw_polyline(points)
        self._finish(None, colour, width, dashes, 1, False)

    def polygon(
        self,
        points: Sequence[Point],
        fill: str | None = None,
        stroke: str | None = None,
        width: float = 0.8,
        opacity: float = 1,
    ) -> None:
        self.shape.draw_polyline([*points, points[0]])
        self._finish(fill, stroke, width, None, opacity, True)

    def circle(
        self, centre: Point, radius: float, fill: str | None = None, stroke: str | None = None, width: float = 0.8
    ) -> None:
        self.shape.draw_circle(centre, radius)
        self._finish(fill, stroke, width, None, 1, True)

    def curve(self, points: Sequence[Point], colour: str, width: float = 1.5, dashes: str | None = None) -> None:
        self.polyline(smooth(points), colour, width, dashes)

    def blob(self, points: Sequence[Point], fill: str, stroke: str | None = None, width: float = 0.8) -> None:
        """A closed smooth outline through `points`."""
        self.polygon(smooth([*points, points[0]], closed=True), fill, stroke, width)

    def ring(self, centre: Point, outer: float, inner: float, start: float, end: float, fill: str) -> None:
        """A ring sector; angles in degrees, clockwise from twelve o'clock."""
        steps = max(2, int(abs(end - start) / 2))
        angles = [math.radians(start + (end - start) * i / steps - 90) for i in range(steps + 1)]
        rim = [(centre[0] + outer * math.cos(a), centre[1] + outer * math.sin(a)) for a in angles]
        hole = [(centre[0] + inner * math.cos(a), centre[1] + inner * math.sin(a)) for a in reversed(angles)]
        self.polygon(rim + hole, fill, self.theme.paper, 1.2)

    def arrow(self, a: Point, b: Point, colour: str | None = None, width: float = 1.4, head: float = 6) -> None:
        colour = colour or self.theme.accent
        angle = math.atan2(b[1] - a[1], b[0] - a[0])
        base = (b[0] - head * math.cos(angle), b[1] - head * math.sin(angle))
        across = (-math.sin(angle) * head * 0.5, math.cos(angle) * head * 0.5)
        self.line(a, base, colour, width)
        self.polygon(
            [b, (base[0] + across[0], base[1] + across[1]), (base[0] - across[0], base[1] - across[1])], colour
        )

    # pictures

    def image(self, box: Rect, image: Image.Image, quality: int = 80) -> None:
        """A raster picture, stretched to `box`, above what was drawn so far."""
        self.flush()
        self.page.insert_image(pymupdf.Rect(box), stream=jpeg(image.convert("RGB"), quality), keep_proportion=False)

    @contextmanager
    def picture(self, box: Rect, dpi: int = 150, quality: int = 80) -> Iterator[Canvas]:
        """What is drawn on the canvas given out arrives as pixels in `box`, as a chart pasted from elsewhere does."""
        with pymupdf.open() as scratch:
            page = scratch.new_page(width=self.width, height=self.height)
            inner = Canvas(page, self.theme, self.size, self.marks, self.texts, in_layer=False)
            yield inner
            inner.flush()
            pixels = page.get_pixmap(dpi=dpi, clip=pymupdf.Rect(box))
            self.image(box, Image.frombytes("RGB", (pixels.width, pixels.height), pixels.samples), quality)


def smooth(points: Sequence[Point], closed: bool = False, steps: int = 10) -> list[Point]:
    """A Catmull-Rom curve through `points`."""
    if closed:
        padded = [points[-2], *points, points[1]]
    else:
        padded = [points[0], *points, points[-1]]
    out: list[Point] = []
    for i in range(1, len(padded) - 2):
        p0, p1, p2, p3 = (np.array(padded[j]) for j in (i - 1, i, i + 1, i + 2))
        for step in range(steps):
            t = step / steps
            p = 0.5 * (
                2 * p1 + (p2 - p0) * t + (2 * p0 - 5 * p1 + 4 * p2 - p3) * t**2 + (3 * p1 - p0 - 3 * p2 + p3) * t**3
            )
            out.append((float(p[0]), float(p[1])))
    out.append(points[-1])
    return out


@dataclass
class Book:
    """A PDF in the making."""

    file: str
    title: str
    author: str
    theme: Theme
    size: Point

    def __post_init__(self) -> None:
        self.pdf = pymupdf.open()
        self.pages: list[Canvas] = []
        self._scans: dict[int, Scan] = {}

    def page(self, scan: Scan | None = None, theme: Theme | None = None) -> Canvas:
        """A new last page. The page before it is complete then: PyMuPDF's page objects do not outlive the next one."""
        if self.pages:
            self.pages[-1].flush()
        page = self.pdf.new_page(width=self.size[0], height=self.size[1])
        if scan is not None:
            self._scans[len(self.pages)] = scan
        canvas = Canvas(page, theme or self.theme, self.size)
        self.pages.append(canvas)
        return canvas

    def finish(self) -> tuple[bytes, dict[str, Mark]]:
        """The file's bytes and its marks, named `stem:name`. The book cannot be drawn on afterwards."""
        marks: dict[str, Mark] = {}
        self.pages[-1].flush()
        for number, canvas in enumerate(self.pages):
            marks |= collect(canvas, self.file, number + 1, self._scans.get(number))
        for number, scan in self._scans.items():
            pixels = self.pdf[number].get_pixmap(dpi=scan.dpi)
            image = scanned(Image.frombytes("RGB", (pixels.width, pixels.height), pixels.samples), scan, seed=number)
            self.pdf.delete_page(number)
            page = self.pdf.new_page(pno=number, width=self.size[0], height=self.size[1])
            page.insert_image(page.rect, stream=jpeg(image, scan.quality), keep_proportion=False)
        self.pdf.set_metadata(
            {
                "title": self.title,
                "author": self.author,
                "producer": "make_example_corpus",
                "creator": "make_example_corpus",
                "creationDate": "D:20260301090000Z",
                "modDate": "D:20260301090000Z",
            }
        )
        self.pdf.subset_fonts()
        data = self.pdf.tobytes(garbage=4, deflate=True, deflate_fonts=True, clean=True, no_new_id=True, use_objstms=1)
        return data, marks


@dataclass
class Poster:
    """A standalone image in the making."""

    file: str
    theme: Theme
    size: Point
    dpi: int = 120
    scan: Scan | None = None

    def __post_init__(self) -> None:
        self._pdf = pymupdf.open()
        page = self._pdf.new_page(width=self.size[0], height=self.size[1])
        self.canvas = Canvas(page, self.theme, self.size, in_layer=False)
        self.pages = [self.canvas]

    def finish(self) -> tuple[bytes, dict[str, Mark]]:
        self.canvas.flush()
        pixels = self.canvas.page.get_pixmap(dpi=self.dpi)
        image = Image.frombytes("RGB", (pixels.width, pixels.height), pixels.samples)
        if self.scan is not None:
            image = scanned(image, self.scan, seed=7)
        out = io.BytesIO()
        if self.file.endswith(".png"):
            # 128 colours keep flat drawings sharp at a third of the bytes.
            image.quantize(128, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        else:
            image.save(out, "JPEG", quality=82, optimize=True)
        return out.getvalue(), collect(self.canvas, self.file, 1, self.scan)


def collect(canvas: Canvas, file: str, page: int, scan: Scan | None) -> dict[str, Mark]:
    """The canvas's marks as fractions of the page, turned with the paper if the page was scanned crooked."""
    stem = file.rsplit(".", 1)[0]
    width, height = canvas.size
    marks = {}
    for name, (boxes, text, in_layer) in canvas.marks.items():
        box = union(boxes)
        if scan is not None:
            box = turned(box, canvas.size, scan.angle)
        x0, y0, x1, y1 = box
        share = (x0 / width, y0 / height, x1 / width, y1 / height)
        if not (0 <= share[0] < share[2] <= 1 and 0 <= share[1] < share[3] <= 1):
            raise ValueError(f"{file}, page {page}: the text of mark {name!r} leaves the page: {share}")
        fractions = tuple(round(v, 5) for v in share)
        marks[f"{stem}:{name}"] = Mark(file, page, fractions, text, in_layer and scan is None)  # type: ignore[arg-type]
    return marks


def turned(box: Rect, size: Point, angle: float) -> Rect:
    """The box around `box` after the page was turned counter-clockwise by `angle` degrees about its middle."""
    cx, cy = size[0] / 2, size[1] / 2
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    xs, ys = [], []
    for x in (box[0], box[2]):
        for y in (box[1], box[3]):
            xs.append(cx + (x - cx) * cos + (y - cy) * sin)
            ys.append(cy - (x - cx) * sin + (y - cy) * cos)
    return min(xs), min(ys), max(xs), max(ys)


def scanned(image: Image.Image, scan: Scan, seed: int) -> Image.Image:
    """Skew, blur and sensor noise; on paper also uneven light and dust."""
    rng = np.random.default_rng(seed)
    image = image if scan.colour else image.convert("L").convert("RGB")
    image = image.rotate(scan.angle, Image.Resampling.BICUBIC, fillcolor=image.getpixel((0, 0)))
    pixels: np.ndarray = np.asarray(image.filter(ImageFilter.GaussianBlur(scan.blur)), dtype=np.float32)
    height, width = pixels.shape[:2]
    grain = rng.normal(0, scan.noise, (height, width, 1))
    if scan.paper:
        falloff = 1 - 0.05 * np.linspace(0, 1, width)[None, :, None] ** 2
        pixels = pixels * 0.93 * falloff + 14
        for _ in range(40):
            x, y = int(rng.integers(2, width - 3)), int(rng.integers(2, height - 3))
            pixels[y : y + int(rng.integers(1, 3)), x : x + int(rng.integers(1, 3))] *= 0.6
    pixels = pixels + grain
    result = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    return result if scan.colour else result.convert("L")


def overlaps(canvas: Canvas) -> list[str]:
    """Pairs of text that touch each other and text that leaves the page: layout faults."""
    faults = []
    for box, text in canvas.texts:
        if box[0] < 0 or box[1] < 0 or box[2] > canvas.width or box[3] > canvas.height:
            faults.append(f"{text!r} leaves the page")
    ordered = sorted(canvas.texts, key=lambda item: item[0][1])
    for i, (a, first) in enumerate(ordered):
        for b, second in ordered[i + 1 :]:
            across = min(a[2], b[2]) - max(a[0], b[0])
            down = min(a[3], b[3]) - max(a[1], b[1])
            if across > 1 and down > 0.25 * min(a[3] - a[1], b[3] - b[1]):
                faults.append(f"{first!r} overlaps {second!r}")
    return faults
