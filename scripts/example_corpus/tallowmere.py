"""Annual report of an invented wind power company (English, A4)."""

from __future__ import annotations

from . import scenes
from .blocks import box, bullets, cards, footnotes, heading, page_head, panel, table
from .canvas import A4, Book, Canvas, Theme, smooth
from .charts import columns, donut, keys

THEME = Theme(
    ink="#1d2b36",
    muted="#6a7a86",
    accent="#0b4f6c",
    accent2="#e08e2b",
    line="#d3dde3",
    soft="#eef4f6",
    palette=("#0b4f6c", "#2f8f9d", "#e0a33a", "#9fb8c4", "#c9d7de"),
)
LEFT, RIGHT = 48.0, 547.0
WIDTH = RIGHT - LEFT
YEARS = ("2021", "2022", "2023", "2024", "2025")
REVENUE = {
    "Offshore": (148.2, 171.5, 190.4, 214.8, 243.9),
    "Onshore": (96.0, 99.3, 97.1, 101.6, 98.4),
    "Storage": (8.5, 14.9, 22.6, 31.2, 43.7),
    "Services": (19.1, 20.8, 22.5, 24.3, 26.6),
}
FARMS = (
    ("1", "Skerrow Bank", "Offshore", "48", "432", "2019", "119 m"),
    ("2", "Dunholt Ridge", "Onshore", "62", "217", "2014", "94 m"),
    ("3", "Marsk Point", "Offshore", "36", "342", "2022", "131 m"),
    ("4", "Fallow Moor", "Onshore", "39", "135", "2017", "100 m"),
)


def build() -> Book:
    book = Book(
        "tallowmere_annual_report_2025.pdf",
        "Tallowmere Energy – Annual Report 2025",
        "Tallowmere Energy plc",
        THEME,
        A4,
    )
    for draw in (_cover, _glance, _revenue, _farms, _income, _people, _outlook):
        draw(book.page())
    return book


def _head(c: Canvas, page: int) -> None:
    page_head(c, "Tallowmere Energy plc", "Annual Report 2025", page)


def _cover(c: Canvas) -> None:
    c.image((0, 0, 595, 842), scenes.wind_farm(), 74)
    c.rect((0, 596, 595, 842), fill="#08222f", opacity=0.55)
    c.rect((LEFT, 640, LEFT + 54, 644), fill="#f0b04a")
    c.flush()
    c.text(LEFT, 84, "TALLOWMERE", 19, "#ffffff", bold=True)
    c.text(LEFT, 104, "E N E R G Y", 12, "#e7eef2")
    c.text(LEFT, 700, "Annual Report", 46, "#ffffff", bold=True)
    c.text(LEFT, 744, "2025", 40, "#f0b04a", bold=True)
    c.text(LEFT, 786, "Power from weather, kept for later.", 14, "#e7eef2", italic=True)
    c.text(RIGHT, 812, "Financial year ended 31 December 2025", 9, "#c8d6de", align="right")


def _glance(c: Canvas) -> None:
    _head(c, 2)
    y = heading(c, LEFT, 62, "The year at a glance", "2025 IN FIGURES")
    cards(
        c,
        (LEFT, y, RIGHT, y + 222),
        "kpi",
        [
            ("Revenue", "€412.6 million", "+10.9% on 2024"),
            ("Electricity generated", "3.84 TWh", "enough for 1.1 million homes"),
            ("Installed capacity", "1,126 MW", "185 turbines at four sites"),
            ("Turbine availability", "96.3%", "95.1% in 2024"),
            ("Employees", "1,348", "full-time equivalents, year end"),
            ("Lost-time injuries", "0.42", "per 200,000 hours worked"),
        ],
        2,
    )
    y += 248
    c.text(LEFT, y + 12, "From the chair", 14, THEME.accent, bold=True)
    y += 26
    y = c.paragraph(
        LEFT,
        y,
        318,
        "The wind over our seas was weaker than in any year since we began to measure, and yet we generated more "
        "electricity than ever. "
        "The credit belongs to our technicians: unplanned standstill fell by a quarter after every turbine at "
        "Skerrow Bank received "
        "[[bearing|new main bearings]] during the spring campaign.\n\n"
        "Storage has stopped being an experiment. The battery at [[battery|Gillhaven]], 90 MW for four hours, "
        "earned its first full year of "
        "revenue and paid back its grid connection in eleven months.\n\n"
        "In September we signed the largest charging contract in our history, with the transport authority of "
        "the city of Veyford. "
        "You will find it, with our other customers, on page 7.",
        9.8,
    )
    c.text(LEFT, y + 22, "Ines Thorvald", 10.5, bold=True, mark="chair")
    c.text(LEFT, y + 36, "Chair of the Board", 9, THEME.muted)
    x, top = panel(c, (388, 378, RIGHT, 562), "In this report")
    entries = [
        ("Revenue", 3),
        ("Our wind farms", 4),
        ("Income statement", 5),
        ("People", 6),
        ("Customers and outlook", 7),
    ]
    for i, (title, page) in enumerate(entries):
        at = top + 16 + i * 27
        c.text(x, at, title, 9.5)
        c.text(RIGHT - 14, at, str(page), 9.5, THEME.accent, bold=True, align="right")
        c.line((x, at + 8), (RIGHT - 14, at + 8), THEME.line, 0.6)
    c.rect((388, 578, RIGHT, 700), fill=THEME.accent, radius=6)
    c.flush()
    c.paragraph(
        402,
        592,
        132,
        "“We no longer sell wind. We sell the hour at which you need it.”",
        12.5,
        "#ffffff",
        italic=True,
        leading=1.35,
    )
    c.text(402, 686, "Ines Thorvald", 8.5, "#cfe0e8")
    footnotes(
        c,
        LEFT,
        748,
        WIDTH,
        [
            "Availability is the share of hours in which a turbine was ready to run, weighted by capacity. The "
            "number of homes assumes a "
            "consumption of [[home|3,490 kWh per household]] and year.",
        ],
    )


