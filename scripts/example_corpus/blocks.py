"""What pages are made of besides charts: tables, cards, boxes with text, callouts."""

from __future__ import annotations

from collections.abc import Sequence

from .canvas import Canvas, Point, Rect, mix
from .charts import contrast
from .typeset import break_lines, glyphs, plain


def table(
    c: Canvas,
    x: float,
    y: float,
    widths: Sequence[float],
    rows: Sequence[Sequence[str]],
    name: str,
    *,
    aligns: str = "",
    size: float = 9,
    pad: float = 5.5,
    head_fill: str | None = None,
    zebra: bool = True,
    bold_rows: Sequence[int] = (),
    fills: dict[tuple[int, int], str] | None = None,
    rules: bool = True,
) -> float:
    """A table whose first row is its head; returns the y below it. Cells become marks `name/row label/column head`.

    `aligns`: one of l, c, r per column; `fills`: cell (row, column) -> colour, rows counted with the head as 0.
    """
    head = [plain(cell).split("\n")[0] for cell in rows[0]]
    leading = 1.3
    for r, row in enumerate(rows):
        bold = r == 0 or r in bold_rows
        broken = [
            break_lines(glyphs(cell, c.theme.family, bold), size, width - 2 * pad)
            for cell, width in zip(row, widths, strict=True)
        ]
        high = max(len(lines) for lines in broken) * size * leading + 2 * pad - size * (leading - 1)
        if r == 0:
            c.rect((x, y, x + sum(widths), y + high), fill=head_fill or c.theme.accent)
        elif zebra and r % 2 == 0:
            c.rect((x, y, x + sum(widths), y + high), fill=c.theme.soft)
        if rules and r:
            c.line((x, y + high), (x + sum(widths), y + high), c.theme.line, 0.5)
        left = x
        for k, (cell, width, lines) in enumerate(zip(row, widths, broken, strict=True)):
            fill = (fills or {}).get((r, k))
            if fill:
                c.rect((left, y, left + width, y + high), fill=fill, stroke=c.theme.paper, width=1)
            colour = contrast(head_fill or c.theme.accent) if r == 0 else contrast(fill) if fill else c.theme.ink
            align = {"l": "left", "c": "center", "r": "right"}[(aligns or "l" * len(widths))[k]]
            top = y + (high - len(lines) * size * leading + size * (leading - 1)) / 2
            mark = f"{name}/{plain(row[0])}/{head[k]}" if r else None
            c.paragraph(
                left + pad, top, width - 2 * pad, cell, size, colour, leading=leading, bold=bold, align=align, mark=mark
            )
            left += width
        y += high
    return y


