"""The parts of the reader that need no picture: words, questions, values, layout, findings, alignment."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.reading.align import merge
from demo.reading.answer import MAX_SENTENCE, answer, shorten
from demo.reading.cells import split_cells
from demo.reading.colours import SAME, bars, distance, dominant, swatch
from demo.reading.dialogue import Conversation, Look, decide, keywords, next_query, passage_sheet
from demo.reading.layout import Line, Sheet, blocks
from demo.reading.question import analyse, subquestions
from demo.reading.sight import look
from demo.reading.values import is_number, number, values
from demo.reading.words import best_match, similarity, stem, terms
from tests.drawn import Drawn, chart_page
from vrag.actions import Answer
from vrag.geometry import Box, whole


def line(text: str, x: float, y: float, width: float | None = None, height: float = 20, **more: object) -> Line:
    return Line(text, Box(x, y, x + (width or 10 * len(text)), y + height), **more)  # type: ignore[arg-type]


def said(sheet: Sheet, question: str) -> str:
    reply = answer(sheet, analyse(question))
    return "" if reply is None else reply.text


# Words


def test_terms_are_stems_numbers_and_bigrams() -> None:
    assert terms("The companies released 10,000 licences") == ["organization", "releas", "10000", "licenc"]
    assert terms("开源软件") == ["开源", "源软", "软件"]
    assert terms("软件的成本是多少？", question=True) == ["软件", "成本"]
    assert "l3" in terms("Level L3")


@pytest.mark.parametrize(
    ("a", "b", "least", "most"),
    [
        ("europe", "european", 0.6, 0.9),
        ("contribut", "contribution", 0.6, 0.9),
        ("formal", "informal", 0.0, 0.0),
        ("international", "internal", 0.0, 0.0),
        ("breakwater", "breakvater", 0.8, 0.9),
        ("2021", "2022", 0.0, 0.0),
        ("same", "same", 1.0, 1.0),
        ("remov", "dredgingremov", 0.8, 0.8),
        ("national", "international", 0.0, 0.0),
    ],
)
def test_similarity_is_graded(a: str, b: str, least: float, most: float) -> None:
    assert least <= similarity(a, b) <= most
    assert similarity(a, b) == similarity(b, a)


def test_plurals_and_endings_meet() -> None:
    assert stem("policies") == stem("policy")
    assert stem("managing") == stem("managed")
    assert stem("glass") == "glass"
    assert best_match("ship", {"boat", "ship"}) == 1.0


# Questions


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("What share of OSPOs is formal?", "percent"),
        ("How many ships were registered?", "number"),
        ("How many minutes did callers wait?", "duration"),
        ("In which year did it open?", "year"),
        ("When was the bridge opened?", "date"),
        ("Who chairs the council?", "person"),
        ("Where is the office?", "place"),
        ("Does the port have a crane?", "yesno"),
        ("Which doctor held the post when the director chaired the council?", "person"),
        ("有多大比例的受访者不清楚？", "percent"),
        ("哪一年发布？", "year"),
        ("对应的编号是多少？", "number"),
        ("需要多少秒？", "duration"),
        ("谁是主任？", "person"),
        ("有没有室内球队？", "yesno"),
    ],
)
def test_kind_of_answer(text: str, kind: str) -> None:
    assert analyse(text).kind == kind


def test_what_a_question_adds() -> None:
    question = analyse("Harbour survey 2025: Which line had the most passengers, and how many were they?")
    assert question.extreme == 1
    assert question.names_item
    assert question.parts == 2
    weights = {term.text: term.weight for term in question.terms}
    assert weights["survey"] < weights["passenger"]
    assert analyse("At least how many?").extreme == 0
    assert analyse("How many government-wide respondents did it have?").unit == "respondent"


def test_clauses_and_years_become_questions_of_their_own() -> None:
    first, second = subquestions(analyse("JuiceFS 社区版哪一年发布，GitHub 有多少星？"))
    assert (first.kind, second.kind) == ("year", "number")
    years = subquestions(analyse("What share had a program in 2018, 2020 and 2022?"))
    assert [[t.text for t in q.terms if t.weight >= 1.2] for q in years] == [["2018"], ["2020"], ["2022"]]


@given(st.text(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_question(text: str) -> None:
    question = analyse(text)
    assert all(term.weight > 0 and term.text for term in question.terms)
    for part in subquestions(question):
        assert part.parts >= 1
    tried: list[str] = []
    while (query := next_query(question, tried)) is not None:
        assert query.strip()
        tried.append(query)
        assert len(tried) < 10
    assert len({" ".join(query.split()) for query in tried}) == len(tried)


def test_keywords_leave_the_asking_out() -> None:
    assert keywords("How many ships were registered in the Nordhavn harbour?") == [
        "ships",
        "registered",
        "Nordhavn",
        "harbour",
    ]
    assert keywords("JuiceFS 社区版哪一年发布？") == ["JuiceFS", "社区版", "发布"]


# Values


@pytest.mark.parametrize(
    ("text", "question", "found"),
    [
        ("a share of 46% in 2023", "What share?", "46%"),
        ("大约有29%的受访者", "占多大比例？", "29%"),
        ("confirmed 52–48 after a debate", "How many votes?", "52–48"),
        ("It took 31.02 minutes.", "How many minutes did it take?", "31.02 minutes"),
        ("比普通虚拟机多花费4秒。", "多花费几秒？", "4秒"),
        ("opened on 14 March 2021 at last", "When was it opened?", "14 March 2021"),
        ("于2017年9月7日宣布", "哪一天宣布？", "2017年9月7日"),
        ("Dredging removed1,250 tonnes", "How many tonnes?", "1,250 tonnes"),
        ("A03 and Q13 and FY2019 had 12 ships", "How many were there?", "12"),
        ("cost 86 million euros", "How much did it cost?", "86 million euros"),
        ("with 557,778 respondents", "How many respondents?", "557,778 respondents"),
    ],
)
def test_values_by_kind(text: str, question: str, found: str) -> None:
    best = max(values(text, analyse(question)), key=lambda value: value.fit)
    assert text[best.start : best.end].strip() == found


def test_what_the_question_says_is_no_answer() -> None:
    assert values("In 2024 there were", analyse("In which year after 2024?")) == []


@pytest.mark.parametrize(
    "text", ["46%", "1,250", "-0.2", "52–48", "$3.1 million", "(12)", "2021", "13.2 GiB/s", "29ms"]
)
def test_numbers_are_told_from_labels(text: str) -> None:
    assert is_number(text)
    assert number(text) is not None


@pytest.mark.parametrize("text", ["10,000 or more", "FY 2019", "Q13", "A01:2021 Injection", "Top 10", "", "n/a"])
def test_labels_are_told_from_numbers(text: str) -> None:
    assert not is_number(text)


# Layout


def test_lines_of_a_paragraph_are_read_together_and_split_into_sentences() -> None:
    sheet = Sheet((600, 400), (
        line("The harbour was built in 1871. It was enlar-", 20, 20, 430),
        line("ged by Dr. Holm in 1902 and again", 20, 44, 420),
        line("after the war.", 20, 68, 140),
        line("Another column", 480, 20, 110),
    ))  # fmt: skip
    paragraph, column = blocks(sheet)
    assert [s.text for s in paragraph.sentences] == [
        "The harbour was built in 1871.",
        "It was enlarged by Dr. Holm in 1902 and again after the war.",
    ]
    assert column.text == "Another column"
    start = paragraph.text.index("1902")
    assert paragraph.locate(start, start + 4).y1 == 44


def test_chinese_lines_are_joined_without_a_blank() -> None:
    sheet = Sheet(
        (600, 400),
        (line("选择的情况下，任何输入必须进行过滤或沙箱处", 20, 20, 420), line("理。然后执行。", 20, 42, 140)),
    )
    (block,) = blocks(sheet)
    assert [s.text for s in block.sentences] == ["选择的情况下，任何输入必须进行过滤或沙箱处理。", "然后执行。"]


def test_rows_beside_numbers_stay_apart_and_labels_of_two_lines_together() -> None:
    sheet = Sheet((600, 400), (
        line("North ferry", 20, 20), line("410", 300, 20),
        line("Island ferry with a very", 20, 62), line("long name", 20, 82), line("205", 300, 72),
        line("Night ferry", 20, 106), line("870", 300, 108),
    ))  # fmt: skip
    texts = [block.text for block in blocks(sheet)]
    assert "North ferry" in texts
    assert "Island ferry with a very long name" in texts
    assert "Night ferry" in texts


# Findings


TABLE = Sheet((800, 400), tuple(
    line(cell, 20 + 200 * column, 40 + 50 * row)
    for row, cells in enumerate([
        ("Line", "2021", "2022"), ("North ferry", "3,410", "3,977"), ("Island ferry", "1,205", "1,318"), ("Total", "4,615", "5,295"),
    ])
    for column, cell in enumerate(cells)
))  # fmt: skip


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How many passengers did the island ferry have in 2021?", "1,205"),
        ("How many passengers did the north ferry have in 2022?", "3,977"),
        ("Which line had the most passengers in 2021?", "North ferry (3,410)"),
        ("Which line had the fewest passengers in 2022?", "Island ferry (1,318)"),
        ("How many passengers did the island ferry have in 2021 and 2022?", "1,205; 1,318"),
    ],
)
def test_table(question: str, expected: str) -> None:
    assert said(TABLE, question) == expected


def test_series_is_told_by_colour() -> None:
    red, blue = (200, 30, 30), (30, 30, 200)
    sheet = Sheet((800, 300), (
        line("Schools", 20, 40), line("40%", 300, 40, bars=(red,)), line("60%", 500, 40, bars=(blue,)),
        line("Families", 20, 100), line("70%", 300, 100, bars=(red,)), line("30%", 500, 100, bars=(blue,)),
        line("By bus", 300, 200, swatch=(196, 34, 28)), line("By car", 500, 200, swatch=blue),
    ))  # fmt: skip
    assert said(sheet, "What share of schools come by car?") == "60%"
    assert said(sheet, "What share of families come by bus?") == "70%"


def test_caption_below_its_number() -> None:
    sheet = Sheet((800, 300), (
        line("36%", 100, 40), line("Developer", 90, 64, 60), line("16%", 400, 40), line("Manager", 390, 64, 60),
    ))  # fmt: skip
    assert said(sheet, "What share are managers?") == "16%"


def test_axis_and_page_number_measure_nothing() -> None:
    ticks = tuple(line(str(100 * n), 20, 300 - 50 * n) for n in range(6))
    sheet = Sheet((800, 600), (*ticks, line("Ships", 60, 330), line("231", 70, 180), line("17", 400, 580)))
    assert said(sheet, "How many ships?") == "231"


def test_label_of_the_answer_is_in_its_region() -> None:
    reply = answer(TABLE, analyse("How many passengers did the island ferry have in 2022?"))
    assert reply is not None
    boxes = {entry.text: entry.box for entry in TABLE.lines}
    assert reply.region.covers(boxes["1,318"])
    assert reply.region.covers(boxes["Island ferry"])
    assert not reply.region.covers(boxes["Total"], 0.5)
    assert reply.label == "Island ferry — 2022"


def test_sentence_is_given_where_a_span_says_too_little() -> None:
    text = "The council was founded to oversee the harbour. Its seat is in Bergen."
    assert (
        said(passage_sheet(text), "What was the council founded for?")
        == "The council was founded to oversee the harbour."
    )
    assert said(Sheet((100, 100)), "What?") == ""


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("How many parking spaces are there at the Stadium stop?", ("spac",)),
        ("How much profit was left in 2025?", ("profit",)),
        ("How many million euros were spent?", ()),
        ("How many minutes does it take?", ()),
        ("How much is the chief executive paid?", ("paid",)),
        ("公司的净利润是多少？", ("净利", "利润")),
        ("公司一共有多少名员工？", ("员工",)),
        ("文件的数量级是多少？", ()),
        ("Who is the director?", ()),
    ],
)
def test_the_quantity_that_is_asked_for(text: str, asked: tuple[str, ...]) -> None:
    assert analyse(text).asked == asked


def test_a_page_that_does_not_name_the_quantity_does_not_answer() -> None:
    sheet = Sheet((600, 400), (line("Stadium stop", 40, 60), line("Shelters", 40, 100), line("21", 300, 100)))
    named, other = (
        answer(sheet, analyse(f"How many {what} are there at the Stadium stop?"))
        for what in ("shelters", "parking spaces")
    )
    assert named is not None
    assert other is not None
    assert named.said
    assert not other.said
    look = Look(b"page")
    for what, said in (("shelters", "21"), ("parking spaces", "I found no answer to this in the pages that I read.")):
        talk = Conversation(f"How many {what} are there at the Stadium stop?", (look,), demand="answer")
        assert decide(talk, lambda _: sheet).action == Answer(said)


def test_a_share_is_no_count_and_no_price() -> None:
    assert [value.fit for value in values("46%", analyse("How many crews are there?"))] == [0.3]
    assert [value.fit for value in values("46%", analyse("How much is the director paid?"))] == [0.3]


def test_long_sentences_are_cut_around_the_answer() -> None:
    sentence = "alpha " * 80 + "the answer is 42 " + "omega " * 80
    cut = shorten(sentence, "42")
    assert len(cut) <= MAX_SENTENCE + 4
    assert "the answer is 42" in cut
    assert cut.startswith("… ")
    assert cut.endswith(" …")


SHEETS = st.builds(
    lambda lines: Sheet((500, 500), tuple(lines)),
    st.lists(
        st.builds(
            lambda text, x, y, w, h: Line(text, Box(x, y, x + w, y + h)),
            st.sampled_from(["46%", "2021", "Open source", "how many", "1", "多少软件", "", "Dr. Who said: 5 ships.", "✓ √", "10 20"]),
            st.floats(0, 480), st.floats(0, 480), st.floats(1, 300), st.floats(1, 60),
        ),
        max_size=12,
    ),
)  # fmt: skip


@given(
    SHEETS,
    st.sampled_from(
        ["How many ships in 2021?", "软件多少？", "Which is the highest, and what is it?", "", "Who?", "When?"]
    ),
)
@settings(max_examples=120, deadline=None)
def test_any_sheet_can_be_asked(sheet: Sheet, text: str) -> None:
    reply = answer(sheet, analyse(text))
    if reply is not None:
        assert 0 <= reply.support <= 1.0001
        assert 0 <= reply.coverage <= 1.0001
        assert reply.region.width >= 0
        assert reply.text


# Crops laid back onto their page


@pytest.mark.parametrize("scale", [2.0, 3.3])
@pytest.mark.parametrize("padding", [0.0, 18.0, 45.0])
def test_a_crop_is_laid_back_onto_its_page(scale: float, padding: float) -> None:
    names = ["North ferry", "Island ferry", "Night ferry", "Harbour tax", "Lighthouse"]
    rows = [line(name, 40, 60 + 130 * n) for n, name in enumerate(names)]
    page = Sheet((600, 800), (*rows, line("1318", 300, 191, 40)))
    asked = Box(30, 150, 400, 360)
    area = asked.padded(padding).clamped(whole(page.size))
    inside = [entry for entry in page.lines if area.covers(entry.box)]
    sharp = tuple(
        Line(
            entry.text.replace("1318", "1,318"),
            Box(*[(v - o) * scale for v, o in zip(entry.box.as_list(), (area.x1, area.y1) * 2, strict=True)]),
        )
        for entry in inside
    )
    crop = Sheet((round(area.width * scale), round(area.height * scale)), sharp)
    merged, shown = merge(page, crop, asked)
    assert sorted(entry.text for entry in merged.lines) == sorted([*names, "1,318"])
    for entry in merged.lines:
        original = next(other for other in page.lines if other.text.replace("1318", "1,318") == entry.text)
        assert entry.box.x1 == pytest.approx(original.box.x1, abs=1.5)
        assert entry.box.y2 == pytest.approx(original.box.y2, abs=1.5)
    assert shown.covers(asked, 0.98)


# Pixels


def test_wide_blanks_part_cells_and_word_spaces_do_not() -> None:
    import numpy as np

    drawn = Drawn((900, 100)).text(20, 30, "Formal offices", 24).text(330, 30, "Informal offices", 24)
    left, right = drawn.boxes["Formal offices"], drawn.boxes["Informal offices"]
    pixels = np.asarray(drawn.image)
    parts = split_cells(pixels, "Formal offices Informal offices", Box(left.x1, left.y1 - 4, right.x2, right.y2 + 4))
    assert [text for text, _ in parts] == ["Formal offices", "Informal offices"]
    assert parts[0][1].x2 == pytest.approx(left.x2, abs=3)
    assert parts[1][1].x1 == pytest.approx(right.x1, abs=3)
    assert len(split_cells(pixels, "Formal offices", left)) == 1


def test_colours_of_a_chart() -> None:
    import numpy as np

    drawn = chart_page()
    pixels = np.asarray(drawn.image)
    paper = (255, 255, 255)
    assert dominant(pixels, whole(drawn.size)) == paper
    green = (0x2E, 0x8B, 0x57)
    assert distance(bars(pixels, drawn.boxes["71%"], paper)[0], green) < SAME
    mark = swatch(pixels, drawn.boxes["By bus"], paper)
    assert mark is not None
    assert distance(mark, green) < SAME
    assert swatch(pixels, drawn.boxes["Families"], paper) is None


def test_small_pictures_are_enlarged_for_the_recogniser_only() -> None:
    asked: list[tuple[int, int]] = []

    def recognise(image: object) -> list[tuple[str, Box]]:
        asked.append(image.size)  # type: ignore[attr-defined]
        return [("word", Box(0, 0, image.width, image.height))]  # type: ignore[attr-defined]

    sheet = look(Drawn((640, 480)).image, recognise)  # type: ignore[arg-type]
    assert asked[0][0] > 640
    assert sheet.size == (640, 480)
    assert sheet.lines[0].box.x2 == pytest.approx(640)
