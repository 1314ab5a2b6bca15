"""Transport plan of an invented harbour city (English, A4); its last page is a scanned leaflet."""

from __future__ import annotations

from . import scenes
from .blocks import box, bullets, cards, footnotes, heading, page_head, panel, table
from .canvas import A4, Book, Canvas, Point, Scan, Theme
from .charts import donut, keys, lines, shares

THEME = Theme(
    ink="#22302a",
    muted="#6c7b73",
    accent="#1e6b4f",
    accent2="#e4672f",
    line="#d5e0da",
    soft="#eff5f1",
    palette=("#8a8f98", "#1e6b4f", "#e4672f", "#e9b949", "#8fc1a9"),
)
LEFT, RIGHT = 48.0, 547.0
WIDTH = RIGHT - LEFT
RED, BLUE, GREEN, GOLD = "#c8323c", "#2461a8", "#2d8a57", "#d69a1e"


def build() -> Book:
    book = Book(
        "veyford_transport_plan_2030.pdf",
        "Moving Veyford – Transport Plan 2030",
        "Veyford Transport Authority",
        THEME,
        A4,
    )
    for draw in (_cover, _vision, _network, _fleet, _budget, _timeline):
        draw(book.page())
    _fares(book.page(Scan(angle=0.7, colour=False)))
    return book


def _head(c: Canvas, page: int) -> None:
    page_head(c, "Veyford Transport Authority", "Moving Veyford · Plan 2030", page)


def _cover(c: Canvas) -> None:
    c.rect((0, 0, 595, 842), fill=THEME.accent)
    c.image((0, 232, 595, 642), scenes.city(), 78)
    c.rect((0, 642, 595, 650), fill=THEME.accent2)
    c.text(LEFT, 96, "Moving Veyford", 48, "#ffffff", bold=True)
    c.text(LEFT, 140, "Transport Plan 2030", 26, "#f4d9a8")
    c.paragraph(
        LEFT,
        160,
        420,
        "How a harbour city of 412,000 people wants to get to work, to school and home again.",
        12,
        "#dcebe3",
    )
    c.text(LEFT, 704, "Veyford Transport Authority", 14, "#ffffff", bold=True)
    c.text(LEFT, 724, "Adopted by the city council on 18 November 2025", 10.5, "#dcebe3", mark="adopted")
    c.text(LEFT, 800, "Harbour Road 4 · Veyford · plan@transport.veyford.example", 9, "#bcd6c8")


def _vision(c: Canvas) -> None:
    _head(c, 2)
    y = heading(c, LEFT, 62, "Where we want to be in 2030", "1  VISION")
    y = c.paragraph(
        LEFT,
        y,
        WIDTH,
        "On a working day the people of Veyford make 1.24 million trips. Ten years ago more than half of them "
        "were made by car. The plan sets one "
        "goal above all others: by 2030 the car shall carry less than a third of all trips, and nobody shall "
        "live more than [[walk|350 metres]] from "
        "a stop that is served until midnight.",
        10.2,
    )
    y += 14
    c.text(LEFT, y + 10, "Figure 1   How Veyford travels: share of all trips on a working day", 9.5, bold=True)
    rows = {"2015": (54, 24, 5, 17), "2020": (48, 25, 9, 18), "2025": (39, 31, 12, 18), "2030 goal": (31, 35, 16, 18)}
    shares(c, (LEFT, y + 26, RIGHT, y + 226), "modes", rows, ("Car", "Public transport", "Bicycle", "On foot"))
    y += 248
    cards(
        c,
        (LEFT, y, RIGHT, y + 84),
        "goals",
        [
            ("Trips a working day", "1.24 million", "survey of May 2025"),
            ("Tram and bus riders", "139 million", "in the year 2025"),
            ("Punctuality", "91.8%", "goal for 2030: 95%"),
        ],
        3,
    )
    y += 106
    c.text(LEFT, y + 12, "Four promises", 13, THEME.accent, bold=True)
    bullets(
        c,
        LEFT,
        y + 28,
        WIDTH,
        [
            "**Every ten minutes.** Trams and the six main bus lines run at least every ten minutes from six in "
            "the morning to nine in the evening.",
            "**Clean air.** The last diesel bus leaves service on [[lastdiesel|30 June 2029]]. Chapter 3 shows "
            "the fleet year by year.",
            "**Safe to school.** Around all 64 primary schools the speed limit becomes 20 km/h, with raised "
            "crossings instead of signs.",
            "**One ticket.** Ferry, tram, bus and shared bicycles on one card. The fares leaflet is attached as "
            "the last page.",
        ],
        10,
        6,
    )
    footnotes(
        c,
        LEFT,
        752,
        WIDTH,
        [
            "Household survey, 6,318 persons interviewed, margin of error 1.2 points. Trips by taxi "
            "([[taxi|0.8% in 2025]]) are counted as car trips. Ferry "
            "crossings are part of public transport.",
        ],
    )


