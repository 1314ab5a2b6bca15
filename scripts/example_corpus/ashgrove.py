"""Laboratory safety handbook of an invented institute (English, A4); one page is a scanned form."""

from __future__ import annotations

from . import scenes
from .blocks import bullets, callout, footnotes, heading, page_head, panel, table
from .canvas import A4, Book, Canvas, Scan, Theme
from .charts import columns

THEME = Theme(
    ink="#26262b",
    muted="#74747c",
    accent="#2b2d42",
    accent2="#c98a00",
    line="#dddde2",
    soft="#f6f4ec",
    palette=("#2b2d42", "#e0a100", "#c0392b", "#8d99ae", "#c9cfd9"),
)
LEFT, RIGHT = 48.0, 547.0
WIDTH = RIGHT - LEFT


def build() -> Book:
    book = Book(
        "ashgrove_lab_safety_handbook.pdf", "Laboratory Safety Handbook", "Ashgrove Institute of Materials", THEME, A4
    )
    for draw in (_cover, _emergency, _storage, _gloves):
        draw(book.page())
    _hood(book.page(Scan(angle=-0.6)))
    _waste(book.page())
    return book


def _head(c: Canvas, page: int) -> None:
    page_head(c, "Ashgrove Institute of Materials", "Laboratory Safety Handbook, edition 9", page)


def _stripe(c: Canvas, y: float, high: float) -> None:
    c.rect((0, y, 595, y + high), fill="#f2b705")
    for i in range(-1, 22):
        x = i * 30
        c.polygon(
            [
                (max(0, x), y + high),
                (max(0, min(595, x + 15)), y + high),
                (min(595, x + 15 + high), y),
                (min(595, x + high), y),
            ],
            "#26262b",
        )


def _cover(c: Canvas) -> None:
    c.rect((0, 0, 595, 842), fill="#fbfaf5")
    c.image((0, 250, 595, 690), scenes.glassware(1000, 740), 78)
    _stripe(c, 226, 24)
    _stripe(c, 690, 24)
    c.text(LEFT, 110, "Laboratory", 46, THEME.accent, bold=True)
    c.text(LEFT, 158, "Safety Handbook", 46, THEME.accent, bold=True)
    c.text(LEFT, 196, "Edition 9 · valid from 1 February 2026", 13, THEME.muted)
    c.text(LEFT, 762, "Ashgrove Institute of Materials", 15, bold=True)
    c.text(
        LEFT,
        784,
        "Read it before the first day. Keep it where you can reach it with wet hands.",
        11,
        THEME.muted,
        italic=True,
    )


