"""Standalone images: a timetable, a tide chart, a floor plan, a museum notice and a trail map."""

from __future__ import annotations

import math
from itertools import pairwise

from . import scenes
from .blocks import table
from .canvas import Canvas, Point, Poster, Scan, Theme
from .charts import default_format, grid

SEA = Theme("#16324a", "#5c7488", "#0f4c75", "#e8743b", "#cfdde6", "#eaf3f8", ("#0f4c75", "#3a9bc1", "#e8743b"))
PLAN = Theme("#2b2d42", "#74747c", "#2b2d42", "#2d8a57", "#c9cbd3", "#f4f4f6", ("#2b2d42", "#c0392b", "#2d8a57"))
HALL = Theme("#33241a", "#7d6a58", "#8c2f23", "#b98a3e", "#d9c9b0", "#f7efdf", ("#8c2f23", "#b98a3e"), "#fbf5e8")
TRAIL = Theme(
    "#26352c", "#66756b", "#2f6b4a", "#d9682b", "#cfd9cf", "#eef4ec", ("#2f6b4a", "#d9682b", "#2a6fa8"), "#fbfcf7"
)


def build() -> list[Poster]:
    return [_ferry(), _tides(), _floor_plan(), _museum(), _trail()]


def _ferry() -> Poster:
    poster = Poster("veyford_ferry_timetable.png", SEA, (640, 860), 130)
    c = poster.canvas
    c.rect((0, 0, 640, 150), fill=SEA.accent)
    for k in range(3):
        wave = [(-10 + i * 33.0, 138 + k * 9 + (6 if i % 2 else -2)) for i in range(21)]
        c.curve(wave, ("#3a9bc1", "#7cc0d8", "#cfe6ef")[k], 4)
    c.polygon([(482, 96), (598, 96), (580, 122), (500, 122)], "#ffffff")
    c.rect((508, 74, 560, 96), fill="#e8743b")
    c.rect((520, 58, 532, 74), fill="#ffffff")
    c.text(40, 66, "Line F · Ferry", 34, "#ffffff", bold=True)
    c.text(40, 98, "Ferry Pier – Gull Island – Shipyard Lofts", 15, "#d3e6f1")
    c.text(40, 196, "Summer timetable 1 May to 30 September 2026", 17, bold=True)
    rows = [
        ["Ferry Pier", "Gull Island", "Shipyard Lofts", "Runs"],
        ["06:15", "06:27", "06:36", "Monday to Friday"],
        ["07:15", "07:27", "07:36", "Monday to Friday"],
        ["08:45", "08:57", "09:06", "daily"],
        ["10:45", "10:57", "11:06", "daily"],
        ["13:15", "13:27", "13:36", "daily"],
        ["15:45", "15:57", "16:06", "daily"],
        ["17:30", "17:42", "17:51", "daily"],
        ["19:30", "19:42", "19:51", "daily"],
        ["22:10", "22:22", "–", "Friday and Saturday"],
    ]
    y = table(c, 40, 216, [120, 130, 140, 170], rows, "times", size=14.5, pad=9)
    y += 30
    c.text(40, y + 12, "Please note", 17, SEA.accent, bold=True)
    notes = [
        "At wind force [[wind|8]] and above the ferry stays in port; a bus replaces it.",
        "Each crossing takes 24 bicycles. Groups of more than 15 people register by the [[group|day before]].",
        "The ramp at Gull Island is steep for wheelchairs at low tide; the crew will help.",
    ]
    y += 30
    for note in notes:
        c.circle((45, y + 7), 3, SEA.accent2)
        y = c.paragraph(58, y, 540, note, 13, leading=1.4) + 7
    c.rect((40, 776, 600, 826), fill=SEA.soft, radius=8)
    c.text(56, 807, "Harbour information", 14)
    c.text(584, 808, "0800 555 0162", 20, SEA.accent, bold=True, align="right", mark="phone")
    c.text(40, 846, "Veyford Transport Authority · prices: see the fares leaflet", 9.5, SEA.muted)
    return poster


