"""Page images drawn for tests, with the place of every text on them known."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import pymupdf
from PIL import Image, ImageDraw, ImageFont

from vrag.geometry import Box


@dataclass
class Drawn:
    """A page that is drawn on; ``boxes`` maps every text to its box in page pixels (the last one, where it is repeated)."""

    size: tuple[int, int] = (1000, 1400)
    boxes: dict[str, Box] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.image = Image.new("RGB", self.size, "white")
        self._draw = ImageDraw.Draw(self.image)

    def text(self, x: float, y: float, text: str, size: float = 24, fill: str = "black") -> Drawn:
        font = ImageFont.load_default(size)
        self._draw.text((x, y), text, fill=fill, font=font)
        self.boxes[text] = Box(*self._draw.textbbox((x, y), text, font=font))
        return self

    def bar(self, x1: float, y1: float, x2: float, y2: float, fill: str) -> Drawn:
        self._draw.rectangle((x1, y1, x2, y2), fill=fill)
        return self

    def table(
        self, x: float, y: float, rows: Sequence[Sequence[str]], widths: Sequence[float], size: float = 24
    ) -> Drawn:
        for row in rows:
            left = x
            for cell, width in zip(row, widths, strict=True):
                if cell:
                    self.text(left, y, cell, size)
                left += width
            y += 2.2 * size
        return self

    def jpeg(self) -> bytes:
        buffer = io.BytesIO()
        self.image.save(buffer, "JPEG", quality=90)
        return buffer.getvalue()


def chinese_page(lines: Sequence[str], size: float = 16) -> bytes:
    """A page of Chinese text, one line under the other, as JPEG at 144 dpi, by the font that PyMuPDF brings along."""
    with pymupdf.open() as document:
        page = document.new_page(width=500, height=700)
        for number, line in enumerate(lines):
            page.insert_text((40, 60 + 2.4 * size * number), line, fontsize=size, fontname="china-s")
        picture = page.get_pixmap(dpi=144)
        image = Image.frombytes("RGB", (picture.width, picture.height), picture.samples)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def report_page() -> Drawn:
    """Labels with values, a sentence, and small print."""
    page = Drawn()
    page.text(60, 60, "Harbour Report 2023", 44)
    page.text(60, 180, "Ships registered: 418", 26)
    page.text(60, 240, "Harbour master: Ingrid Solberg", 26)
    page.text(60, 360, "The new breakwater was completed on 14 March 2021 and", 24)
    page.text(60, 394, "cost 86 million euros, twice the first estimate.", 24)
    page.text(60, 1300, "Dredging removed 1,250 tonnes of silt from the northern basin.", 13)
    return page


def table_page() -> Drawn:
    page = Drawn()
    page.text(60, 60, "Passengers by ferry line", 40)
    rows = [
        ("Line", "2021", "2022", "2023"),
        ("North ferry", "3,410", "3,977", "4,120"),
        ("Island ferry", "1,205", "1,318", "1,466"),
        ("Night ferry", "870", "655", "902"),
    ]
    return page.table(60, 200, rows, (300, 180, 180, 180))


def chart_page() -> Drawn:
    """Stacked bars whose series only the colours of the legend tell apart."""
    page = Drawn((1000, 700))
    page.text(60, 40, "How do visitors reach the harbour?", 36)
    rows = {"Families": (52, 30, 18), "School classes": (12, 71, 17), "Tour groups": (5, 64, 31)}
    colours = ("#1f3d7a", "#2e8b57", "#c08020")
    for number, (label, shares) in enumerate(rows.items()):
        y, x = 160 + 100 * number, 320.0
        page.text(100, y + 10, label, 24)
        for share, colour in zip(shares, colours, strict=True):
            page.bar(x, y, x + 6 * share, y + 50, colour)
            page.text(x + 3 * share - 22, y + 12, f"{share}%", 22, "white")
            x += 6 * share
    for x, name, colour in zip((320, 520, 720), ("By car", "By bus", "On foot"), colours, strict=True):
        page.bar(x, 520, x + 20, 540, colour)
        page.text(x + 32, 518, name, 22)
    return page