def _station(
    c: Canvas,
    at: Point,
    name: str,
    dx: float = 0,
    dy: float = -9,
    align: str = "center",
    hub: bool = False,
    mark: str | None = None,
) -> None:
    c.circle(at, 6.5 if hub else 4.2, "#ffffff", "#22302a" if hub else "#55625b", 2.2 if hub else 1.4)
    c.text(at[0] + dx, at[1] + dy, name, 9.4 if hub else 8.2, bold=hub, align=align, mark=mark)


def _network(c: Canvas) -> None:
    _head(c, 3)
    y = heading(c, LEFT, 62, "The network in 2030", "2  NETWORK")
    top = y
    c.rect((LEFT, top, RIGHT, top + 420), fill="#f6f4ec", radius=6)
    c.polygon(
        [
            (LEFT, top + 300),
            (140, top + 318),
            (230, top + 304),
            (330, top + 330),
            (430, top + 318),
            (RIGHT, top + 344),
            (RIGHT, top + 420),
            (LEFT, top + 420),
        ],
        "#cfe4ee",
    )
    c.text(RIGHT - 16, top + 404, "Veyford Bay", 13, "#6a9bb5", italic=True, align="right")

    def p(x: float, dy: float) -> Point:
        return LEFT + x, top + dy

    c.polyline([p(40, 60), p(120, 60), p(210, 150), p(400, 150), p(466, 216)], RED, 6)
    c.polyline([p(210, 30), p(210, 262), p(278, 330)], BLUE, 6)
    c.polyline([p(40, 236), p(130, 236), p(216, 150), p(322, 44), p(440, 44)], GREEN, 6)
    c.polyline([p(320, 150), p(320, 250), p(400, 300)], GOLD, 6)
    c.polyline([p(278, 330), p(330, 386), p(452, 330)], "#4f7f9c", 2.5, "[5 4] 0")
    c.flush()
    _station(c, p(40, 60), "Millgate", 0, -11)
    _station(c, p(120, 60), "Botanic Garden", 0, -11)
    _station(c, p(165, 105), "Rope Street", -8, 4, "right")
    _station(c, p(210, 150), "Central Square", 12, 18, "left", True, "net/hub")
    _station(c, p(320, 150), "Old Customs House", 9, -8, "left")
    _station(c, p(400, 150), "Fairground", 10, -2, "left")
    _station(c, p(466, 216), "Airport", -4, 18)
    _station(c, p(210, 30), "University", 10, 3, "left", mark="net/blue-end")
    _station(c, p(210, 90), "Hospital", 10, 3, "left")
    _station(c, p(210, 210), "Town Hall", 10, 3, "left")
    _station(c, p(278, 330), "Ferry Pier", -12, 4, "right", True)
    _station(c, p(40, 236), "Westmarsh", 0, 17)
    _station(c, p(130, 236), "Brickfields", 0, 17)
    _station(c, p(322, 44), "Stadium", 0, -11)
    _station(c, p(440, 44), "Larkhill", 0, -11)
    _station(c, p(320, 250), "Quayside Depot", 10, -2, "left")
    _station(c, p(400, 300), "Shipyard Lofts", 10, 2, "left", mark="net/gold-end")
    _station(c, p(452, 330), "Gull Island", 2, 18)
    c.rect((LEFT + 12, top + 330, LEFT + 152, top + 410), fill="#ffffff", radius=5)
    for i, (colour, label) in enumerate(
        [
            (RED, "A  Millgate – Airport"),
            (BLUE, "B  University – Ferry Pier"),
            (GREEN, "C  Westmarsh – Larkhill"),
            (GOLD, "D  Shipyard branch (new)"),
        ]
    ):
        at = top + 346 + i * 15
        c.line((LEFT + 20, at - 3), (LEFT + 38, at - 3), colour, 4)
        c.text(LEFT + 44, at, label, 8)
    c.line((LEFT + 20, top + 401), (LEFT + 38, top + 401), "#4f7f9c", 2, "[4 3] 0")
    c.text(LEFT + 44, top + 404, "F  Ferry", 8)
    y = top + 440
    c.text(LEFT, y + 8, "Table 1   Lines, length and headway", 9.5, bold=True)
    rows = [
        ["Line", "Length, km", "Stops", "Daytime headway", "Evening headway", "Riders a day"],
        ["A", "14.2", "21", "6 min", "12 min", "96,400"],
        ["B", "9.7", "15", "5 min", "10 min", "88,100"],
        ["C", "12.8", "19", "8 min", "15 min", "61,700"],
        ["D (from 2028)", "3.4", "5", "10 min", "20 min", "14,000 expected"],
        ["F (ferry)", "2.1", "3", "30 min", "60 min", "5,200"],
    ]
    y = table(c, LEFT, y + 18, [96, 66, 52, 96, 96, 93], rows, "lines", aligns="lrrrrr")
    c.paragraph(
        LEFT,
        y + 14,
        WIDTH,
        "The new line D leaves line A at Old Customs House, passes the bus depot and ends among the new flats of "
        "the former shipyard. Its stops have "
        "platforms of 45 metres, so that two trams can be coupled during the [[fair|Lantern Fair]].",
        9.6,
    )