def _tides() -> Poster:
    poster = Poster("lunde_harbour_tides.png", SEA, (900, 560), 110)
    c = poster.canvas
    c.text(40, 58, "Tides at Lunde harbour, Saturday 13 June 2026", 26, bold=True)
    c.text(40, 84, "Water level above chart datum in metres, hours in local time", 13, SEA.muted)
    box = (80.0, 122.0, 860.0, 440.0)
    grid(c, box, 5.0, 1.0, default_format, 12)
    turns = [(-2.9, 4.3), (3.4, 0.8), (9.6, 4.1), (15.7, 1.1), (21.9, 4.6), (28.1, 0.7)]

    def level(hour: float) -> float:
        for (t0, h0), (t1, h1) in pairwise(turns):
            if t0 <= hour <= t1:
                return (h0 + h1) / 2 + (h0 - h1) / 2 * math.cos(math.pi * (hour - t0) / (t1 - t0))
        raise ValueError(hour)

    def place(hour: float) -> Point:
        return box[0] + (box[2] - box[0]) * hour / 24, box[3] - (box[3] - box[1]) * level(hour) / 5

    curve = [place(i / 8) for i in range(24 * 8 + 1)]
    c.polygon([*curve, (box[2], box[3]), (box[0], box[3])], "#cfe6f1")
    c.polyline(curve, SEA.accent, 3)
    for hour in range(0, 25, 3):
        x = box[0] + (box[2] - box[0]) * hour / 24
        c.line((x, box[3]), (x, box[3] + 5), SEA.muted, 1)
        c.text(x, box[3] + 22, f"{hour:02d}:00", 12, align="center")
    c.polyline(
        [(box[0], box[3] - (box[3] - box[1]) * 1.5 / 5), (box[2], box[3] - (box[3] - box[1]) * 1.5 / 5)],
        SEA.accent2,
        1.6,
        "[7 4] 0",
    )
    c.text(
        box[2] - 6,
        box[3] - (box[3] - box[1]) * 1.5 / 5 - 6,
        "1.5 m",
        12,
        SEA.accent2,
        bold=True,
        align="right",
        mark="limit",
    )
    c.flush()
    for (hour, height), clock, kind in zip(
        turns[1:5], ("03:24", "09:36", "15:42", "21:54"), ("low", "high", "low", "high"), strict=True
    ):
        x, y = place(hour)
        c.circle((x, y), 6, "#ffffff", SEA.accent, 2.5)
        up = kind == "high"
        c.text(x, y - 30 if up else y + 24, clock, 15, bold=True, align="center", mark=f"time/{clock}")
        c.text(x, y - 13 if up else y + 41, f"{height:.1f} m", 13, SEA.accent, align="center", mark=f"height/{clock}")
    c.rect((40, 484, 860, 536), fill=SEA.soft, radius=8)
    c.text(
        58,
        506,
        "Orange line: ships with a draught of more than 6.2 metres wait outside while the level is below it.",
        13,
        mark="draught",
    )
    c.text(58, 526, "Sunrise 04:31 · sunset 21:47 · water 14 °C · spring tide", 12, SEA.muted, mark="sun")
    return poster


def _room(c: Canvas, box: tuple[float, float, float, float], number: str, name: str, fill: str = "#ffffff") -> None:
    c.rect(box, fill=fill, stroke=PLAN.ink, width=2.2)
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    c.text(x, y - 2, number, 14, bold=True, align="center", mark=f"number/{name}")
    c.text(x, y + 15, name, 11, PLAN.muted, align="center", mark=f"room/{number}")


