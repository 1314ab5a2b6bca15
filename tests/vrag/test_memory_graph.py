"""The memory graph: the equations by hand and against a direct evaluation, the budget, the repairs, the forms."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrag.errors import ConfigError, RecordError
from vrag.geometry import fit_area
from vrag.graph_energy import MIN_PICTURE_PIXELS, PAPER, PRESETS, PUBLISHED, EnergyModel, energies, shares
from vrag.items import ItemKind
from vrag.memory_graph import ANSWER, ROOT, Evidence, MemoryGraph, from_json, parse


def grown() -> MemoryGraph:
    """root -> a -> b -> d and root -> c; the answer rests on d."""
    graph = MemoryGraph("How much?")
    for name, parents in (("a", ["root"]), ("b", ["a"]), ("c", ["root"]), ("d", ["b"])):
        graph.add(name, parents, f"query of {name}")
        graph.memorise(name, f"summary of {name}")
    return graph


# The equations, by hand


def test_energy_of_one_node() -> None:
    # T = 1, t = 1: no age; no children: 4/5 * (1 + 0) * exp(0).
    assert energies({"root": (), "a": ("root",)}, {"a": [4]}, PAPER) == {"root": (), "a": (pytest.approx(0.8),)}


@pytest.mark.parametrize("model", PRESETS.values())
def test_energy_of_a_chain(model: EnergyModel) -> None:
    parents = {"root": (), "a": ("root",), "b": ("a",), "c": ("a",)}
    found = energies(parents, {"a": [5], "b": [5, 1], "c": [3]}, model)
    # T = 3. c: t = 3, leaf. b: t = 2, leaf, one step old. a: t = 1, two children, two steps old.
    fade = math.exp(-0.1)
    assert found["c"] == (pytest.approx(0.6),)
    assert found["b"] == (pytest.approx(fade), pytest.approx(0.2 * fade))
    assert found["a"] == (pytest.approx(3 * fade**2 + 0.3 * ((fade + 0.2 * fade) / 2 + 0.6)),)


def test_a_node_without_items_cuts_the_published_chain_only() -> None:
    parents = {"root": (), "a": ("root",), "b": ("a",), "c": ("b",)}
    rated = {"a": [5], "c": [5]}
    own = 2 * math.exp(-0.2)
    assert energies(parents, rated, PUBLISHED)["a"] == (pytest.approx(own),)
    # b holds nothing, and hands on 0.3 of what c has (1.0); a gets 0.3 of that.
    assert energies(parents, rated, PAPER)["a"] == (pytest.approx(own + 0.3 * 0.3),)


def test_the_presets() -> None:
    assert (PUBLISHED.pixels, PUBLISHED.top_k, PUBLISHED.bridge) == (2_007_040, 5, False)
    assert (PAPER.pixels, PAPER.top_k, PAPER.bridge) == (5 * 256 * 32 * 32, 5, True)
    assert {(model.decay, model.feedback) for model in PRESETS.values()} == {(0.1, 0.3)}


def test_shares_by_hand() -> None:
    model = EnergyModel(pixels=1000, top_k=2, min_pixels=10)
    # Of 3, 2 and 1 only the first two count: 1000 * 3/5 and 1000 * 2/5. The clip divides its share over its frames.
    assert shares([3, 1, 2], [1, 1, 4], model) == [(1, 600), (0, 0), (4, 100)]
    # Passages (no pictures) take nothing.
    assert shares([9, 1], [0, 1], model) == [(0, 0), (1, 1000)]
    # Of equals the newer is preferred.
    assert shares([1, 1, 1], [1, 1, 1], model) == [(0, 0), (1, 500), (1, 500)]


def test_a_share_that_is_too_small_is_given_to_the_others() -> None:
    model = EnergyModel(pixels=1000, top_k=3, min_pixels=150)
    # 1000 * (8, 5, 1)/14 = 571, 357, 71: the last one goes without, and the others share anew.
    assert shares([8, 5, 1], [1, 1, 1], model) == [(1, 615), (1, 384), (0, 0)]
    # A clip with a share of 384 shows two of its frames at 192 instead of six at 64.
    assert shares([8, 5, 1], [1, 6, 1], model) == [(1, 615), (2, 192), (0, 0)]
    assert shares([1, 1], [1, 1], replace(model, pixels=149)) == [(0, 0), (0, 0)]
    assert shares([1, 1], [1, 1], replace(model, pixels=0)) == [(0, 0), (0, 0)]


def test_the_ablation_without_energy_shows_the_newest_evenly() -> None:
    graph = grown()
    for name, priority in (("a", 5), ("b", 1), ("c", 5), ("d", 1)):
        graph.memorise(name, "x", [Evidence(f"page_{name}", "image", priority)])
    model = replace(PAPER, uniform=True, top_k=2)
    assert [(one.node, one.pixels) for one in graph.weigh(model) if one.pictures] == [("c", 655_360), ("d", 655_360)]


@pytest.mark.parametrize(
    "wrong", [{"pixels": -1}, {"top_k": 0}, {"decay": -0.1}, {"feedback": math.nan}, {"min_pixels": 0}]
)
def test_constants_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        replace(PAPER, **wrong)


@pytest.mark.parametrize("parents", [{"a": ("b",), "b": ("a",)}, {"a": ("a",)}, {"a": ("elsewhere",)}])
def test_energies_refuse_what_is_no_dag(parents: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ValueError, match=r"cycle|is no node"):
        energies(parents, {}, PAPER)


def test_energies_stay_finite_however_dense_the_graph() -> None:
    names = [ROOT, *(str(number) for number in range(3000))]
    parents = {name: tuple(names[max(0, place - 40) : place]) for place, name in enumerate(names)}
    model = replace(PAPER, decay=0.0, feedback=5.0)
    found = energies(parents, {name: [5] for name in names[1:]}, model)
    assert all(math.isfinite(energy) for values in found.values() for energy in values)
    sizes = shares([values[0] for name, values in found.items() if name != ROOT], [1] * 3000, model)
    assert 0 < sum(count * pixels for count, pixels in sizes) <= model.pixels


# Random graphs


@st.composite
def graphs(draw: st.DrawFn, most: int = 12) -> MemoryGraph:
    graph = MemoryGraph(draw(st.text(max_size=30)), linear=draw(st.booleans()))
    for number in range(draw(st.integers(1, most))):
        known = st.sampled_from([ROOT, *graph.nodes])
        parents = draw(st.lists(known, min_size=1, max_size=4, unique=True))
        node, repairs = graph.add(f"n{number} {draw(st.text(max_size=5))}", parents, draw(st.text(max_size=10)))
        assert graph.linear or not repairs
        memory = []
        for item in range(draw(st.integers(0, 3))):
            kind: ItemKind = draw(st.sampled_from(["image", "image", "video", "text"]))
            moments = draw(st.lists(st.floats(0, 600), min_size=1, max_size=5, unique=True)) if kind == "video" else []
            priority = draw(st.sampled_from([1, 2.5, 3, 5]))
            memory.append(Evidence(f"{number}_{item}", kind, priority, tuple(moments)))
        graph.memorise(node.id, draw(st.text(max_size=20)), memory)
    if draw(st.booleans()):
        graph.answer(draw(st.lists(st.sampled_from([ROOT, *graph.nodes, "unknown"]), max_size=3)))
    return graph


models = st.builds(
    EnergyModel,
    pixels=st.one_of(st.sampled_from([PUBLISHED.pixels, PAPER.pixels]), st.integers(0, 3_000_000)),
    top_k=st.integers(1, 8),
    decay=st.sampled_from([0.1, 0.0, 2.0]),
    feedback=st.sampled_from([0.3, 0.0, 1.5]),
    bridge=st.booleans(),
    uniform=st.booleans(),
    min_pixels=st.sampled_from([1, MIN_PICTURE_PIXELS, 400_000]),
)


def direct(graph: MemoryGraph, model: EnergyModel) -> dict[tuple[str, str], float]:
    """Eqs. 6 and 7 word for word, by recursion."""
    order = [ROOT, *graph.nodes]
    children = {name: [n.id for n in graph.nodes.values() if name in n.parents] for name in order}

    @cache
    def omega(name: str, item: int) -> float:
        node = graph.nodes[name]
        internal = node.memory[item].priority / 5 * (1 + len(children[name]))
        internal *= math.exp(-model.decay * (len(order) - 1 - order.index(name)))
        return internal + model.feedback * sum(mean(child) for child in children[name])

    @cache
    def mean(name: str) -> float:
        held = len(graph.nodes[name].memory)
        if held:
            return sum(omega(name, item) for item in range(held)) / held
        return model.feedback * sum(mean(child) for child in children[name]) if model.bridge else 0.0

    return {
        (name, evidence.item_id): omega(name, item)
        for name, node in graph.nodes.items()
        for item, evidence in enumerate(node.memory)
    }


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from([PUBLISHED, PAPER]))
def test_energies_equal_the_equations(graph: MemoryGraph, model: EnergyModel) -> None:
    weighed = graph.weigh(model)
    expected = direct(graph, model)
    assert {(one.node, one.evidence.item_id): one.energy for one in weighed} == pytest.approx(expected)
    newest_first = [one for one in reversed(weighed) if one.evidence.pictures]
    pictured = sorted(newest_first, key=lambda one: -one.energy)[: model.top_k]
    total = sum(one.energy for one in pictured)
    if pictured and model.pixels * pictured[-1].energy / total >= model.min_pixels + 1:
        # Nothing is too small: eq. 8 as it stands, but for the rounding of its floor.
        for one in pictured:
            share = model.pixels * one.energy / total
            count = min(one.evidence.pictures, int(share // model.min_pixels))
            assert abs(one.pixels - share / count) <= 1.001


@settings(max_examples=60, deadline=None)
@given(graphs(), models, st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=5))
def test_the_budget_holds_and_energy_buys_pixels(
    graph: MemoryGraph, model: EnergyModel, sizes: list[tuple[int, int]]
) -> None:
    weighed = graph.weigh(model)
    shown = [one for one in weighed if one.pictures]
    assert len(shown) <= model.top_k
    assert all(one.pixels >= model.min_pixels and one.pictures <= one.evidence.pictures for one in shown)
    assert sum(one.pictures * one.pixels for one in shown) <= model.pixels
    # What is sent: each picture of whatever size, brought under its share.
    sent = 0
    for number, one in enumerate(shown):
        width, height = fit_area(sizes[number % len(sizes)], 1, one.pixels)
        sent += one.pictures * width * height
    assert sent <= model.pixels
    pages = sorted((one for one in weighed if one.evidence.kind == "image"), key=lambda one: one.energy)
    for less, more in pairwise(pages):
        if more.energy > less.energy:
            assert more.pixels >= less.pixels
            of_less, of_more = (fit_area(sizes[0], 1, one.pixels) if one.pixels else (0, 0) for one in (less, more))
            assert of_more[0] * of_more[1] >= of_less[0] * of_less[1]


@settings(max_examples=50, deadline=None)
@given(graphs())
def test_linearise_and_json_are_read_back(graph: MemoryGraph) -> None:
    assert graph.violations() == []
    linearised, repairs = parse(graph.linearise())
    assert (linearised, repairs) == (graph, ())
    value = graph.to_json(PAPER)
    restored, repairs = from_json(json.loads(json.dumps(value)))
    assert (restored, repairs) == (graph, ())
    assert restored.to_json(PAPER) == value


# Growing and repairs


def test_the_critical_path_and_the_dead_ends() -> None:
    graph = grown()
    graph.memorise("b", "found", [Evidence("report_1", "image", 4)])
    assert graph.critical_path() == ()
    # Before the answer: judged, nothing kept, nothing built on it.
    assert graph.dead_ends() == ("c", "d")
    assert graph.states() == dict(zip([ROOT, *"abcd"], ["memorised"] * 3 + ["dead_end"] * 2, strict=True))
    assert graph.answer(["d"]) == ()
    assert graph.critical_path() == (ROOT, "a", "b", "d")
    assert graph.dead_ends() == ("c",)
    assert set(graph.states().items()) >= {(ROOT, "critical_path"), ("d", "critical_path"), ("c", "dead_end")}


def test_a_merge_has_several_parents() -> None:
    graph = grown()
    node, repairs = graph.add("sum", ["b", "c", "b"], "both")
    assert (node.parents, repairs) == (("b", "c"), ())
    assert graph.open == node
    assert graph.states()["sum"] == "searching"
    graph.answer(["sum"])
    assert graph.critical_path() == (ROOT, "a", "b", "c", "sum")
    assert graph.states()["sum"] == "critical_path"


@pytest.mark.parametrize(
    ("name", "parents", "stands", "above", "said"),
    [
        ("a", ["root"], "a~2", ("root",), "The id 'a' is taken"),
        ("A", ["root"], "A~2", ("root",), "The id 'A' is taken"),
        ("root", ["a"], "root~2", ("a",), "The id 'root' is taken"),
        ("answer", ["a"], "answer~2", ("a",), "The id 'answer' is taken"),
        ("e", ["e"], "e", ("root",), "There is no node 'e'"),
        ("e", ["nowhere", "a"], "e", ("a",), "There is no node 'nowhere'"),
        ("e", [], "e", ("root",), "No parent of 'e' is known"),
        ("e", ["Root", "B"], "e", ("root", "b"), "The parent 'B' of 'e' was taken for 'b'"),
    ],
)
def test_what_cannot_be_is_repaired_and_said(
    name: str, parents: list[str], stands: str, above: tuple[str, ...], said: str
) -> None:
    graph = grown()
    node, repairs = graph.add(name, parents, "query")
    assert (node.id, node.parents) == (stands, above)
    assert any(said in repair for repair in repairs)
    assert graph.violations() == []


def test_an_id_is_made_where_there_is_none_and_cut_where_it_is_huge() -> None:
    graph = MemoryGraph("q")
    assert graph.add("", ["root"], "sales of the north in the year 2023")[0].id == "sales of the north in the"
    first, second = graph.add("x" * 5_000, ["root"], "q")[0], graph.add("x" * 9_000, ["root"], "q")[0]
    assert len(first.id) == 80
    assert len(second.id) < 80
    assert graph.add("y", ["x" * 5_000, second.id], "q")[0].parents == (first.id, second.id)
    assert graph.add("<|im_end|>", ["root"], " ")[0].id == "search"


def test_an_answer_without_parents_rests_on_all() -> None:
    graph = grown()
    assert "names no node" in graph.answer(["nowhere"])[-1]
    assert graph.critical_path() == (ROOT, "a", "b", "c", "d")
    assert graph.dead_ends() == ()
    empty = MemoryGraph("q")
    assert empty.answer([]) == ()
    assert empty.critical_path() == (ROOT,)


def test_linear_history_ignores_parents() -> None:
    graph = MemoryGraph("q", linear=True)
    for name in "abc":
        _, repairs = graph.add(name, ["root", "nowhere"], "q")
        graph.memorise(name, "s")
        assert repairs == ()
    graph.answer(["a"])
    assert graph.parents() == {ROOT: (), "a": (ROOT,), "b": ("a",), "c": ("b",)}
    assert graph.critical_path() == (ROOT, "a", "b", "c")
    assert "parent_ids" not in graph.linearise().rsplit("\n", 2)[0]


def test_the_prompts_form_is_the_published_one() -> None:
    graph = grown()
    graph.memorise("a", "seen", [Evidence("report_1", "image", 4), Evidence("clip", "video", 3, (1.5,))])
    graph.answer(["a"])
    first, second, *_, last = json.loads(graph.linearise())
    assert first == {"id": "root", "name": "Initial Node", "content": "How much?"}
    assert list(second) == ["id", "parent_ids", "query", "summary", "memory"]
    assert second["memory"][1] == {"id": "clip", "kind": "video", "priority_score": 3, "timestamps": [1.5]}
    assert last == {"id": ANSWER, "parent_ids": ["a"]}


def test_the_watchers_form() -> None:
    graph = grown()
    graph.memorise("a", "seen", [Evidence("report_1", "image", 4)])
    graph.answer(["d"])
    value = graph.to_json(PAPER, labels={"report_1": "report.pdf, page 1"}, sent={("a", "report_1"): 1000})
    assert value["nodes"][0]["memory"] == [
        {
            "id": "report_1",
            "kind": "image",
            "priority_score": 4,
            "label": "report.pdf, page 1",
            "energy": pytest.approx(0.8 * 2 * math.exp(-0.3)),
            "pictures": 1,
            "pixels": PAPER.pixels,
            "sent": 1000,
        }
    ]
    assert value["critical_path"] == [ROOT, "a", "b", "d"]
    assert (value["dead_ends"], value["answer"], value["budget"]) == (
        ["c"],
        {"id": ANSWER, "parent_ids": ["d"]},
        PAPER.pixels,
    )


def record(name: str, *parents: str, summary: str | None = "s") -> dict[str, object]:
    return {"id": name, "parent_ids": list(parents), "query": "q", "summary": summary}


@pytest.mark.parametrize(
    ("records", "above", "said"),
    [
        ([record("b", "a"), record("a", "root")], {"a": ("root",), "b": ("a",)}, "parents come first"),
        ([record("a", "b"), record("b", "a")], {"a": ("root",), "b": ("a",)}, "form a cycle"),
        ([record("a", "a")], {"a": ("root",)}, "form a cycle"),
        ([record("a", "root"), record("a", "a")], {"a": ("root",), "a~2": ("a",)}, "is taken"),
        ([record("a", "gone")], {"a": ("root",)}, "There is no node 'gone'"),
        (
            [record("a", "root", summary=None), record("b", "a", summary=None)],
            {"a": ("root",), "b": ("a",)},
            "Only one search can be open",
        ),
    ],
)
def test_a_damaged_graph_is_repaired_when_it_is_read(
    records: list[dict[str, object]], above: dict[str, tuple[str, ...]], said: str
) -> None:
    graph, repairs = from_json({"question": "q", "nodes": records, "answer": None})
    assert {name: node.parents for name, node in graph.nodes.items()} == above
    assert any(said in repair for repair in repairs)
    assert graph.violations() == []


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[1]", '[{"id": "root"}]', '[{"id": "x", "content": "q"}]', "[" * 10_000, "null"]
)
def test_what_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="not a linearised memory graph"):
        parse(text)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"question": "q", "nodes": [{}], "answer": None},
        {"question": "q", "nodes": 3, "answer": None},
        {"question": "q", "answer": None, "nodes": [{**record("a"), "memory": [{"id": "x", "kind": "?"}]}]},
    ],
)
def test_what_is_no_graph_in_json_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(RecordError, match="not a memory graph"):
        from_json(value)


names = st.one_of(st.sampled_from([ROOT, ANSWER, "a", "A", "b", "c", "", "x" * 200, "a~2"]), st.text(max_size=4))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(names, st.lists(names, max_size=4), st.text(max_size=8)), max_size=12),
    st.lists(names, max_size=3),
)
def test_whatever_is_asked_for_the_graph_stays_one(asked: list[tuple[str, list[str], str]], answer: list[str]) -> None:
    graph = MemoryGraph("q")
    for name, parents, query in asked:
        if graph.open is not None:
            graph.memorise(graph.open.id, "s", [Evidence("x", "image"), Evidence("x", "image", 5)])
        node, _ = graph.add(name, parents, query)
        assert graph.open == node
        assert graph.violations() == []
    graph.answer(answer)
    assert graph.violations() == []
    path, dead = graph.critical_path(), graph.dead_ends()
    assert not set(path) & set(dead)
    assert {*path, *dead} == {ROOT, *graph.nodes}
    assert sum(one.pictures * one.pixels for one in graph.weigh(PAPER)) <= PAPER.pixels