def _revenue(c: Canvas) -> None:
    _head(c, 3)
    y = heading(c, LEFT, 62, "Revenue by segment", "BUSINESS REVIEW")
    y = c.paragraph(
        LEFT,
        y,
        WIDTH,
        "Group revenue rose to €412.6 million. Offshore wind remains the largest segment; storage grew fastest "
        "and has become five times as large "
        "as it was in 2021. Onshore revenue fell because Dunholt Ridge stood still for seven weeks while its "
        "substation was rebuilt.",
        10,
    )
    y += 12
    c.text(LEFT, y + 10, "Figure 1   Revenue by segment, € million", 9.5, bold=True)
    columns(
        c,
        (LEFT, y + 22, RIGHT, y + 370),
        "rev",
        YEARS,
        REVENUE,
        stacked=True,
        totals=True,
        fmt=lambda v: f"{v:.1f}",
        size=9,
        bar=0.6,
    )
    y += 394
    c.text(LEFT, y + 10, "Table 1   Change on the previous year", 9.5, bold=True)
    rows = [["Segment", "2024, € million", "2025, € million", "Change", "Share of group"]]
    for name, values in REVENUE.items():
        change = (values[4] / values[3] - 1) * 100
        rows.append([name, f"{values[3]:.1f}", f"{values[4]:.1f}", f"{change:+.1f}%", f"{values[4] / 4.126:.1f}%"])
    rows.append(["Group", "371.9", "412.6", "+10.9%", "100.0%"])
    y = table(c, LEFT, y + 20, [130, 95, 95, 85, 94], rows, "segments", aligns="lrrrr", bold_rows=(5,))
    footnotes(
        c,
        LEFT,
        y + 14,
        WIDTH,
        [
            "Storage revenue in 2025 includes a one-off compensation of [[kelm|€3.1 million]] paid by the "
            "operator of the Kelm interconnector for "
            "the outage of 4 to 19 February. Without it the segment would have grown by 30.1%.",
            "Figures are rounded; sums may differ from the total by one in the last digit.",
        ],
    )