def cards(
    c: Canvas,
    box: Rect,
    name: str,
    items: Sequence[tuple[str, str, str]],
    columns: int,
    *,
    gap: float = 12,
    size: float = 22,
    colours: Sequence[str] | None = None,
) -> None:
    """Figures on cards: (label, value, note). The value becomes the mark `name/label`."""
    x0, y0, x1, y1 = box
    rows = -(-len(items) // columns)
    wide, high = (x1 - x0 - gap * (columns - 1)) / columns, (y1 - y0 - gap * (rows - 1)) / rows
    for i, (label, value, note) in enumerate(items):
        left, top = x0 + (i % columns) * (wide + gap), y0 + (i // columns) * (high + gap)
        colour = (colours or [c.theme.accent] * len(items))[i]
        c.rect((left, top, left + wide, top + high), fill=c.theme.soft, radius=6)
        c.rect((left, top + 10, left + 3.5, top + high - 10), fill=colour)
        middle = top + high / 2
        c.text(left + 16, middle - size * 0.75, label, size * 0.42, c.theme.muted, max_width=wide - 22)
        c.text(
            left + 16, middle + size * 0.42, value, size, colour, bold=True, mark=f"{name}/{label}", max_width=wide - 22
        )
        c.text(left + 16, middle + size * 1.2, note, size * 0.38, c.theme.muted, max_width=wide - 22)


def box(
    c: Canvas,
    rect: Rect,
    text: str,
    *,
    fill: str | None = None,
    stroke: str | None = None,
    colour: str | None = None,
    size: float = 9.5,
    bold: bool = False,
    radius: float = 5,
    mark: str | None = None,
    leading: float = 1.3,
) -> None:
    """A rounded box with centred text."""
    fill = fill or c.theme.soft
    c.rect(rect, fill=fill, stroke=stroke, radius=radius)
    width = rect[2] - rect[0] - 10
    lines = break_lines(glyphs(text, c.theme.family, bold), size, width)
    high = len(lines) * size * leading - size * (leading - 1)
    if high > rect[3] - rect[1] or any(sum(g.width(size) for g in line) > width for line in lines):
        raise ValueError(f"{plain(text)!r} does not fit its box")
    top = (rect[1] + rect[3]) / 2 - high / 2
    c.paragraph(
        rect[0] + 5,
        top,
        width,
        text,
        size,
        colour or contrast(fill),
        leading=leading,
        bold=bold,
        align="center",
        mark=mark,
    )


def callout(
    c: Canvas,
    at: Point,
    label: Point,
    text: str,
    *,
    size: float = 9.5,
    align: str = "left",
    bold: bool = False,
    mark: str | None = None,
) -> None:
    """A thin line from `at` to a label."""
    c.line(at, label, c.theme.muted, 0.8)
    c.circle(at, 2.2, c.theme.accent)
    c.text(
        label[0] + (4 if align == "left" else -4), label[1] + size * 0.33, text, size, align=align, bold=bold, mark=mark
    )


def bullets(
    c: Canvas,
    x: float,
    y: float,
    width: float,
    items: Sequence[str],
    size: float = 10,
    gap: float = 5,
    colour: str | None = None,
) -> float:
    for item in items:
        c.circle((x + 3, y + size * 0.5), size * 0.2, c.theme.accent)
        y = c.paragraph(x + size * 1.3, y, width - size * 1.3, item, size, colour) + gap
    return y


def footnotes(c: Canvas, x: float, y: float, width: float, notes: Sequence[str], size: float = 6.8) -> float:
    """Small print under a thin rule."""
    c.line((x, y), (x + 90, y), c.theme.muted, 0.6)
    y += 5
    for note in notes:
        y = c.paragraph(x, y, width, note, size, c.theme.muted, leading=1.35) + 1.5
    return y


def page_head(c: Canvas, left: str, right: str, page: int, margin: float = 48) -> None:
    """Running head and page number of a report page."""
    c.text(margin, 36, left, 8, c.theme.muted)
    c.text(c.width - margin, 36, right, 8, c.theme.muted, align="right")
    c.line((margin, 43), (c.width - margin, 43), c.theme.line, 0.6)
    c.line((margin, c.height - 40), (c.width - margin, c.height - 40), c.theme.line, 0.6)
    c.text(c.width - margin, c.height - 26, str(page), 8.5, c.theme.accent, align="right", bold=True)


def heading(c: Canvas, x: float, y: float, title: str, kicker: str = "", size: float = 22) -> float:
    """Section title with a coloured bar; `y` is its top, returns the y below."""
    if kicker:
        c.text(x, y + 9, kicker, 9, c.theme.accent2, bold=True)
        y += 16
    c.text(x, y + size * 0.9, title, size, c.theme.accent, bold=True)
    c.rect((x, y + size * 1.35, x + 38, y + size * 1.35 + 3), fill=c.theme.accent2)
    return y + size * 1.35 + 18


def panel(c: Canvas, rect: Rect, title: str, *, fill: str | None = None, size: float = 10.5) -> tuple[float, float]:
    """A tinted panel with a title; returns where its content starts."""
    c.rect(rect, fill=fill or mix(c.theme.soft, c.theme.paper, 0.25), radius=6)
    c.text(rect[0] + 14, rect[1] + 22, title, size, c.theme.accent, bold=True)
    return rect[0] + 14, rect[1] + 34
