"""The questions about the example corpus, each pointing at the marks its answer was drawn with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .canvas import Mark

T = "tallowmere_annual_report_2025:"
V = "veyford_transport_plan_2030:"
M = "mossly_p2_launch_deck:"
A = "ashgrove_lab_safety_handbook:"
Y = "yunting_water_report_2025:"
L = "lanting_tea_deck_2025:"


@dataclass(frozen=True)
class Question:
    """`at`: names of marks; the first holds the answer, further ones are other places of the same fact (mode `any`) or the
    steps before it (mode `all`). An empty `at` is a question that the corpus does not answer."""

    uid: str
    query: str
    answer: str | None
    kind: str
    at: tuple[str, ...]
    mode: str = "any"
    example: bool = False
    """Whether the demo offers it: questions that the extractive reader can answer, of every kind of page."""


QUESTIONS = (
    # Tallowmere Energy, annual report
    Question(
        "tallowmere_offshore",
        "How many million euros did Tallowmere take in from its offshore business in 2025?",
        "243.9",
        "Chart",
        (f"{T}rev/Offshore/2025", f"{T}segments/Offshore/2025, € million"),
    ),
    Question(
        "tallowmere_kelm",
        "How large was the one-off payment for the Kelm interconnector outage that is contained in Tallowmere's "
        "storage revenue?",
        "€3.1 million",
        "Text",
        (f"{T}kelm",),
        example=True,
    ),
    Question(
        "tallowmere_hub",
        "How high above the sea are the rotor hubs at Marsk Point?",
        "131 m",
        "Table",
        (f"{T}farm/Marsk Point/hub",),
    ),
    Question(
        "tallowmere_coupon",
        "What rate of interest does Tallowmere pay on its green bond?",
        "3.25%",
        "Text",
        (f"{T}coupon",),
    ),
    Question(
        "tallowmere_crews",
        "What share of Tallowmere's employees are vessel crews?",
        "14%",
        "Chart",
        (f"{T}functions/Vessel crews",),
        example=True,
    ),
    Question(
        "tallowmere_storage_head",
        "Who leads the storage division of Tallowmere Energy?",
        "Tomas Eskel",
        "Layout",
        (f"{T}head/Storage",),
    ),
    Question(
        "tallowmere_notice",
        "How long before leaving must a customer of Tallowmere give notice to end a supply contract early?",
        "eighteen months",
        "Text",
        (f"{T}notice",),
    ),
    Question(
        "tallowmere_profit",
        "How much profit for the year was left to Tallowmere in 2025, in million euros?",
        "66.4",
        "Table",
        (f"{T}income/Profit for the year/2025",),
    ),
    # City of Veyford, transport plan
    Question(
        "veyford_bicycle",
        "What share of trips does Veyford want to be made by bicycle in 2030?",
        "16%",
        "Chart",
        (f"{V}modes/2030 goal/Bicycle",),
    ),
    Question(
        "veyford_electric",
        "How many electric buses were in service in Veyford at the end of 2024?",
        "68",
        "Chart",
        (f"{V}fleet/Electric/2024",),
    ),
    Question(
        "veyford_branch",
        "At which stop does the new yellow tram branch in Veyford end?",
        "Shipyard Lofts",
        "Image",
        (f"{V}net/gold-end",),
    ),
    Question(
        "veyford_tests",
        "In which quarter are the test runs on Veyford's tram line D planned?",
        "Q3 2028",
        "Layout",
        (f"{V}gantt/Line D: test runs",),
    ),
    Question(
        "veyford_month",
        "What does a month ticket for zones 1–2 cost in Veyford?",
        "€63.00",
        "Table",
        (f"{V}fares/Month/Zones 1–2",),
        example=True,
    ),
    Question(
        "veyford_bikes",
        "When may I take my bicycle along on a Veyford tram on a working day?",
        "after 19:00",
        "Text",
        (f"{V}bicycle",),
    ),
    Question(
        "veyford_fee",
        "How much does the Veyford authority keep as a handling fee when somebody returns a month or year ticket?",
        "€3.50",
        "Text",
        (f"{V}fee",),
    ),
    # Mossly P2, launch deck
    Question(
        "mossly_weight", "What is the weight of the Mossly P2?", "138 g", "Table", (f"{M}compare/Weight/Mossly P2",)
    ),
    Question(
        "mossly_battery",
        "How many months does the Mossly P2 run until it is empty if it measures every 30 min?",
        "26",
        "Chart",
        (f"{M}battery/P2/30 min",),
    ),
    Question(
        "mossly_offer",
        "Until what date is the wall mount of the Mossly free of charge?",
        "30 April 2026",
        "Text",
        (f"{M}offer",),
    ),
    Question(
        "mossly_mah",
        "What capacity does the battery inside the Mossly P2 have?",
        "5,200 mAh",
        "Image",
        (f"{M}part/Battery",),
    ),
    # Ashgrove Institute, safety handbook
    Question(
        "ashgrove_gloves",
        "After how many minutes does sodium hydroxide 40% pass through a nitrile glove of 0.1 mm?",
        "120",
        "Table",
        (f"{A}gloves/Sodium hydroxide 40%/Nitrile 0.1 mm",),
    ),
    Question(
        "ashgrove_perchloric",
        "In which room must perchloric acid be kept at Ashgrove?",
        "B 027",
        "Text",
        (f"{A}perchloric",),
    ),
    Question(
        "ashgrove_sash",
        "How far up may the lower edge of the fume hood's sash be at most?",
        "45 cm",
        "Image",
        (f"{A}sash",),
    ),
    Question(
        "ashgrove_hood",
        "Which fume hood was closed in January, and had the belt of its fan replaced?",
        "F-03",
        "Text",
        (f"{A}remark",),
    ),
    Question(
        "ashgrove_bin",
        "Which colour is the container for halogenated solvents?",
        "Red",
        "Image",
        (f"{A}bin/Halogenated solvents",),
    ),
    # Standalone images, English
    Question(
        "ferry_last",
        "When does the last ferry on Friday and Saturday leave the Ferry Pier for Gull Island?",
        "22:10",
        "Table",
        ("veyford_ferry_timetable:times/22:10/Ferry Pier",),
        example=True,
    ),
    Question(
        "tides_evening",
        "At what time is the evening high water at Lunde harbour on 13 June 2026?",
        "21:54",
        "Chart",
        ("lunde_harbour_tides:time/21:54",),
    ),
    Question(
        "plan_assembly",
        "Where is the assembly point for people from the east wing at Ashgrove?",
        "car park under the lime trees",
        "Layout",
        ("ashgrove_floor_plan:assembly",),
    ),
    # More than one page, English
    Question(
        "hop_depot",
        "How many GWh per year does the supplier of the Quayside depot's electricity deliver to the Veyford "
        "Transport Authority?",
        "38.0",
        "Table",
        (f"{T}contracts/Veyford Transport Authority/GWh per year", f"{V}depots/Quayside/Electricity from"),
        "all",
    ),
    Question(
        "hop_first_aid",
        "In which room does the person sit who is responsible for the ground floor of Ashgrove's east wing?",
        "E 204",
        "Table",
        (f"{A}phones/First aid, east wing/Room", "ashgrove_floor_plan:drill"),
        "all",
    ),
    Question(
        "hop_bearings",
        "In which year was the wind farm commissioned whose turbines received new main bearings?",
        "2019",
        "Table",
        (f"{T}farm/Skerrow Bank/year", f"{T}bearing"),
        "all",
    ),
    Question(
        "hop_pilot",
        "How many people are served by the water utility that will pilot the Chinese edition of the Mossly?",
        "213 万人",
        "Layout",
        (f"{Y}kpi/服务人口", f"{M}note/Chinese edition"),
        "all",
    ),
    # Yunting Water, annual report
    Question(
        "yunting_hardness",
        "云汀市的出厂水总硬度是多少？",
        "86",
        "Table",
        (f"{Y}quality/总硬度/出厂水", f"{Y}hardness"),
        example=True,
    ),
    Question("yunting_backup", "2025 年干旱时，云汀启用了哪个备用水源？", "白鹭滩备用水源", "Text", (f"{Y}backup",)),
    Question("yunting_loss", "2022 年云汀的管网漏损率是百分之多少？", "11.8", "Chart", (f"{Y}loss/漏损率/2022",)),
    Question(
        "yunting_person", "云汀的家庭超过四口人，每多一个人可以增加多少用水量？", "45 立方米", "Text", (f"{Y}person",)
    ),
    Question("yunting_cutoff", "在云汀，水费逾期超过多少天可能被暂停供水？", "六十天", "Text", (f"{Y}cutoff",)),
    Question(
        "yunting_tier",
        "云汀居民第二阶梯的水价是每立方米多少元（不含污水处理费）？",
        "3.20",
        "Table",
        (f"{Y}tariff/第二阶梯/水价（元/立方米）",),
    ),
    Question("yunting_finish", "北塘水厂的深度处理车间预计何时通水？", "2026 年 9 月", "Text", (f"{Y}finish",)),
    # Lanting tea house, product deck
    Question("lanting_price", "汀岸白露每 100 克卖多少元？", "132", "Table", (f"{L}teas/汀岸白露/元/100 克",)),
    Question("lanting_heat", "泡半山乌龙该用多高的水温？", "98 度", "Image", (f"{L}brew/半山乌龙/水温",)),
    Question(
        "lanting_online", "岚汀茶社 2025 年有百分之几的销售来自网上商城？", "29%", "Chart", (f"{L}channels/网上商城",)
    ),
    Question("lanting_kill", "制作半山乌龙时，杀青这一步要多长时间？", "6 分钟", "Image", (f"{L}time/杀青",)),
    # Standalone images, Chinese
    Question(
        "museum_winter",
        "云汀市博物馆冬季（十一月至三月）最晚几点可以入馆？",
        "16:15",
        "Table",
        ("yunting_museum_notice:hours/十一月至三月/最晚入馆",),
    ),
    Question(
        "trail_green",
        "沿绿线从南门登上岚嶂山主峰需要多少时间？",
        "2 小时 40 分",
        "Table",
        ("lanzhang_trail_map:trails/绿线/时间",),
        example=True,
    ),
    Question("trail_bus", "岚嶂山最后一班下山巴士几点发车？", "17:50", "Text", ("lanzhang_trail_map:bus",)),
    # More than one page, Chinese
    Question(
        "hop_garden",
        "岚嶂山橙线步道经过的那片茶园由谁负责？",
        "白若溪",
        "Table",
        (f"{L}gardens/竹溪园/负责人", "lanzhang_trail_map:trails/橙线/路线"),
        "all",
    ),
    # Not answered anywhere in the corpus
    Question("none_salary", "How much is the chief executive of Tallowmere Energy paid?", None, "Text", ()),
    Question("none_parking", "How many parking spaces are there at the Stadium stop in Veyford?", None, "Text", ()),
    Question("none_profit", "云汀供水集团 2025 年的净利润是多少？", None, "Text", ()),
    Question("none_staff", "岚汀茶社一共有多少名员工？", None, "Text", ()),
)


def normalised(text: str) -> str:
    return "".join(text.split()).lower()


def record(question: Question, marks: Mapping[str, Mark]) -> dict[str, Any]:
    """The question in the published ViDoSeek form. ValueError when its answer does not stand at its first mark."""
    lang = "zh" if any(char >= "\u4e00" for char in question.query) else "en"
    places = [marks[name] for name in question.at]
    evidence: dict[str, list[int]] = {}
    for place in places:
        pages = evidence.setdefault(place.file, [])
        if place.page not in pages:
            pages.append(place.page)
    out: dict[str, Any] = {
        "uid": question.uid,
        "query": question.query,
        "reference_answer": question.answer,
        "meta_info": {
            "file_name": places[0].file if places else None,
            "reference_page": sorted(evidence[places[0].file]) if places else [],
            "source_type": question.kind,
            "query_type": "Multi-Hop" if question.mode == "all" else "Single-Hop",
        },
        "evidence": [{"file_name": file, "pages": sorted(pages)} for file, pages in evidence.items()],
        "evidence_mode": question.mode,
        "lang": lang,
        "scope": "corpus",
        "answerable": question.answer is not None,
        "example": question.example,
    }
    if question.answer is not None:
        first = places[0]
        if normalised(question.answer) not in normalised(first.text):
            raise ValueError(f"{question.uid}: {question.answer!r} does not stand in {first.text!r}")
        out["text_layer_has_answer"] = first.in_layer
        out["region"] = {"page": first.page, "box": list(first.box)}
    return out
