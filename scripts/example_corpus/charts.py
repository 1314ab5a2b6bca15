"""Charts drawn on a canvas. Every value label becomes a mark `name/series/category`, so a question can point at it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from .canvas import Canvas, Point, Rect, mix, rgb

Format = Callable[[float], str]


def default_format(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def ceiling(value: float) -> tuple[float, float]:
    """A round axis end at or above `value`, and the step of its grid."""
    magnitude = 10 ** math.floor(math.log10(value))
    for step in (0.2, 0.5, 1.0, 2.0):
        if value / (magnitude * step) <= 7:
            return math.ceil(value / (magnitude * step)) * magnitude * step, magnitude * step
    return magnitude * 10, magnitude * 2


def contrast(fill: str) -> str:
    """White or near-black, whichever reads better on `fill`."""
    r, g, b = rgb(fill)
    return "#1c2430" if 0.299 * r + 0.587 * g + 0.114 * b > 0.6 else "#ffffff"


def legend(
    c: Canvas, x: float, y: float, names: Sequence[str], colours: Sequence[str], size: float = 8.5, gap: float = 16
) -> float:
    """A row of keys from `x` at baseline `y`; returns the x behind it."""
    for name, colour in zip(names, colours, strict=False):
        c.rect((x, y - size * 0.75, x + size * 0.8, y + size * 0.05), fill=colour, radius=1.5)
        box = c.text(x + size * 1.25, y, name, size, c.theme.ink)
        x = box[2] + gap
    return x


def grid(c: Canvas, box: Rect, top: float, step: float, fmt: Format, size: float) -> None:
    x0, y0, x1, y1 = box
    value = 0.0
    while value <= top + 1e-9:
        y = y1 - (y1 - y0) * value / top
        c.line((x0, y), (x1, y), c.theme.line if value else c.theme.muted, 0.5 if value else 0.9)
        c.text(x0 - 5, y + size * 0.3, fmt(value), size, c.theme.muted, align="right")
        value += step


def columns(
    c: Canvas,
    box: Rect,
    name: str,
    categories: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    colours: Sequence[str] | None = None,
    stacked: bool = False,
    totals: bool = False,
    unit: str = "",
    fmt: Format = default_format,
    size: float = 8.5,
    keys: bool = True,
    bar: float = 0.66,
) -> None:
    """Upright bars, side by side or stacked."""
    colours = colours or c.theme.palette
    x0, y0, x1, y1 = box
    head = 0.0
    if unit:
        c.text(x0, y0 + size, unit, size, c.theme.muted)
        head = size * 1.8
    if keys and len(series) > 1:
        legend(c, x0 + (size * 0.62 * len(unit) + 18 if unit else 0), y0 + size, list(series), colours, size)
        head = size * 1.8
    plot = (x0 + size * 3, y0 + head + size * 1.3, x1, y1 - size * 2)
    sums = [sum(values) for values in zip(*series.values(), strict=True)]
    peak = max(sums) if stacked else max(max(v) for v in series.values())
    top, step = ceiling(peak)
    grid(c, plot, top, step, default_format, size)
    slot = (plot[2] - plot[0]) / len(categories)
    height = plot[3] - plot[1]
    for i, category in enumerate(categories):
        left = plot[0] + slot * i + slot * (1 - bar) / 2
        c.text(left + slot * bar / 2, plot[3] + size * 1.5, category, size, c.theme.ink, align="center")
        base = plot[3]
        for j, (label, values) in enumerate(series.items()):
            rise = height * values[i] / top
            mark = f"{name}/{label}/{category}"
            if stacked:
                c.rect((left, base - rise, left + slot * bar, base), fill=colours[j], stroke=c.theme.paper, width=0.8)
                if rise > size * 1.15:
                    y = base - rise / 2 + size * 0.33
                    c.text(
                        left + slot * bar / 2, y, fmt(values[i]), size, contrast(colours[j]), align="center", mark=mark
                    )
                base -= rise
            else:
                each = slot * bar / len(series)
                c.rect(
                    (left + each * j + 1, base - rise, left + each * (j + 1) - 1, base),
                    fill=colours[j],
                    radius=min(2.0, rise / 2),
                )
                middle = left + each * (j + 0.5)
                c.text(middle, base - rise - size * 0.4, fmt(values[i]), size, c.theme.ink, align="center", mark=mark)
        if stacked and totals:
            y = base - size * 0.5
            c.text(
                left + slot * bar / 2,
                y,
                fmt(sums[i]),
                size + 0.5,
                bold=True,
                align="center",
                mark=f"{name}/total/{category}",
            )


def bars(
    c: Canvas,
    box: Rect,
    name: str,
    values: Mapping[str, float],
    *,
    colours: Sequence[str] | None = None,
    fmt: Format = default_format,
    size: float = 9.5,
    label_width: float = 120,
    highlight: str | None = None,
) -> None:
    """Lying bars, one per entry; only `highlight` gets the strong colour if one is named."""
    x0, y0, x1, y1 = box
    slot = (y1 - y0) / len(values)
    left, room = x0 + label_width, x1 - x0 - label_width - size * 4
    top = max(values.values())
    for i, (label, value) in enumerate(values.items()):
        middle = y0 + slot * (i + 0.5)
        colour = (
            (colours or c.theme.palette)[i]
            if highlight is None
            else c.theme.accent
            if label == highlight
            else c.theme.palette[-1]
        )
        c.text(left - 8, middle + size * 0.33, label, size, align="right", max_width=label_width - 8)
        end = left + room * value / top
        c.rect((left, middle - slot * 0.32, end, middle + slot * 0.32), fill=colour, radius=3)
        c.text(end + 6, middle + size * 0.33, fmt(value), size, bold=True, mark=f"{name}/{label}")


def shares(
    c: Canvas,
    box: Rect,
    name: str,
    rows: Mapping[str, Sequence[float]],
    parts: Sequence[str],
    *,
    colours: Sequence[str] | None = None,
    fmt: Format = lambda v: f"{v:.0f}%",
    size: float = 9.5,
    label_width: float = 70,
) -> None:
    """Lying bars of 100 %, divided into `parts`."""
    colours = colours or c.theme.palette
    x0, y0, x1, y1 = box
    legend(c, x0 + label_width, y0 + size, parts, colours, size)
    top = y0 + size * 2.2
    slot = (y1 - top) / len(rows)
    for i, (label, values) in enumerate(rows.items()):
        if abs(sum(values) - 100) > 0.11:
            raise ValueError(f"the shares of {label!r} add up to {sum(values)}")
        middle = top + slot * (i + 0.5)
        c.text(x0, middle + size * 0.33, label, size, bold=True)
        x = x0 + label_width
        for part, value, colour in zip(parts, values, colours, strict=False):
            wide = (x1 - x0 - label_width) * value / 100
            c.rect((x, middle - slot * 0.36, x + wide, middle + slot * 0.36), fill=colour, stroke=c.theme.paper)
            c.text(
                x + wide / 2,
                middle + size * 0.33,
                fmt(value),
                size,
                contrast(colour),
                align="center",
                mark=f"{name}/{label}/{part}",
            )
            x += wide


def lines(
    c: Canvas,
    box: Rect,
    name: str,
    xs: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    colours: Sequence[str] | None = None,
    unit: str = "",
    fmt: Format = default_format,
    size: float = 8.5,
    labelled: Sequence[str] | None = None,
    dashed: Mapping[str, int] | None = None,
    area: bool = False,
) -> None:
    """Line chart. `labelled`: series with value labels (all by default); `dashed`: series whose part from that index on is a
    forecast."""
    colours = colours or c.theme.palette
    x0, y0, x1, y1 = box
    if unit:
        c.text(x0, y0 + size, unit, size, c.theme.muted)
    if len(series) > 1:
        legend(c, x0 + (size * 0.62 * len(unit) + 18 if unit else 0), y0 + size, list(series), colours, size)
    plot = (x0 + size * 3, y0 + size * 3, x1 - size * 1.5, y1 - size * 2)
    top, step = ceiling(max(v for values in series.values() for v in values if v is not None) * 1.04)
    grid(c, plot, top, step, default_format, size)
    slot = (plot[2] - plot[0]) / (len(xs) - 0.5)

    def place(i: int, value: float) -> Point:
        return plot[0] + slot * (i + 0.25), plot[3] - (plot[3] - plot[1]) * value / top

    for i, x in enumerate(xs):
        c.text(place(i, 0)[0], plot[3] + size * 1.5, x, size, align="center")
    for j, (label, values) in enumerate(series.items()):
        points = {i: place(i, v) for i, v in enumerate(values) if v is not None}
        ordered = list(points.items())
        if area:
            outline = [p for _, p in ordered]
            feet = [(outline[-1][0], plot[3]), (outline[0][0], plot[3])]
            c.polygon([*outline, *feet], mix(colours[j], c.theme.paper, 0.82))
        start = (dashed or {}).get(label, len(values))
        for (_, a), (k, b) in pairwise(ordered):
            c.line(a, b, colours[j], 2.2, "[4 3] 0" if k >= start else None)
        for i, point in ordered:
            c.circle(point, 3.2, c.theme.paper, colours[j], 1.6)
            if labelled is None or label in labelled:
                value = values[i]
                assert value is not None
                # The highest line carries its labels above, the others below (if the axis leaves room), so that labels do not
                # meet where lines cross.
                others = [v for values in series.values() if (v := values[i]) is not None]
                above = value == max(others) or plot[3] - point[1] < size * 1.8
                y = point[1] + (-size * 0.9 if above else size * 1.75)
                c.text(
                    point[0],
                    y,
                    fmt(value),
                    size,
                    mix(colours[j], "#000000", 0.25),
                    bold=True,
                    align="center",
                    mark=f"{name}/{label}/{xs[i]}",
                )


def donut(
    c: Canvas,
    centre: Point,
    radius: float,
    name: str,
    values: Mapping[str, float],
    *,
    colours: Sequence[str] | None = None,
    fmt: Format = lambda v: f"{v:g}%",
    size: float = 9.5,
    hole: float = 0.58,
    middle: tuple[str, str] | None = None,
) -> None:
    """A ring with its values outside; `middle` is a big and a small line in the hole. The legend is the caller's."""
    colours = colours or c.theme.palette
    total, angle = sum(values.values()), 0.0
    for (label, value), colour in zip(values.items(), colours, strict=False):
        sweep = 360 * value / total
        c.ring(centre, radius, radius * hole, angle, angle + sweep, colour)
        turn = math.radians(angle + sweep / 2 - 90)
        x, y = centre[0] + math.cos(turn) * (radius + size * 1.6), centre[1] + math.sin(turn) * (radius + size * 1.3)
        c.text(x, y + size * 0.33, fmt(value), size, bold=True, align="center", mark=f"{name}/{label}")
        angle += sweep
    if middle:
        c.text(centre[0], centre[1] + size * 0.3, middle[0], size * 2, bold=True, align="center")
        c.text(centre[0], centre[1] + size * 1.7, middle[1], size * 0.9, c.theme.muted, align="center")


def keys(
    c: Canvas,
    x: float,
    y: float,
    names: Sequence[str],
    colours: Sequence[str] | None = None,
    size: float = 9.5,
    leading: float = 1.9,
) -> None:
    """A standing legend."""
    for i, name in enumerate(names):
        at = y + i * size * leading
        c.rect((x, at - size * 0.75, x + size * 0.85, at + size * 0.1), fill=(colours or c.theme.palette)[i], radius=2)
        c.text(x + size * 1.5, at, name, size)
