"""Launch deck of an invented air monitor (English, 16:9); one slide is only a picture."""

from __future__ import annotations

import math

from . import scenes
from .blocks import callout, table
from .canvas import WIDE, Book, Canvas, Scan, Theme, mix
from .charts import bars, keys, lines

THEME = Theme(
    ink="#2a2440",
    muted="#746d8c",
    accent="#5a3fa0",
    accent2="#ff6f59",
    line="#ddd8ea",
    soft="#f3f0fa",
    palette=("#5a3fa0", "#ff6f59", "#2fb59b", "#b3a5d8", "#d5ccec"),
)
X0, X1 = 56.0, 904.0


def build() -> Book:
    book = Book("mossly_p2_launch_deck.pdf", "Mossly P2 – launch deck", "Fernbeck Devices", THEME, WIDE)
    _title(book.page())
    _survey(book.page())
    _inside(book.page())
    _compare(book.page())
    # Exported as a flat picture, as slides with effects often are: clean, but without a text layer.
    _battery(book.page(Scan(paper=False, angle=0, noise=0.6, dpi=104, quality=72, colour=True, blur=0.3)))
    _prices(book.page())
    _roadmap(book.page())
    return book


def _slide(c: Canvas, title: str, number: int) -> None:
    c.rect((0, 0, 12, 540), fill=THEME.accent)
    c.text(X0, 74, title, 30, THEME.ink, bold=True)
    c.rect((X0, 88, X0 + 46, 92), fill=THEME.accent2)
    c.circle((X0 + 5, 512), 5, THEME.accent2)
    c.text(X0 + 16, 516, "Fernbeck Devices · Mossly P2 · March 2026", 10, THEME.muted)
    c.text(X1, 516, str(number), 11, THEME.muted, align="right")


def _title(c: Canvas) -> None:
    c.rect((0, 0, 960, 540), fill="#241b47")
    c.image((430, 0, 960, 540), scenes.device(880, 896), 80)
    c.polygon([(380, 0), (500, 0), (430, 540), (380, 540)], "#241b47")
    c.flush()
    c.text(X0, 196, "Mossly P2", 64, "#ffffff", bold=True)
    c.text(X0, 244, "The air monitor that asks", 24, "#cfc3ef")
    c.text(X0, 274, "for nothing.", 24, "#cfc3ef")
    c.rect((X0, 304, X0 + 60, 309), fill=THEME.accent2)
    c.text(X0, 350, "Launch deck for retail partners", 16, "#ffffff")
    c.text(X0, 376, "12 March 2026", 14, "#a99bd6")
    c.text(X0, 500, "Fernbeck Devices", 14, "#ffffff", bold=True)


def _survey(c: Canvas) -> None:
    _slide(c, "Why people want to know their air", 2)
    reasons = {
        "Headaches while working": 41.0,
        "Mould in a room": 37.0,
        "A child with asthma": 29.0,
        "Pollen season": 26.0,
        "Smoke from cooking": 18.0,
        "Street next door": 15.0,
    }
    bars(
        c,
        (X0, 112, 610, 452),
        "reasons",
        reasons,
        fmt=lambda v: f"{v:.0f}%",
        size=14,
        label_width=196,
        highlight="Headaches while working",
    )
    c.rect((650, 120, X1, 300), fill=THEME.accent, radius=12)
    c.flush()
    c.text(676, 190, "7 in 10", 48, "#ffffff", bold=True, mark="seven")
    c.paragraph(
        676, 208, 210, "open a window only when it is too late: above 1,400 ppm of carbon dioxide.", 14, "#e3dbf7"
    )
    c.rect((650, 318, X1, 452), fill=THEME.soft, radius=12)
    c.text(676, 356, "What stops them?", 16, THEME.accent, bold=True)
    c.paragraph(
        676,
        370,
        212,
        "“I would have to charge yet [[stops|another thing]].” The sentence we heard most.",
        14,
        italic=True,
    )
    c.text(
        X0,
        482,
        "Survey of 2,150 households in five cities, October 2025; several answers possible.",
        10,
        THEME.muted,
        mark="survey",
    )