def _emergency(c: Canvas) -> None:
    _head(c, 2)
    y = heading(c, LEFT, 62, "When something goes wrong", "1  EMERGENCIES")
    c.rect((LEFT, y, RIGHT, y + 62), fill="#c0392b", radius=6)
    c.flush()
    c.text(LEFT + 18, y + 27, "Emergency number inside the building", 12, "#ffffff")
    c.text(LEFT + 18, y + 48, "Say where, what, how many. Wait for questions.", 10, "#ffe1dc")
    c.text(RIGHT - 18, y + 46, "7000", 40, "#ffffff", bold=True, align="right", mark="number")
    y += 84
    c.text(LEFT, y + 10, "Figure 1   A chemical has been spilled", 9.5, bold=True)
    y += 22

    def node(
        x: float,
        top: float,
        text: str,
        wide: float = 150,
        high: float = 40,
        fill: str = THEME.soft,
        mark: str | None = None,
    ) -> None:
        c.rect((x - wide / 2, top, x + wide / 2, top + high), fill=fill, stroke=THEME.accent, width=0.9, radius=5)
        lines = text.split("\n")
        for i, line in enumerate(lines):
            at = top + high / 2 + 3.4 + (i - (len(lines) - 1) / 2) * 12.5
            colour = "#ffffff" if fill in (THEME.accent, "#c0392b") else THEME.ink
            c.text(x, at, line, 9.6, colour, bold=i == 0, align="center", mark=mark)

    def question(x: float, top: float, text: str) -> None:
        middle = top + 34
        c.polygon([(x, top), (x + 96, middle), (x, top + 68), (x - 96, middle)], "#fdf0c4", THEME.accent2, 1.1)
        for i, line in enumerate(text.split("\n")):
            c.text(x, middle - 2 + i * 12, line, 9.4, bold=True, align="center")

    left, right = LEFT + 118, RIGHT - 118
    node(left, y, "Warn the others\nand switch off flames", fill=THEME.accent)
    c.arrow((left, y + 40), (left, y + 62))
    question(left, y + 62, "Is anyone\nhurt?")
    c.arrow((left + 96, y + 96), (right - 83, y + 96))
    c.text((left + right) / 2 + 10, y + 91, "yes", 9.5, THEME.accent2, bold=True, align="center")
    node(right, y + 76, "Call 7000, rinse skin or eyes\nfor 15 minutes", 166, fill="#c0392b", mark="rinse")
    c.arrow((left, y + 130), (left, y + 156))
    c.text(left + 8, y + 146, "no", 9.5, THEME.accent2, bold=True)
    question(left, y + 156, "More than\n500 millilitres?")
    c.arrow((left + 96, y + 190), (right - 83, y + 190))
    c.text((left + right) / 2 + 10, y + 185, "yes", 9.5, THEME.accent2, bold=True, align="center")
    node(right, y + 170, "Leave, close the door,\npress the yellow button", 166, mark="button")
    c.arrow((left, y + 224), (left, y + 250))
    c.text(left + 8, y + 240, "no", 9.5, THEME.accent2, bold=True)
    node(left, y + 250, "Put on gloves, bind the spill\nwith granulate from box 4", 172, mark="granulate")
    c.arrow((left + 86, y + 270), (right - 83, y + 270))
    node(right, y + 250, "Grey waste bin,\nreport within 24 hours", 166, mark="report")
    y += 312
    c.text(LEFT, y + 10, "Table 1   Whom to call", 9.5, bold=True)
    rows = [
        ["Duty", "Name", "Extension", "Room"],
        ["Safety officer", "Dr Oona Feldt", "7014", "B 112"],
        ["First aid, east wing", "Samir Okonedo", "7233", "E 204"],
        ["First aid, west wing", "Greta Halloran", "7251", "W 018"],
        ["Radiation protection", "Dr Piet Lammers", "7060", "B 310"],
        ["Gas supply", "Workshop, day and night", "7099", "Cellar 2"],
    ]
    y = table(c, LEFT, y + 18, [150, 170, 90, 89], rows, "phones", aligns="llrr")
    footnotes(
        c,
        LEFT,
        748,
        WIDTH,
        [
            "The safety officer must be told of every spill, even of water, if it took longer than "
            "[[tell|ten minutes]] to clean up. The eye showers are tested on the first Monday of the month."
        ],
    )