def _fleet(c: Canvas) -> None:
    _head(c, 4)
    y = heading(c, LEFT, 62, "A fleet without diesel", "3  BUSES")
    y = c.paragraph(
        LEFT,
        y,
        WIDTH,
        "The authority runs 318 buses. At the end of 2025 every third of them drove on electricity. Articulated "
        "buses follow from 2027, when the "
        "second charging hall is ready.",
        10.2,
    )
    y += 12
    c.text(LEFT, y + 10, "Figure 2   Buses in service at the end of the year", 9.5, bold=True)
    years = ("2022", "2023", "2024", "2025", "2026", "2027", "2028", "2029", "2030")
    series = {
        "Electric": (22, 41, 68, 106, 150, 204, 262, 318, 318),
        "Diesel": (290, 272, 247, 212, 168, 114, 56, 0, 0),
    }
    lines(
        c,
        (LEFT, y + 24, RIGHT, y + 274),
        "fleet",
        years,
        series,
        colours=(THEME.accent, "#8a8f98"),
        dashed={"Electric": 4, "Diesel": 4},
    )
    c.text(RIGHT, y + 34, "dashed: planned", 8, THEME.muted, align="right", italic=True)
    y += 296
    c.text(LEFT, y + 10, "Table 2   Depots", 9.5, bold=True)
    rows = [
        ["Depot", "Buses", "Charging points", "Power, MW", "Opened", "Electricity from"],
        ["Quayside", "124", "96", "7.2", "2024", "Tallowmere Energy"],
        ["Millgate", "98", "30", "2.4", "2022", "City grid"],
        ["Larkhill", "96", "72", "5.4", "2027 (planned)", "Roof and city grid"],
    ]
    y = table(c, LEFT, y + 20, [76, 54, 92, 70, 92, 115], rows, "depots", aligns="lrrrrl")
    y += 20
    x, top = panel(c, (LEFT, y, RIGHT, y + 136), "A day in the life of bus 4117")
    hours = [
        ("05:10", "leaves with 98%"),
        ("10:40", "20 min charge, 46%"),
        ("14:05", "driver changes"),
        ("19:30", "20 min charge, 38%"),
        ("00:25", "returns with 21%"),
    ]
    c.line((x + 30, top + 42), (RIGHT - 50, top + 42), THEME.accent, 2)
    for i, (hour, what) in enumerate(hours):
        at = x + 36 + i * 97
        c.circle((at, top + 42), 5, "#ffffff", THEME.accent2, 2)
        c.text(at, top + 26, hour, 10, bold=True, align="center", mark=f"day/{what}")
        c.text(at, top + 62, what, 8, THEME.muted, align="center")
    c.text(x, top + 90, "In one day bus 4117 drives 268 km on line 12 and uses 1.09 kWh for each of them.", 9)
    footnotes(
        c,
        LEFT,
        752,
        WIDTH,
        [
            "Reserve vehicles and the two museum buses are not counted. The diesel heaters of 19 electric buses "
            "are replaced by [[heater|heat pumps]] by 2027."
        ],
    )