def _inside(c: Canvas) -> None:
    _slide(c, "Inside: six parts, four screws", 3)
    c.rect((X0, 108, 620, 486), fill="#f7f5fc", radius=12)
    x = 300.0
    layers = [
        (140, 118, 16, "#3a3552", "#4c4668", "Front glass, 1.1 mm"),
        (182, 108, 12, "#c9c2e4", "#e0dbf2", "E-paper display, 2.7 inch"),
        (226, 112, 18, "#2fb59b", "#58cbb5", "Light ring, 24 diodes"),
        (280, 104, 20, "#1f6b4f", "#2d8a66", "Circuit board"),
        (344, 98, 26, "#e9b949", "#f3cd72", "Battery, 5,200 mAh"),
        (408, 118, 30, "#ded9ea", "#f1eef8", "Housing of recycled nylon"),
    ]
    c.line((x, 128), (x, 470), THEME.line, 1, "[3 3] 0")
    for y, wide, thick, dark, light, label in layers:
        left, right, flat = x - wide, x + wide, 0.24
        lower = [
            (x + wide * math.cos(a), y + thick + wide * flat * math.sin(a))
            for a in [math.pi * k / 40 for k in range(41)]
        ]
        c.polygon([(right, y), *lower, (left, y)], dark)
        ellipse = [
            (x + wide * math.cos(a), y + wide * flat * math.sin(a)) for a in [2 * math.pi * k / 80 for k in range(80)]
        ]
        c.polygon(ellipse, light, mix(light, "#000000", 0.15), 0.8)
        if label.startswith("Circuit"):
            for dx, dy in ((-50, -4), (-14, 8), (30, -8), (56, 6)):
                c.rect((x + dx - 11, y + dy - 5, x + dx + 11, y + dy + 5), fill="#16324a")
        if label.startswith("Battery"):
            c.rect((x - 34, y - 9, x + 34, y + 9), fill="#b98a1e", radius=4)
    c.flush()
    for y, wide, thick, _, _, label in layers:
        callout(
            c,
            (x + wide + 2, y + thick / 2),
            (x + 148, y + thick / 2),
            label,
            size=12,
            mark=f"part/{label.split(',')[0]}",
        )
    for dx in (-78, 78):
        c.circle((x + dx, 462), 5, "#9a94ae", "#6c6580", 1)
    callout(c, (x - 84, 462), (x - 132, 462), "4 screws", size=12, align="right")
    c.text(650, 136, "What it measures", 17, THEME.accent, bold=True)
    rows = [
        ["Sensor", "Range", "Accuracy"],
        ["Carbon dioxide", "400–5,000 ppm", "±40 ppm"],
        ["Fine dust PM2.5", "0–500 µg/m³", "±8%"],
        ["Temperature", "–10 to 50 °C", "±0.3 °C"],
        ["Humidity", "0–100%", "±2%"],
        ["Formaldehyde", "0–1,000 ppb", "±20 ppb"],
    ]
    y = table(c, 650, 152, [96, 90, 68], rows, "sensors", aligns="lrr", size=10.5)
    c.paragraph(
        650,
        y + 18,
        250,
        "All parts can be replaced with one screwdriver. We keep spare parts for [[spare|ten years]].",
        13,
    )
    c.paragraph(
        650, y + 80, 250, "The battery opens with a quarter turn; no glue anywhere in the device.", 13, THEME.muted
    )


def _compare(c: Canvas) -> None:
    _slide(c, "What is new", 4)
    rows = [
        ["", "Mossly P1 (2022)", "Mossly P2", "Mossly P2 Pro"],
        ["Display", "3 lamps", "E-paper, 2.7 inch", "E-paper, 4.2 inch"],
        ["Battery life", "5 months", "19 months", "14 months"],
        ["Sensors", "CO₂, temperature", "CO₂, dust, temperature, humidity", "as P2, and formaldehyde"],
        ["Works without internet", "no", "yes", "yes"],
        ["Stored readings", "2 days", "90 days", "400 days"],
        ["Weight", "164 g", "138 g", "212 g"],
        ["Water protection", "none", "IP42", "IP54"],
        ["Recycled material", "12%", "71%", "68%"],
        ["Colours", "white", "moss, chalk, plum", "chalk, ink"],
    ]
    fills = {(r, 2): ("#efe9fb" if r % 2 else "#e6def7") for r in range(1, 10)}
    table(c, X0, 112, [190, 190, 260, 208], rows, "compare", size=14, pad=9.2, fills=fills)
    c.text(
        X0,
        484,
        "Battery life with one reading every ten minutes at 21 °C. Stored readings: oldest are overwritten first.",
        10,
        THEME.muted,
    )