def _storage(c: Canvas) -> None:
    _head(c, 3)
    y = heading(c, LEFT, 62, "What may stand next to what", "2  STORAGE")
    y = c.paragraph(
        LEFT,
        y,
        WIDTH,
        "Look up the row of the one and the column of the other substance. If in doubt, choose the next stricter "
        "colour.",
        10,
    )
    y += 10
    names = ["Acids", "Bases", "Flammable liquids", "Oxidisers", "Metal powders", "Gas bottles"]
    same, apart, never = "together", "3 m apart", "own room"
    grid = [
        [same, apart, apart, never, never, apart],
        [apart, same, same, apart, apart, same],
        [apart, same, same, never, apart, never],
        [never, apart, never, same, never, never],
        [never, apart, apart, never, same, apart],
        [apart, same, never, never, apart, same],
    ]
    colours = {same: "#bfe0c4", apart: "#f7dc8a", never: "#e59a8d"}
    rows = [["", *names]] + [[name, *cells] for name, cells in zip(names, grid, strict=True)]
    fills = {(r + 1, k + 1): colours[cell] for r, cells in enumerate(grid) for k, cell in enumerate(cells)}
    c.text(LEFT, y + 10, "Table 2   Storage of two substances", 9.5, bold=True)
    y = table(
        c,
        LEFT,
        y + 20,
        [97, 67, 67, 67, 67, 67, 67],
        rows,
        "storage",
        aligns="lcccccc",
        size=9,
        pad=8,
        fills=fills,
        zebra=False,
    )
    y += 24
    c.text(LEFT, y + 10, "Figure 2   The cabinet in every laboratory", 9.5, bold=True)
    y += 38
    c.rect((LEFT + 20, y, LEFT + 240, y + 220), fill="#f2b705", stroke=THEME.accent, width=2, radius=4)
    c.rect((LEFT + 30, y + 12, LEFT + 230, y + 210), fill="#fdf6df", stroke=THEME.accent)
    shelves = [("Top: powders, dry", "#8d99ae"), ("Middle: bases", "#3f7fb5"), ("Bottom: acids, in trays", "#c0392b")]
    for i, (label, colour) in enumerate(shelves):
        base = y + 72 + i * 66
        c.line((LEFT + 30, base), (LEFT + 230, base), THEME.accent, 2.2)
        for k in range(5):
            x = LEFT + 46 + k * 37
            tall = 30 + (k * 7 + i * 5) % 14
            c.rect((x, base - tall, x + 22, base - 1), fill=colour, radius=3)
            c.rect((x + 6, base - tall - 7, x + 16, base - tall), fill="#26262b")
            c.rect((x + 3, base - tall * 0.62, x + 19, base - tall * 0.28), fill="#ffffff")
        callout(c, (LEFT + 228, base - 26), (LEFT + 274, base - 26), label, size=10.5, bold=True, mark=f"shelf/{i}")
    c.rect((LEFT + 120, y - 12, LEFT + 140, y), fill="#9a9aa4", stroke=THEME.accent)
    callout(c, (LEFT + 140, y - 6), (LEFT + 274, y - 6), "Exhaust air, 10 changes an hour", size=10.5, mark="exhaust")
    footnotes(
        c,
        LEFT,
        724,
        WIDTH,
        [
            "Bottles of more than [[bottle|2.5 litres]] always stand on the lowest shelf. Perchloric acid is "
            "kept only in room [[perchloric|B 027]] and is not "
            "covered by this table. Ether that has been open for more than three months is handed to the waste "
            "store, whatever its colour.",
        ],
    )


def _gloves(c: Canvas) -> None:
    _head(c, 4)
    y = heading(c, LEFT, 62, "Gloves that hold", "3  PROTECTION")
    y = c.paragraph(
        LEFT,
        y,
        WIDTH,
        "No glove holds for ever. The table says after how many minutes a liquid has passed through. Change "
        "gloves at half that time, and at once "
        "after a splash of a substance marked with a dash.",
        10,
    )
    y += 10
    c.text(LEFT, y + 10, "Table 3   Breakthrough time in minutes", 9.5, bold=True)
    rows = [
        ["Liquid", "Nitrile 0.1 mm", "Nitrile 0.4 mm", "Butyl 0.5 mm", "Neoprene 0.7 mm"],
        ["Acetone", "–", "6", "480", "18"],
        ["Ethanol 96%", "24", "190", "480", "240"],
        ["Toluene", "–", "22", "9", "14"],
        ["Sulphuric acid 30%", "60", "480", "480", "480"],
        ["Nitric acid 50%", "–", "35", "390", "150"],
        ["Dichloromethane", "–", "2", "11", "5"],
        ["Sodium hydroxide 40%", "120", "480", "480", "480"],
    ]
    y = table(c, LEFT, y + 20, [119, 91, 91, 91, 107], rows, "gloves", aligns="lrrrr", size=9.8, pad=6.5)
    y += 22
    x, top = panel(c, (LEFT, y, LEFT + 300, y + 196), "Taking gloves off")
    steps = [
        "Pinch the left glove at the wrist.",
        "Pull it off inside out.",
        "Hold it in the right fist.",
        "Slide a bare finger under the right cuff.",
        "Turn the second glove over the first.",
        "Wash hands for 30 seconds.",
    ]
    for i, step in enumerate(steps):
        at = top + 14 + i * 25
        c.circle((x + 8, at - 3.5), 9, THEME.accent)
        c.text(x + 8, at, str(i + 1), 10, "#ffffff", bold=True, align="center")
        c.text(x + 26, at, step, 10, mark=f"glove-off/{i + 1}")
    _glove(c, 462, y + 20)
    y += 220
    bullets(
        c,
        LEFT,
        y,
        WIDTH,
        [
            "Cotton gloves are worn under butyl when the work takes longer than [[cotton|40 minutes]].",
            "Furnaces: leather over aramid, up to 350 °C for at most ten seconds.",
        ],
        10,
    )
    footnotes(
        c,
        LEFT,
        728,
        WIDTH,
        [
            "Measured at 23 °C by our own laboratory with liquid on the whole surface. Above [[warm|35 °C]] the "
            "times are halved. 480 means: no breakthrough "
            "during a whole shift. Gloves older than [[age|five years]] are thrown away even in a closed box.",
        ],
    )