def _floor_plan() -> Poster:
    poster = Poster("ashgrove_floor_plan.png", PLAN, (920, 620), 115)
    c = poster.canvas
    c.text(36, 52, "Ashgrove Institute of Materials · East wing, ground floor", 23, bold=True)
    c.text(36, 76, "Escape and fire protection plan · drawn January 2026", 12, PLAN.muted)
    c.rect((36, 100, 884, 500), fill="#e8e9ee", stroke=PLAN.ink, width=4)
    rooms = [
        ((36, 100, 196, 250), "E 001", "Reception", "#ffffff"),
        ((196, 100, 376, 250), "E 002", "Microscopy", "#e3eef8"),
        ((376, 100, 556, 250), "E 003", "X-ray laboratory", "#fdeecb"),
        ((556, 100, 716, 250), "E 004", "Sample store", "#ffffff"),
        ((716, 100, 884, 250), "E 005", "Gas bottles", "#f9d9d3"),
        ((36, 340, 236, 500), "E 006", "Lecture room", "#ffffff"),
        ((236, 340, 426, 500), "E 007", "Furnace hall", "#fdeecb"),
        ((426, 340, 606, 500), "E 008", "Mechanical tests", "#e3eef8"),
        ((606, 340, 736, 500), "E 009", "Kitchen", "#ffffff"),
        ((736, 340, 884, 500), "E 010", "Workshop", "#ffffff"),
    ]
    for box, number, name, fill in rooms:
        _room(c, box, number, name, fill)
    c.flush()
    for box, *_ in rooms:
        upper = box[1] < 200
        x, y = box[0] + 34, box[3] if upper else box[1]
        c.line((x, y), (x + 30, y), "#e8e9ee", 4)
        c.line((x, y), (x + 21, y - 21 if upper else y + 21), PLAN.muted, 1.4)
    c.line((36, 272), (36, 318), "#ffffff", 7)
    c.line((884, 272), (884, 318), "#ffffff", 7)
    for a, b in (((440, 295), (110, 295)), ((480, 295), (810, 295))):
        c.arrow(a, b, PLAN.accent2, 4, 16)
    for x, align, label in ((48, "left", "EXIT A"), (872, "right", "EXIT B")):
        c.rect(
            (x - (0 if align == "left" else 58), 262, x + (58 if align == "left" else 0), 284),
            fill=PLAN.accent2,
            radius=3,
        )
        c.text(x + (29 if align == "left" else -29), 278, label, 12, "#ffffff", bold=True, align="center")
    for x, y in ((212, 264), (590, 264), (420, 328), (752, 328)):
        c.rect((x - 9, y - 9, x + 9, y + 9), fill="#c0392b", radius=3)
        c.text(x, y + 4, "F", 12, "#ffffff", bold=True, align="center")
    for x, y in ((366, 264), (596, 328)):
        c.rect((x - 9, y - 9, x + 9, y + 9), fill=PLAN.accent2, radius=3)
        c.text(x, y + 4, "+", 15, "#ffffff", bold=True, align="center")
    legend = [("#c0392b", "F", "Fire extinguisher (4)"), (PLAN.accent2, "+", "First aid box (2)")]
    for i, (colour, sign, label) in enumerate(legend):
        x = 36 + i * 190
        c.rect((x, 522, x + 18, 540), fill=colour, radius=3)
        c.text(x + 9, 536, sign, 12, "#ffffff", bold=True, align="center")
        c.text(x + 26, 536, label, 12)
    c.text(430, 536, "Assembly point: car park under the lime trees", 13, bold=True, mark="assembly")
    c.text(
        36,
        572,
        "In case of fire: keep calm, close doors, do not use the lift. Anyone in E 003 presses the red mushroom "
        "button before leaving.",
        12,
        mark="mushroom",
    )
    c.text(
        36,
        594,
        "Responsible for this floor: Samir Okonedo, extension 7233. Next drill: 21 April 2026, 10:15.",
        12,
        PLAN.muted,
        mark="drill",
    )
    return poster


def _museum() -> Poster:
    poster = Poster(
        "yunting_museum_notice.jpg", HALL, (620, 840), 120, Scan(angle=-1.1, noise=4, colour=True, blur=0.5)
    )
    c = poster.canvas
    c.rect((0, 0, 620, 840), fill="#b9a68a")
    c.rect((36, 40, 592, 812), fill="#8f7c62")
    c.rect((28, 30, 584, 802), fill=HALL.paper)
    c.rect((42, 44, 570, 788), stroke=HALL.accent, width=2)
    c.rect((42, 44, 570, 164), fill=HALL.accent)
    for x, y in ((48, 50), (564, 50), (48, 782), (564, 782)):
        c.circle((x, y), 4.5, "#c9b27a", "#6b5a30", 1)
    c.flush()
    c.text(306, 108, "云汀市博物馆", 42, "#ffffff", bold=True, align="center")
    c.text(306, 144, "参 观 须 知", 20, "#f2dfb2", align="center")
    rows = [
        ["时段", "开放时间", "最晚入馆"],
        ["四月至十月", "9:00 至 18:00", "17:15"],
        ["十一月至三月", "9:30 至 17:00", "16:15"],
        ["周五夜场", "18:30 至 21:00", "20:20"],
    ]
    y = table(c, 66, 186, [150, 190, 140], rows, "hours", size=16, pad=10, aligns="lcc")
    y += 24
    lines = [
        "周二闭馆，国家法定节假日除外。",
        "基本陈列免费；特展“澜江船影”票价 [[ticket|45 元]]，学生半价。",
        "请寄存大于 40 厘米的背包；寄存柜免费使用[[locker|四小时]]。",
        "馆内可以拍照，请关闭闪光灯，不使用三脚架。",
        "讲解每天 10:30 与 14:30 从[[tour|二楼铜鼓厅]]出发。",
        "儿童身高不足 [[child|1.3 米]]须由成人陪同。",
    ]
    for i, line in enumerate(lines):
        c.circle((82, y + 12), 13, HALL.accent2)
        c.text(82, y + 17, str(i + 1), 14, "#ffffff", bold=True, align="center")
        y = c.paragraph(106, y, 440, line, 17.5, leading=1.45) + 21
    c.rect((66, y + 6, 546, y + 62), fill=HALL.soft, stroke=HALL.accent2, radius=6)
    c.text(84, y + 41, "预约与咨询", 17, bold=True)
    c.text(530, y + 42, "0599-777-0388", 22, HALL.accent, bold=True, align="right", mark="phone")
    c.text(306, 772, "团体（10 人以上）请提前三个工作日预约", 13, HALL.muted, align="center", mark="groups")
    return poster


