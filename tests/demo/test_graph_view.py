"""The drawing of the memory graph: where nodes and edges lie, what they say, and that hostile graphs stay data."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from demo.ui import memory_log, replay
from demo.ui.graph_view import MARKS, STATES, area, details, drawing, graph_of, newest
from vrag.errors import RecordError
from vrag.events import Answered, GraphChanged, Memorized, Note, SearchResults, SearchStarted, Thought, Usage
from vrag.graph_energy import PUBLISHED
from vrag.items import Hit, Item
from vrag.memory_graph import ANSWER, ROOT, Evidence, MemoryGraph

HOSTILE = "</script><script>alert(1)</script><b>\u202e\x00\ud800 $x$ **b**"


def graph() -> MemoryGraph:
    """Two searches on a third, one of them a dead end, and an answer."""
    made = MemoryGraph("How much?")
    made.add("sales", [ROOT], "sales by year")
    made.memorise("sales", "Page 3 has them.", [Evidence("report_3", "image", 5), Evidence("notes", "text", 2)])
    made.add("coal", [ROOT], "coal")
    made.memorise("coal", "Nothing.")
    made.add("sales 2023", ["sales"], "sales in 2023")
    made.memorise("sales 2023", "Page 4 has them.", [Evidence("report_4", "image", 4)])
    made.answer(["sales 2023"])
    return made


@st.composite
def graphs(draw: st.DrawFn) -> MemoryGraph:
    """Random graphs with texts of any kind."""
    text = st.text(max_size=30)
    made = MemoryGraph(draw(text))
    for _ in range(draw(st.integers(0, 14))):
        known = [ROOT, *made.nodes]
        node, _ = made.add(draw(text), draw(st.lists(st.sampled_from(known), max_size=3)), draw(text))
        made.memorise(node.id, draw(text), [Evidence("page", "image", 3)] if draw(st.booleans()) else [])
    if draw(st.booleans()):
        made.answer(draw(st.lists(st.sampled_from([ROOT, *made.nodes]), max_size=3)))
    return made


def box(node: dict[str, Any]) -> tuple[float, float, float, float]:
    width, height = node["width"] / 2, node["height"] / 2
    return node["x"] - width, node["y"] - height, node["x"] + width, node["y"] + height


def ends(edge: dict[str, Any]) -> tuple[tuple[float, float], tuple[float, float]]:
    """First and last point of an edge's line."""
    numbers = [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?", edge["line"])]
    return (numbers[0], numbers[1]), (numbers[-2], numbers[-1])


# The layout


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_no_two_nodes_overlap_and_edges_point_down(made: MemoryGraph) -> None:
    drawn = drawing(made.to_json(PUBLISHED), made.question)
    nodes = {node["id"]: node for node in drawn["nodes"]}
    assert list(nodes) == [ROOT, *made.nodes, *([ANSWER] if made.answer_parents is not None else [])]
    for one, other in combinations(map(box, nodes.values()), 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    for left, top, right, bottom in map(box, nodes.values()):
        assert left >= 0
        assert top >= 0
        assert right <= drawn["width"] + 1
        assert bottom <= drawn["height"] + 1
    wanted = {(parent, child) for child, above in made.parents().items() for parent in above}
    if made.answer_parents is not None:
        wanted |= {(parent, ANSWER) for parent in made.answer_parents or (ROOT,)}
    assert {tuple(edge["id"].split("\x1f")) for edge in drawn["edges"]} == wanted
    for edge in drawn["edges"]:
        parent, child = (nodes[name] for name in edge["id"].split("\x1f"))
        (x, y), (end_x, end_y) = ends(edge)
        assert (x, y) == pytest.approx((parent["x"], box(parent)[3]), abs=0.2)
        assert end_x == pytest.approx(child["x"], abs=0.2)
        assert y < end_y < box(child)[1]


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_what_is_drawn_is_json_that_any_page_can_hold(made: MemoryGraph) -> None:
    drawn = drawing(made.to_json(PUBLISHED), made.question)
    text = json.dumps(drawn, ensure_ascii=False)
    assert json.loads(text.encode("utf-8")) == drawn


def test_a_graph_of_the_question_alone() -> None:
    drawn = drawing({}, "How much?")
    assert [node["kind"] for node in drawn["nodes"]] == ["question"]
    assert drawn["nodes"][0]["lines"] == ["How much?"]
    assert drawn["edges"] == []
    assert newest({}) == ROOT


# What is said and how it looks


def test_states_are_told_by_colour_mark_and_words() -> None:
    value = graph().to_json(PUBLISHED)
    drawn = drawing(value, "How much?", "coal")
    nodes = {node["id"]: node for node in drawn["nodes"]}
    assert {name: node["state"] for name, node in nodes.items()} == {
        ROOT: "critical_path",
        "sales": "critical_path",
        "coal": "dead_end",
        "sales 2023": "critical_path",
        ANSWER: "critical_path",
    }
    for node in nodes.values():
        assert node["mark"] == MARKS[node["state"]]
        assert STATES[node["state"]] in node["about"]
    assert len(set(MARKS.values())) == len(STATES)
    assert drawn["selected"] == "coal"
    assert [row["name"] for row in drawn["legend"]] == list(STATES.values())
    looks = {edge["id"]: edge["look"] for edge in drawn["edges"]}
    assert looks == {
        "root\x1fcoal": "dead",
        "root\x1fsales": "path",
        "sales\x1fsales 2023": "path",
        "sales 2023\x1fanswer": "path",
    }


def test_a_search_that_is_open_is_searching() -> None:
    made = MemoryGraph("How much?")
    made.add("sales", [ROOT], "sales by year")
    value = made.to_json(PUBLISHED)
    assert drawing(value, "How much?")["nodes"][1]["state"] == "searching"
    assert newest(value) == "sales"


def test_a_click_shows_what_is_kept_with_its_energy_and_pixels() -> None:
    made = graph()
    value = made.to_json(PUBLISHED, labels={"report_3": "report.pdf, page 3"}, sent={("sales", "report_3"): 500_000})
    shown = details(value, "How much?", "sales")
    assert shown is not None
    assert (shown.query, shown.summary, shown.parents) == ("sales by year", "Page 3 has them.", (ROOT,))
    page, notes = shown.kept
    weighed = {one.evidence.item_id: one for one in made.weigh(PUBLISHED)}
    assert (page.label, page.energy, page.sent) == ("report.pdf, page 3", weighed["report_3"].energy, 500_000)
    assert page.pixels == weighed["report_3"].pixels
    assert page.words() == f"priority 5 · energy {page.energy:.2f} · {area(page.pixels)} allotted, 0.50 MP sent"
    assert notes.words() == f"priority 2 · energy {notes.energy:.2f}"
    assert details(value, "How much?", "no such node") is None
    resting = details(value, "How much?", ANSWER)
    assert resting is not None
    assert resting.parents == ("sales 2023",)


@example(HOSTILE)
@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_hostile_texts_stay_texts(text: str) -> None:
    """Markup is escaped where HTML is made, and left alone where texts are set as texts."""
    event = SearchStarted(query=text, node=text, parents=(ROOT,))
    item = Item(id="x", kind="image", document=text)
    said = [
        event,
        SearchResults(query=text, hits=(Hit(item=item, score=1.0),), shown=("x",)),
        Memorized(node=text, summary=text, kept=({"id": "x", "label": text},)),
        Thought(text=text * 3),
        Note(text=text),
    ]
    for one in said:
        markup = memory_log.entry(one)
        tags = set(re.findall(r"</?([a-z]+)", markup))
        assert tags <= {"div", "span", "b", "details", "summary"}, markup


@pytest.mark.parametrize("value", [{"nodes": 3}, {"question": "q", "nodes": [{"id": 1}], "answer": None}, {"x": 1}])
def test_what_is_no_graph_is_said(value: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match="not a memory graph"):
        drawing(value, "q")


# Replay


def test_moments_are_what_a_person_sees_happen() -> None:
    value = graph().to_json(PUBLISHED)
    events = [
        Usage(step=1),
        Thought(step=1, text="So."),
        SearchStarted(step=1, query="sales", node="sales"),
        GraphChanged(step=1, graph=value),
        SearchResults(step=1, query="sales", hits=(), shown=()),
        Usage(step=2),
        Memorized(step=2, node="sales", summary="..."),
        GraphChanged(step=2, graph=value),
        Answered(step=3, text="42", reason="answer"),
    ]
    marks = replay.moments(events)
    assert marks == [0, 2, 4, 6, 8, 9]
    assert [graph_of(events[:count]) == value for count in marks] == [False, False, True, True, True, True]
    assert replay.moments([]) == [0]