def _battery(c: Canvas) -> None:
    _slide(c, "One charge, nineteen months", 5)
    intervals = ("1 min", "2 min", "5 min", "10 min", "30 min", "60 min")
    series = {"P2": (4, 7, 13, 19, 26, 29), "P2 Pro": (3, 5, 9, 14, 20, 23)}
    lines(
        c,
        (X0, 112, 620, 476),
        "battery",
        intervals,
        series,
        unit="Months until empty",
        size=13,
        colours=(THEME.accent, THEME.accent2),
    )
    c.rect((650, 120, X1, 340), fill=THEME.soft, radius=12)
    c.text(674, 156, "How we did it", 18, THEME.accent, bold=True)
    points = [
        ("The laser for dust sleeps", "98% of the time"),
        ("E-paper draws power only", "when a number changes"),
        ("Radio talks once", "in fifteen minutes"),
    ]
    for i, (a, b) in enumerate(points):
        y = 186 + i * 48
        c.circle((682, y), 8, THEME.accent2)
        c.text(682, y + 4, str(i + 1), 11, "#ffffff", bold=True, align="center")
        c.text(700, y + 4, a, 13)
        c.text(700, y + 22, b, 13, bold=True, mark=f"how/{i + 1}")
    c.rect((650, 356, X1, 476), fill="#fff0ec", radius=12)
    c.text(674, 388, "In the cold", 16, THEME.accent2, bold=True)
    c.paragraph(
        674,
        400,
        214,
        "Below 5 °C the battery lasts [[cold|a third less]]. The display says so and asks to be brought inside.",
        13,
    )


def _prices(c: Canvas) -> None:
    _slide(c, "Prices and bundles", 6)
    offers = [
        ("Single", "€129", "one P2", ["any colour", "wall mount", "paper guide"], THEME.accent),
        ("Family", "€339", "three P2", ["saves €48", "one colour each", "window reminder"], THEME.accent2),
        ("School", "€1,090", "ten P2", ["dashboard for a year", "spare battery", "lesson plans"], "#2a9d87"),
        ("Pro", "€219", "one P2 Pro", ["formaldehyde", "400 days of memory", "metal stand"], "#3a3552"),
    ]
    wide, gap = 197.0, 20.0
    for i, (name, price, what, extras, colour) in enumerate(offers):
        x = X0 + i * (wide + gap)
        c.rect((x, 116, x + wide, 420), fill=THEME.soft, radius=12)
        c.tab((x, 116, x + wide, 170), colour, 12)
        c.text(x + wide / 2, 150, name, 18, "#ffffff", bold=True, align="center")
        c.text(x + wide / 2, 222, price, 36, colour, bold=True, align="center", mark=f"price/{name}")
        c.text(x + wide / 2, 248, what, 14, THEME.muted, align="center")
        for k, extra in enumerate(extras):
            y = 292 + k * 34
            c.circle((x + 24, y - 4), 4, colour)
            c.text(x + 38, y, extra, 13.5)
    c.paragraph(
        X0,
        436,
        848,
        "Recommended retail prices, value added tax included. Launch offer: the wall mount is free with orders "
        "until [[offer|30 April 2026]]. Guarantee "
        "[[guarantee|30 months]], battery 18 months. The school dashboard costs [[dashboard|€96 a year]] from "
        "the second year on. Retailers' margin 28%, "
        "from 500 pieces [[margin|31%]]. Returned devices are repaired and sold with a moss-coloured seal. Works "
        "with all phones that speak Bluetooth 5.0.",
        9.2,
        THEME.muted,
    )


def _roadmap(c: Canvas) -> None:
    _slide(c, "What comes next", 7)
    c.line((X0 + 10, 270), (X1 - 10, 270), THEME.accent, 5)
    stops = [
        ("April 2026", "P2 in shops", "Veyford and Lunde first", -1),
        ("June 2026", "Open interface", "for clinics and schools", 1),
        ("September 2026", "P2 Pro", "with formaldehyde sensor", -1),
        ("January 2027", "Chinese edition", "pilot with Yunting Water", 1),
        ("May 2027", "Radon module", "clips under the P2", -1),
    ]
    for i, (when, what, note, side) in enumerate(stops):
        x = X0 + 90 + i * 168
        colour = THEME.accent2 if i == 4 else THEME.accent
        c.line((x, 270), (x, 270 + side * 44), colour, 1.5)
        c.circle((x, 270), 10, "#ffffff", colour, 4)
        top = 136.0 if side < 0 else 314.0
        c.rect((x - 86, top, x + 86, top + 90), fill=THEME.soft, radius=10)
        c.text(x, top + 28, when, 14, colour, bold=True, align="center", mark=f"road/{what}")
        c.text(x, top + 50, what, 15, bold=True, align="center", mark=f"what/{when}")
        c.text(x, top + 72, note, 12, THEME.muted, align="center", mark=f"note/{what}")
    keys(
        c,
        X0 + 4,
        440,
        ["Sold in shops or online", "Needs approval of the radiation office"],
        [THEME.accent, THEME.accent2],
        12,
        1.8,
    )
    c.text(X1, 452, "retail@fernbeck.example", 15, THEME.accent, bold=True, align="right")
    c.text(X1, 474, "Samples within five working days", 12, THEME.muted, align="right")