def _trail() -> Poster:
    poster = Poster("lanzhang_trail_map.jpg", TRAIL, (680, 900), 110)
    c = poster.canvas
    c.image((0, 0, 680, 190), scenes.ridges(1100, 620, 31, terraces=False).crop((0, 60, 1100, 367)), 80)
    c.rect((0, 118, 680, 190), fill="#1f3d28", opacity=0.6)
    c.flush()
    c.text(36, 166, "岚嶂山步道图", 34, "#ffffff", bold=True)
    c.text(644, 164, "云汀市林业局　2026 年春", 13, "#e4eee4", align="right")
    c.rect((36, 210, 644, 560), fill="#e3ecd9", radius=10)
    for scale, colour in ((1.0, "#d3e1c4"), (0.72, "#bfd3aa"), (0.44, "#a9c291")):
        outline = [(120, 430), (170, 290), (330, 236), (510, 270), (590, 400), (470, 520), (260, 530)]
        c.blob(
            [(352 + (x - 352) * scale, 306 + (y - 370) * scale + 64 * scale) for x, y in outline], colour, "#ffffff", 1
        )
    c.blob([(556, 486), (600, 470), (632, 500), (614, 540), (566, 532)], "#a9d0e4", "#7fb3cf", 1)
    trails: list[tuple[str, list[Point]]] = [
        (TRAIL.palette[0], [(96, 520), (150, 450), (214, 420), (262, 360), (316, 330), (352, 300)]),
        (TRAIL.palette[1], [(96, 520), (200, 516), (300, 490), (400, 470), (440, 400), (400, 340), (352, 300)]),
        (TRAIL.palette[2], [(400, 470), (480, 496), (556, 500)]),
    ]
    for colour, points in trails:
        c.curve(points, colour, 4.5, "[9 5] 0" if colour == TRAIL.palette[2] else None)
    c.flush()
    for (x, y), name, dx, dy, align in [
        ((96, 520), "南门停车场", 0, 26, "center"),
        ((214, 420), "半山亭", -12, -6, "right"),
        ((352, 300), "主峰 1,147 米", 0, -16, "center"),
        ((400, 470), "竹溪园", -4, 25, "right"),
        ((556, 500), "镜湖", 34, 8, "left"),
        ((440, 400), "望江台", 14, 4, "left"),
    ]:
        c.circle((x, y), 7, "#ffffff", TRAIL.ink, 2.5)
        c.text(x + dx, y + dy, name, 14, bold=True, align=align, mark=f"place/{name}")
    rows = [
        ["步道", "路线", "长度", "爬升", "时间"],
        ["绿线", "南门—半山亭—主峰", "4.6 公里", "735 米", "2 小时 40 分"],
        ["橙线", "南门—竹溪园—望江台—主峰", "7.9 公里", "790 米", "4 小时 10 分"],
        ["蓝线", "竹溪园—镜湖", "1.8 公里", "60 米", "35 分"],
    ]
    y = table(c, 36, 580, [62, 240, 96, 86, 124], rows, "trails", size=14, pad=8.5, aligns="llrrr")
    y += 20
    notes = [
        "半山亭以上没有饮水点；南门有直饮水，由云汀供水集团提供。",
        "每年 11 月至次年 2 月，主峰最后 [[ice|600 米]]结冰时关闭。",
        "最后一班下山巴士 [[bus|17:50]] 从南门停车场开出，票价 3 元。",
        "遇险请拨打山地救援 [[rescue|0599-777-0119]]，并报出路边木桩上的号码。",
    ]
    for note in notes:
        c.circle((44, y + 8), 3.5, TRAIL.accent2)
        y = c.paragraph(58, y, 586, note, 14, leading=1.4) + 6
    return poster