def _budget(c: Canvas) -> None:
    _head(c, 5)
    y = heading(c, LEFT, 62, "What it costs and who pays", "4  BUDGET")
    c.text(LEFT, y + 8, "Table 3   Investment by programme, million euros", 9.5, bold=True)
    rows = [
        ["Programme", "2026", "2027", "2028", "2029", "2030", "Total"],
        ["Tram line D", "24.5", "38.0", "21.5", "4.0", "–", "88.0"],
        ["Electric buses and charging", "31.0", "33.5", "34.0", "32.5", "6.0", "137.0"],
        ["Cycle routes", "8.2", "9.4", "9.4", "9.0", "8.0", "44.0"],
        ["Safe crossings and schools", "3.6", "4.1", "4.1", "3.2", "2.0", "17.0"],
        ["Ferry piers", "1.5", "6.8", "5.7", "–", "–", "14.0"],
        ["Ticketing and data", "5.2", "3.8", "1.6", "1.2", "1.2", "13.0"],
        ["Sum", "74.0", "95.6", "76.3", "49.9", "17.2", "313.0"],
    ]
    y = table(c, LEFT, y + 18, [169, 54, 54, 54, 54, 54, 60], rows, "budget", aligns="lrrrrrr", bold_rows=(7,))
    y += 22
    c.text(LEFT, y + 10, "Figure 3   Sources of the money", 9.5, bold=True)
    sources = {"State grants": 44.0, "City budget": 27.0, "Green bond": 16.0, "Parking fees": 9.0, "Developers": 4.0}
    colours = (THEME.accent, THEME.accent2, "#e9b949", "#8fc1a9", "#8a8f98")
    c.rect((LEFT, y + 20, RIGHT, y + 236), fill=THEME.soft, radius=6)
    c.flush()
    donut(c, (LEFT + 132, y + 128), 76, "sources", sources, colours=colours, middle=("313", "million euros"))
    keys(c, LEFT + 282, y + 84, list(sources), colours, 10.5, 2.1)
    y += 258
    c.text(LEFT, y + 10, "How we decide", 13, THEME.accent, bold=True)
    y = bullets(
        c,
        LEFT,
        y + 26,
        WIDTH,
        [
            "A programme that becomes more than 10% dearer goes back to the council. In 2025 this happened once, "
            "with the pier at [[dearer|Gull Island]].",
            "Half of the parking fees are spent in the quarter in which they were paid.",
            "Money that is not called by 31 October flows into cycle routes of the following year.",
        ],
        10,
    )
    footnotes(
        c,
        LEFT,
        738,
        WIDTH,
        [
            "Prices of 2025, value added tax included. Running costs ([[running|€121.4 million]] in 2025) are "
            "not part of this table. Line D: the state pays 70% "
            "of the tracks but nothing for the vehicles.",
        ],
    )