def _farms(c: Canvas) -> None:
    _head(c, 4)
    y = heading(c, LEFT, 62, "Our wind farms", "WHERE WE WORK")
    frame = (LEFT, y, RIGHT, y + 340)
    c.rect(frame, fill="#cfe3ec", radius=4)
    coast = [
        (LEFT, y + 250),
        (92, y + 232),
        (128, y + 262),
        (176, y + 226),
        (214, y + 150),
        (262, y + 120),
        (300, y + 158),
        (352, y + 150),
    ]
    coast += [(388, y + 92), (430, y + 74), (462, y + 30), (500, y)]
    c.polygon([*smooth(coast), (RIGHT, y), (RIGHT, y + 340), (LEFT, y + 340)], "#f3efe2", "#b9ad8c", 1)
    c.curve([(396, y + 340), (372, y + 262), (330, y + 216), (300, y + 160)], "#9cc4d8", 3)
    c.polyline([(150, y + 338), (252, y + 282), (352, y + 246), (RIGHT - 4, y + 226)], "#b7a98a", 1.4, "[5 3] 0")
    c.flush()
    c.text(LEFT + 26, y + 76, "North Tallow Sea", 15, "#5d8ba3", italic=True)
    c.text(470, y + 318, "KELM COUNTY", 9, "#a3946c")
    c.text(306, y + 292, "River Orla", 7.5, "#6b9bb3", italic=True)
    spots = {"1": (166, y + 118), "2": (438, y + 176), "3": (322, y + 70), "4": (226, y + 232)}
    for number, name, kind, _, capacity, *_ in FARMS:
        x, at = spots[number]
        colour = THEME.accent if kind == "Offshore" else THEME.accent2
        c.circle((x, at), 13, colour, "#ffffff", 1.5)
        c.text(x, at + 4, number, 11, "#ffffff", bold=True, align="center")
        c.text(x + 18, at, name, 10, bold=True, mark=f"map/{number}")
        c.text(x + 18, at + 12, f"{capacity} MW", 8.5, THEME.muted)
    for x, at, name in ((306, y + 176, "Lunde"), (92, y + 290, "Veyford"), (472, y + 104, "Gillhaven")):
        c.rect((x - 3, at - 3, x + 3, at + 3), fill="#4a3f28")
        c.text(x + 7, at + 3, name, 9)
    c.text(LEFT + 30, y + 330, "0        20       40 km", 7, THEME.muted)
    c.polyline(
        [(LEFT + 30, y + 320), (LEFT + 30, y + 324), (LEFT + 106, y + 324), (LEFT + 106, y + 320)], THEME.muted, 1
    )
    c.rect((LEFT + 12, y + 12, LEFT + 92, y + 46), fill="#ffffff", radius=4)
    keys(c, LEFT + 22, y + 27, ["Offshore", "Onshore"], [THEME.accent, THEME.accent2], 8, 1.6)
    y += 362
    c.text(LEFT, y + 10, "Table 2   Sites at year end", 9.5, bold=True)
    rows = [["No.", "Wind farm", "Type", "Turbines", "Capacity, MW", "Commissioned", "Hub height"]]
    table_rows = [[f[0], f[1], f[2], f[3], f[4], f[5], f[6]] for f in FARMS]
    for row in table_rows:
        row[3], row[4], row[5], row[6] = (
            f"[[farm/{row[1]}/{k}|{v}]]" for k, v in zip(("turbines", "mw", "year", "hub"), row[3:], strict=True)
        )
    rows += table_rows
    rows.append(["", "Total", "", "185", "1,126", "", ""])
    y = table(c, LEFT, y + 20, [36, 112, 76, 62, 76, 76, 61], rows, "sites", aligns="lllrrrr", bold_rows=(5,))
    c.paragraph(
        LEFT,
        y + 16,
        WIDTH,
        "Fallow Moor shares its access road with the peat restoration of Kelm County. Heavy transports are allowed "
        "[[transports|from August to October]] only, when the cranes have left their nests.",
        9.5,
    )
    c.image((LEFT, y + 50, RIGHT, y + 158), scenes.wind_farm(1100, 400, 9).crop((0, 28, 1100, 266)), 72)
    c.text(
        LEFT,
        y + 169,
        "Skerrow Bank, seen from the service vessel on the morning of 3 October 2025.",
        7.5,
        THEME.muted,
        italic=True,
    )