def _glove(c: Canvas, x: float, y: float) -> None:
    hand = [
        (x - 40, y + 170),
        (x - 46, y + 100),
        (x - 74, y + 64),
        (x - 66, y + 48),
        (x - 42, y + 62),
        (x - 40, y + 12),
        (x - 30, y + 2),
        (x - 22, y + 12),
    ]
    hand += [
        (x - 18, y + 60),
        (x - 14, y - 2),
        (x - 4, y - 12),
        (x + 4, y - 2),
        (x + 6, y + 60),
        (x + 12, y + 8),
        (x + 22, y + 2),
        (x + 28, y + 12),
    ]
    hand += [
        (x + 28, y + 68),
        (x + 38, y + 34),
        (x + 48, y + 30),
        (x + 52, y + 42),
        (x + 46, y + 110),
        (x + 40, y + 170),
    ]
    c.blob(hand, "#3f7fb5", "#2b5c88", 1.5)
    c.rect((x - 46, y + 160, x + 46, y + 178), fill="#2b5c88", radius=7)


def _hood(c: Canvas) -> None:
    c.rect((30, 34, 565, 808), stroke="#222222", width=1.2)
    c.text(48, 72, "4  FUME HOOD: MONTHLY CHECK", 20, bold=True)
    c.text(48, 92, "Form FH-3, one sheet for each hood. Hang it on the left side.", 10.5)
    c.line((30, 104), (565, 104), "#222222", 1.2)
    x0, y0 = 70.0, 132.0
    c.rect((x0, y0, x0 + 220, y0 + 250), fill="#eeeeee", stroke="#222222", width=1.6)
    c.rect((x0 + 14, y0 + 40, x0 + 206, y0 + 190), fill="#ffffff", stroke="#222222")
    c.rect((x0 + 14, y0 + 40, x0 + 206, y0 + 118), fill="#d9d9d9", stroke="#222222")
    c.rect((x0 + 84, y0 - 20, x0 + 136, y0), fill="#cccccc", stroke="#222222")
    c.rect((x0 - 6, y0 + 190, x0 + 226, y0 + 206), fill="#bbbbbb", stroke="#222222")
    for k in range(3):
        c.arrow((x0 + 50 + k * 60, y0 + 178), (x0 + 70 + k * 38, y0 + 128), "#444444", 1.4)
    c.polygon(
        [
            (x0 + 120, y0 + 188),
            (x0 + 156, y0 + 188),
            (x0 + 144, y0 + 160),
            (x0 + 144, y0 + 146),
            (x0 + 132, y0 + 146),
            (x0 + 132, y0 + 160),
        ],
        "#ffffff",
        "#222222",
    )
    c.flush()
    callout(c, (x0 + 136, y0 - 10), (330, y0 - 10), "Exhaust to the roof, 420 m³/h", size=11.5, mark="airflow")
    callout(c, (x0 + 200, y0 + 70), (330, y0 + 50), "Sash, safety glass", size=11.5)
    callout(c, (x0 + 206, y0 + 118), (330, y0 + 112), "Lower edge never above 45 cm", size=11.5, bold=True, mark="sash")
    callout(
        c,
        (x0 + 180, y0 + 150),
        (330, y0 + 166),
        "Face velocity at least 0.5 m/s",
        size=11.5,
        bold=True,
        mark="velocity",
    )
    callout(c, (x0 + 226, y0 + 198), (330, y0 + 214), "Work 15 cm behind the edge", size=11.5)
    rows = [
        ["Hood", "Room", "Velocity, m/s", "Alarm works", "Date", "Checked by"],
        ["F-01", "E 201", "0.58", "yes", "6 Jan", "S. Okonedo"],
        ["F-02", "E 201", "0.61", "yes", "6 Jan", "S. Okonedo"],
        ["F-03", "E 207", "0.44", "yes", "7 Jan", "G. Halloran"],
        ["F-04", "W 015", "0.55", "no", "7 Jan", "G. Halloran"],
        ["F-05", "W 022", "0.63", "yes", "8 Jan", "P. Lammers"],
    ]
    y = table(
        c, 48, 412, [60, 68, 98, 92, 72, 110], rows, "hoods", aligns="llrccl", size=11, pad=7, head_fill="#444444"
    )
    y += 22
    y = bullets(
        c,
        48,
        y,
        500,
        [
            "A hood below the limit is closed with red tape on the same day. Only the workshop may take the tape off.",
            "The filter is changed after [[filter|1,200 hours]]; read the counter behind the left door.",
            "Nothing is stored in a hood overnight, except a reaction with a yellow card.",
        ],
        11.5,
        7,
    )
    c.text(
        48,
        y + 34,
        "Remark:  F-03 closed on 7 January, belt of the fan replaced on 9 January.",
        12,
        "#20208a",
        italic=True,
        family="serif",
        mark="remark",
    )
    c.line((48, y + 40), (540, y + 40), "#555555", 0.7)
    c.text(48, y + 64, "Signature:", 11)
    c.curve(
        [(120, y + 62), (134, y + 44), (142, y + 68), (156, y + 48), (164, y + 64), (184, y + 54), (230, y + 58)],
        "#20208a",
        1.6,
    )
    c.text(547, 798, "5", 9, align="right")