def _timeline(c: Canvas) -> None:
    _head(c, 6)
    y = heading(c, LEFT, 62, "When it happens", "5  SCHEDULE")
    c.text(LEFT, y + 8, "Figure 4   Main projects by quarter", 9.5, bold=True)
    y += 24
    left, years = LEFT + 128, (2026, 2027, 2028, 2029, 2030)
    quarter = (RIGHT - left) / 20
    for i, year in enumerate(years):
        c.rect(
            (left + i * 4 * quarter, y, left + (i + 1) * 4 * quarter, y + 22),
            fill=THEME.accent if i % 2 == 0 else "#2f8465",
        )
        c.text(left + (i * 4 + 2) * quarter, y + 15, str(year), 10, "#ffffff", bold=True, align="center")
    projects = [
        ("Line D: permits", 0, 3, "#e9b949", "Q1–Q3 2026"),
        ("Line D: construction", 3, 10, THEME.accent2, "Q4 2026 – Q2 2028"),
        ("Line D: test runs", 10, 11, THEME.accent2, "Q3 2028"),
        ("Charging hall Larkhill", 1, 6, "#2d8a57", "Q2 2026 – Q2 2027"),
        ("Central Square rebuilt", 4, 9, "#2461a8", "Q1 2027 – Q1 2028"),
        ("New ferry piers", 5, 12, "#4f7f9c", "Q2 2027 – Q4 2028"),
        ("Cycle ring, north half", 0, 8, "#8fc1a9", "2026 – 2027"),
        ("Cycle ring, south half", 8, 17, "#8fc1a9", "Q1 2028 – Q1 2030"),
        ("Contactless ticket", 2, 4, "#8a8f98", "Q3–Q4 2026"),
    ]
    row = 29.0
    for i in range(6):
        c.line(
            (left + i * 4 * quarter, y + 22), (left + i * 4 * quarter, y + 26 + len(projects) * row), THEME.line, 0.5
        )
    for k, (name, start, end, colour, when) in enumerate(projects):
        at = y + 30 + k * row
        c.line((LEFT, at + row - 4), (RIGHT, at + row - 4), THEME.line, 0.5)
        c.text(LEFT, at + 14, name, 9, bold=True)
        c.rect((left + start * quarter, at, left + end * quarter, at + 18), fill=colour, radius=4)
        inside = (end - start) * quarter > 100
        x = left + (start + 0.3 if inside else end + 0.3) * quarter
        c.text(
            x,
            at + 12.5,
            when,
            8.2,
            "#ffffff" if inside and colour not in ("#8fc1a9", "#e9b949") else THEME.ink,
            mark=f"gantt/{name}",
        )
    y += 52 + len(projects) * row
    c.text(LEFT, y + 10, "Figure 5   From an idea to a building site", 9.5, bold=True)
    y += 26
    steps = [
        ("Idea", "anyone"),
        ("Check", "6 weeks"),
        ("Open house", "in the quarter"),
        ("Council vote", "twice a year"),
        ("Building site", "sign with phone no."),
    ]
    wide, gap = 83.0, 21.0
    for i, (step, note) in enumerate(steps):
        x = LEFT + i * (wide + gap)
        box(c, (x, y, x + wide, y + 38), step, fill=THEME.accent2 if i == 2 else THEME.accent, size=10, bold=True)
        c.text(x + wide / 2, y + 54, note, 8.5, THEME.muted, align="center", mark=f"idea/{step}")
        if i:
            c.arrow((x - gap + 3, y + 19), (x - 3, y + 19), THEME.accent2)
    y += 80
    x, top = panel(c, (LEFT, y, RIGHT, y + 104), "Who to ask")
    people = [
        ("Trams and line D", "Marit Osgood", "ext. 214"),
        ("Buses and depots", "Callum Reyes-Hart", "ext. 231"),
        ("Cycling and schools", "Yusra Denholm", "ext. 245"),
    ]
    for i, (what, who, ext) in enumerate(people):
        at = top + 14 + i * 19
        c.text(x, at, what, 9.6)
        c.text(x + 160, at, who, 9.6, bold=True, mark=f"who/{what}")
        c.text(x + 320, at, ext, 9.6, THEME.muted, mark=f"ext/{what}")
    footnotes(
        c,
        LEFT,
        762,
        WIDTH,
        [
            "Dates are the state of November 2025. Work on rails rests during the "
            "[[rest|Lantern Fair (9 to 17 August)]] each year."
        ],
    )