def _income(c: Canvas) -> None:
    _head(c, 5)
    y = heading(c, LEFT, 62, "Income statement", "FINANCIAL STATEMENTS")
    rows = [
        ["€ million", "Note", "2025", "2024"],
        ["Revenue", "1", "412.6", "371.9"],
        ["Cost of operations", "2", "(168.4)", "(157.2)"],
        ["Depreciation", "3", "(92.7)", "(88.3)"],
        ["Gross profit", "", "151.5", "126.4"],
        ["Administrative expenses", "", "(38.9)", "(36.0)"],
        ["Research and development", "4", "(11.8)", "(8.5)"],
        ["Other income", "", "5.6", "2.7"],
        ["Operating profit", "", "106.4", "84.6"],
        ["Finance costs", "5", "(21.3)", "(23.8)"],
        ["Profit before tax", "", "85.1", "60.8"],
        ["Income tax", "6", "(18.7)", "(13.4)"],
        ["Profit for the year", "", "66.4", "47.4"],
        ["Earnings per share, €", "7", "0.83", "0.59"],
    ]
    y = table(
        c,
        LEFT,
        y,
        [289, 50, 80, 80],
        rows,
        "income",
        aligns="lcrr",
        size=9.8,
        pad=6,
        bold_rows=(4, 8, 10, 12),
        zebra=False,
    )
    y += 20
    c.text(LEFT, y + 11, "Notes", 12, THEME.accent, bold=True)
    y += 22
    notes = [
        "**1** Revenue is recognised when electricity is delivered. Of the total, 61% came from contracts of "
        "more than five years.",
        "**2** Includes €14.2 million for the replacement of main bearings at Skerrow Bank.",
        "**3** Turbines are written off over [[life|25 years]], batteries over 12 years, substations over 40 years.",
        "**4** Mainly the trial of blades made of flax fibre with the Ashgrove Institute of Materials.",
        "**5** The green bond of €180 million carries [[coupon|3.25%]] and falls due in [[due|May 2031]].",
        "**6** The effective tax rate was 22.0% (2024: 22.0%).",
        "**7** Based on [[shares|80.0 million]] shares on average (2024: 80.3 million).",
    ]
    for note in notes:
        y = c.paragraph(LEFT, y, WIDTH, note, 9, leading=1.35) + 4
    footnotes(
        c,
        LEFT,
        748,
        WIDTH,
        [
            "Figures in brackets are deductions. Audited by [[auditor|Wexley Crome Audit]], Lunde; the opinion "
            "was signed on 27 February 2026."
        ],
    )


def _people(c: Canvas) -> None:
    _head(c, 6)
    y = heading(c, LEFT, 62, "People", "ORGANISATION")
    c.paragraph(
        LEFT,
        y,
        WIDTH,
        "Since July 2025 the company has been organised in four divisions. Health and safety reports to the "
        "chief executive directly.",
        10,
    )
    y += 38

    def node(x: float, top: float, role: str, name: str, mark: str, wide: float = 112, strong: bool = False) -> None:
        fill = THEME.accent if strong else THEME.soft
        c.rect((x - wide / 2, top, x + wide / 2, top + 44), fill=fill, stroke=THEME.accent, width=0.8, radius=5)
        c.text(x, top + 18, name, 9.5, "#ffffff" if strong else THEME.ink, bold=True, align="center", mark=mark)
        c.text(x, top + 33, role, 8, "#d6e4ea" if strong else THEME.muted, align="center")

    middle, top = (LEFT + RIGHT) / 2, y
    xs = [LEFT + 58 + i * 127.6 for i in range(4)]
    c.line((middle, top + 44), (middle, top + 106), THEME.accent, 1)
    c.line((middle, top + 75), (middle + 110, top + 75), THEME.accent, 1)
    c.line((xs[0], top + 106), (xs[3], top + 106), THEME.accent, 1)
    for x in xs:
        c.line((x, top + 106), (x, top + 120), THEME.accent, 1)
    c.flush()
    node(middle, top, "Chief Executive", "Rurik Aldane", "ceo", 130, True)
    node(middle + 166, top + 53, "Health and safety", "Pella Winsor", "safety")
    people = [
        ("Offshore", "Joss Merrin"),
        ("Onshore", "Adaeze Quill"),
        ("Storage", "Tomas Eskel"),
        ("Services", "Liv Harrowby"),
    ]
    for x, (role, name) in zip(xs, people, strict=True):
        node(x, top + 120, role, name, f"head/{role}")
    teams = [
        ("Marine logistics", "Blade repair"),
        ("Site operations", "Land and nature"),
        ("Trading desk", "Battery plants"),
        ("Training centre", "Spare parts"),
    ]
    for x, pair in zip(xs, teams, strict=True):
        c.line((x - 44, top + 164), (x - 44, top + 222), THEME.line, 1)
        for i, team in enumerate(pair):
            at = top + 188 + i * 30
            c.line((x - 44, at + 4), (x - 36, at + 4), THEME.line, 1)
            c.text(x - 32, at + 7, team, 8.5)
    y = top + 256
    c.text(LEFT, y + 10, "Figure 2   Employees by function, 31 December 2025", 9.5, bold=True)
    area = (LEFT, y + 20, RIGHT, y + 240)
    functions = {"Technicians": 46.0, "Engineering": 21.0, "Vessel crews": 14.0, "Administration": 12.0, "Trading": 7.0}
    with c.picture(area, 150, 86) as p:
        p.rect(area, fill=THEME.soft, radius=6)
        colours = ("#0b4f6c", "#2f8f9d", "#e0a33a", "#8aa6b4", "#b5532c")
        donut(p, (LEFT + 130, y + 130), 78, "functions", functions, colours=colours, middle=("1,348", "employees"))
        keys(p, LEFT + 280, y + 84, list(functions), colours, 11, 2.1)
    y += 262
    bullets(
        c,
        LEFT,
        y,
        WIDTH,
        [
            "Women hold 38% of leadership posts (2024: 33%). The goal for 2028 is 45%.",
            "Every technician trains [[training|64 hours]] a year at the centre in Gillhaven, among them two "
            "days of rescue at sea.",
            "Staff turnover fell from 9.4% to 7.1%.",
        ],
        9.6,
    )