def _waste(c: Canvas) -> None:
    _head(c, 6)
    y = heading(c, LEFT, 62, "Waste and what we learned", "5  AFTER WORK")
    c.text(LEFT, y + 10, "Figure 3   Which container", 9.5, bold=True)
    y += 24
    bins = [
        ("Yellow", "Sharp things", "#e8b90c"),
        ("Red", "Halogenated solvents", "#c0392b"),
        ("Blue", "Other solvents", "#3f7fb5"),
        ("Grey", "Bound spills", "#8d8d96"),
        ("Green", "Clean glass", "#4c9a63"),
    ]
    for i, (name, what, colour) in enumerate(bins):
        x = LEFT + 8 + i * 101
        c.polygon([(x + 6, y + 16), (x + 78, y + 16), (x + 70, y + 104), (x + 14, y + 104)], colour)
        c.rect((x, y + 6, x + 84, y + 18), fill=colour, stroke="#ffffff", width=1, radius=4)
        c.text(
            x + 42,
            y + 66,
            name,
            13,
            "#26262b" if name == "Yellow" else "#ffffff",
            bold=True,
            align="center",
            mark=f"bin/{what}",
        )
        c.text(x + 42, y + 122, what, 8.6, align="center", mark=f"what/{name}")
    y += 150
    c.text(LEFT, y + 10, "Figure 4   Reported incidents", 9.5, bold=True)
    series = {"2023": (14, 9, 11, 4), "2024": (12, 7, 8, 5), "2025": (8, 7, 3, 6)}
    columns(
        c,
        (LEFT, y + 24, RIGHT, y + 250),
        "incidents",
        ("Cuts", "Splashes", "Burns", "Gas alarms"),
        series,
        colours=("#c9cfd9", "#8d99ae", "#e0a100"),
        size=9.5,
    )
    y += 268
    y = c.paragraph(
        LEFT,
        y,
        WIDTH,
        "Burns fell most, since the new furnace room has tongs of 60 centimetres. Gas alarms rose: four of the "
        "six came from the same valve in "
        "[[valve|room W 009]], which has been replaced.",
        10,
    )
    y += 12
    x, top = panel(c, (LEFT, y, RIGHT, y + 98), "Collection times")
    for i, (what, when) in enumerate(
        [
            ("Solvents, red and blue", "Tuesday, 09:30"),
            ("Sharp things and spills", "Thursday, 14:00"),
            ("Clean glass", "first Friday of the month"),
        ]
    ):
        at = top + 14 + i * 18
        c.text(x, at, what, 9.8)
        c.text(x + 190, at, when, 9.8, bold=True, mark=f"collect/{what}")
    footnotes(
        c,
        LEFT,
        744,
        WIDTH,
        [
            "Containers are filled to [[fill|four fifths]] at most and labelled with the date of opening. A "
            "solvent container stays in the laboratory for no longer than eight weeks."
        ],
    )