def _fares(c: Canvas) -> None:
    c.rect((30, 30, 565, 812), stroke="#333333", width=1.4)
    c.rect((30, 30, 565, 112), fill="#2c3a33")
    c.flush()
    c.text(50, 72, "FARES LEAFLET", 28, "#ffffff", bold=True)
    c.text(50, 96, "valid from 1 January 2026 · annex to the Transport Plan", 11, "#dddddd")
    c.text(545, 80, "VTA", 30, "#ffffff", bold=True, align="right")
    rows = [
        ["Ticket", "Zone 1", "Zones 1–2", "With ferry"],
        ["Single, 90 minutes", "€2.40", "€3.30", "€4.10"],
        ["Day ticket", "€5.80", "€7.60", "€9.20"],
        ["Day ticket, family of five", "€9.90", "€12.40", "€15.00"],
        ["Ten rides", "€20.00", "€28.50", "€36.00"],
        ["Month", "€49.00", "€63.00", "€71.00"],
        ["Month, under 19 or over 66", "€24.50", "€31.50", "€35.50"],
        ["Year", "€490.00", "€630.00", "€710.00"],
    ]
    y = table(c, 50, 134, [210, 95, 95, 95], rows, "fares", aligns="lrrr", size=11, pad=7, head_fill="#55635b")
    y += 26
    c.text(50, y + 10, "Good to know", 15, bold=True)
    y = bullets(
        c,
        50,
        y + 28,
        495,
        [
            "Children under six travel free of charge. A dog pays the price of a child; a guide dog pays nothing.",
            "Bicycles travel with you on trams [[bicycle|after 19:00]] and all day on Sundays. On the ferry a "
            "bicycle costs €1.20.",
            "A fine for travelling without a ticket is €60. It is lowered to [[fine|€7]] if you show a personal "
            "month ticket within ten days.",
            "Lost property is kept for [[lost|six weeks]] at the Central Square office, first floor.",
        ],
        11.5,
        8,
    )
    y += 14
    c.rect((50, y, 545, y + 116), stroke="#333333", width=1, radius=4)
    c.text(64, y + 26, "Customer office, Central Square 1", 13, bold=True)
    c.text(64, y + 50, "Monday to Friday  07:00 – 19:00", 11.5)
    c.text(64, y + 70, "Saturday  09:00 – 14:00", 11.5, mark="saturday")
    c.text(64, y + 96, "Telephone  0800 555 0147 (free, from 06:00 to 22:00)", 11.5, mark="phone")
    footnotes(
        c,
        50,
        y + 140,
        495,
        [
            "Refunds: a month or year ticket can be returned until the [[refund|fifth day]] of its validity; a "
            "handling fee of [[fee|€3.50]] is kept. "
            "Single and ten-ride tickets are not taken back. If a tram or bus reaches its stop more than 20 "
            "minutes late, the authority pays back half "
            "of the single fare; apply within 14 days. Prices include value added tax. The conditions of "
            "carriage of 12 December 2025 apply.",
        ],
        9,
    )
    c.text(50, 798, "Form 17-B · 11/2025", 8, THEME.muted)