def _outlook(c: Canvas) -> None:
    _head(c, 7)
    y = heading(c, LEFT, 62, "Customers and outlook", "LOOKING AHEAD")
    c.text(LEFT, y + 8, "Table 3   Largest supply contracts", 9.5, bold=True)
    rows = [
        ["Customer", "Purpose", "GWh per year", "Runs until"],
        ["Port of Lunde", "Shore power for ships", "52.0", "2031"],
        ["Veyford Transport Authority", "Charging of electric buses, Quayside depot", "38.0", "2034"],
        ["Orla Valley Dairies", "Refrigeration", "17.4", "2028"],
        ["Ashgrove Institute of Materials", "Laboratories and furnaces", "6.5", "2029"],
    ]
    y = table(c, LEFT, y + 18, [160, 199, 75, 65], rows, "contracts", aligns="llrr")
    y += 20
    c.text(LEFT, y + 10, "Figure 3   How a windy night becomes a morning's bus ride", 9.5, bold=True)
    y += 24
    steps = [
        ("Wind farm", "01:00"),
        ("Battery\nGillhaven", "03:00"),
        ("Trading desk", "04:30"),
        ("Quayside depot", "05:10"),
        ("Bus on line 12", "06:02"),
    ]
    wide, gap = 83.0, 21.0
    for i, (step, time) in enumerate(steps):
        x = LEFT + i * (wide + gap)
        box(c, (x, y, x + wide, y + 46), step, fill=THEME.accent if i % 2 == 0 else "#2f8f9d", size=9.5, bold=True)
        c.text(x + wide / 2, y + 62, time, 9, THEME.muted, align="center", mark=f"night/{step}")
        if i:
            c.arrow((x - gap + 3, y + 23), (x - 3, y + 23), THEME.accent2)
    y += 88
    c.text(LEFT, y + 11, "What we expect in 2026", 12, THEME.accent, bold=True)
    y = bullets(
        c,
        LEFT,
        y + 24,
        WIDTH,
        [
            "Revenue between **€430 and €445 million**, with the same wind as in an average year.",
            "Investments of about [[capex|€95 million]], two thirds of them in a second battery at Dunholt Ridge.",
            "A decision in the fourth quarter on extending Marsk Point by twelve turbines.",
            "Fewer than 0.40 lost-time injuries per 200,000 hours worked.",
        ],
        10,
    )
    x, top = panel(c, (LEFT, y + 10, RIGHT, y + 118), "Calendar for shareholders")
    dates = [
        ("Annual general meeting", "12 May 2026"),
        ("Dividend paid", "19 June 2026"),
        ("Half-year report", "20 August 2026"),
    ]
    for i, (event, date) in enumerate(dates):
        at = top + 16 + i * 22
        c.text(x, at, event, 9.8)
        c.text(x + 190, at, date, 9.8, bold=True, mark=f"dates/{event}")
    c.rect((x + 310, top - 14, RIGHT - 14, top + 62), fill=THEME.accent2, radius=6)
    c.text(x + 388, top + 10, "Proposed dividend", 9.5, "#ffffff", align="center")
    c.text(x + 388, top + 34, "€0.34", 22, "#ffffff", bold=True, align="center", mark="dividend")
    c.text(x + 388, top + 52, "per share", 9, "#ffffff", align="center")
    footnotes(
        c,
        LEFT,
        706,
        WIDTH,
        [
            "This page looks ahead. What we expect depends on wind, prices, interest rates and permits and may "
            "not come to pass. The company does not "
            "undertake to update it between reports. Supply contracts are subject to adjustment: from the third "
            "year on, prices follow the index of "
            "the electricity exchange, but rise by no more than [[cap|2.4% a year]]. Customers may end a "
            "contract early with a notice of "
            "[[notice|eighteen months]].",
            "Questions about this report: investors@tallowmere.example · Printed on paper from managed forests.",
        ],
    )
