from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrag.errors import ConfigError
from vrag.rewards import (
    PUBLISHED,
    VIMRAG,
    Weights,
    composite,
    page_id,
    paper_weights,
    pattern_ok,
    relevant_ids,
    retrieval_ndcg,
    weights,
)

SEARCH = "<think>Where?</think>\n<search>sales 2023</search>"
CROP = "<think>Too small.</think>\n<bbox>[1, 2, 30, 40]</bbox>"
ANSWER = "<think>It says 42.</think>\n<answer>42</answer>"
TOOL_SEARCH = '<tool_call>\n{"name": "add_search_node", "arguments": {"id": "a", "parent_ids": ["root"], "query": "q"}}\n</tool_call>'
TOOL_ANSWER = (
    '<tool_call>\n{"name": "add_answer_node", "arguments": {"parent_ids": ["a"], "answer": "42"}}\n</tool_call>'
)
IDS = st.sampled_from([f"d_{number}" for number in range(8)])


def direct_ndcg(shown: list[str], relevant: set[str]) -> float:
    """The paper's formula, written out over the list of distinct pages."""
    distinct = [item for index, item in enumerate(shown) if item not in shown[:index]]
    gains = [1 if item in relevant else 0 for item in distinct]
    dcg = sum((2**s - 1) / math.log2(i + 1) for i, s in enumerate(gains, start=1))
    return dcg / sum(1 / math.log2(i + 1) for i in range(1, len(relevant) + 1))


def test_ndcg_of_known_lists() -> None:
    assert retrieval_ndcg(["a_1"], {"a_1"}) == 1.0
    assert retrieval_ndcg(["b_1", "a_1"], {"a_1"}) == pytest.approx(1 / math.log2(3))
    assert retrieval_ndcg(["a_1", "b_1", "a_2"], {"a_1", "a_2"}) == pytest.approx(1.5 / (1 + 1 / math.log2(3)))
    assert retrieval_ndcg([], {"a_1"}) == 0.0
    assert retrieval_ndcg(["a_1"], set()) == 0.0


def test_a_page_counts_once_where_it_came_first() -> None:
    assert retrieval_ndcg(["a_1", "a_1", "a_1"], {"a_1"}) == 1.0
    assert retrieval_ndcg(["b_1", "b_1", "a_1"], {"a_1"}) == retrieval_ndcg(["b_1", "a_1"], {"a_1"})


@settings(max_examples=150, deadline=None)
@given(shown=st.lists(IDS, max_size=12), relevant=st.sets(IDS, min_size=1))
def test_ndcg_is_the_formula_and_never_above_1(shown: list[str], relevant: set[str]) -> None:
    value = retrieval_ndcg(shown, relevant)
    assert 0.0 <= value <= 1.0
    assert value == pytest.approx(direct_ndcg(shown, relevant))
    assert retrieval_ndcg(sorted(relevant) + shown, relevant) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("file_name", "page", "expected"),
    [
        ("report.pdf", 3, "report_3"),
        ("REPORT.PDF", 3, "REPORT_3"),
        ("a.pdf.v2.pdf", 1, "a.pdf.v2_1"),
        ("notes.pdf draft", 2, "notes.pdf draft_2"),
        ("v1.2 launch", 4, "v1.2 launch_4"),
        ("decks/2023/report.pdf", 5, "report_5"),
        ("chart.png", 1, "chart"),
        ("chart.png", 2, "chart_2"),
        ("clip.mp4", 1, "clip"),
        (".pdf", 1, ".pdf_1"),
        ("年报 2023.pdf", 7, "年报 2023_7"),
    ],
)
def test_ids_of_pages(file_name: str, page: int, expected: str) -> None:
    assert page_id(file_name, page) == expected


def test_relevant_ids() -> None:
    assert relevant_ids("report.pdf", [3, 4, 3]) == {"report_3", "report_4"}
    assert relevant_ids(None, [1]) == frozenset()
    assert relevant_ids("report.pdf", []) == frozenset()


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([SEARCH, ANSWER], True),
        ([SEARCH, CROP, ANSWER], True),
        ([ANSWER], False),
        ([SEARCH, SEARCH], False),
        ([], False),
        (["<think>just thinking</think>"] * 2, False),
        ([TOOL_SEARCH, TOOL_ANSWER], True),
        ([TOOL_ANSWER], False),
        # Only the action that is taken counts.
        (["<think>I could <search>x</search></think><answer>42</answer>"], False),
        (["<search>x</search> <answer>42</answer>"], False),
        # An action that was left open is carried out, but it is not the pattern.
        ([SEARCH, "<think>so</think>\n<answer>42"], False),
        (["<search>sales", ANSWER], False),
        ([SEARCH, "<answer>  </answer>"], False),
        # The words in a thought are no call.
        (["<think>no <tool_call> here</think><search>red fox</search>", ANSWER], True),
    ],
)
def test_pattern(turns: list[str], expected: bool) -> None:
    assert pattern_ok(turns) is expected


def test_the_explanation_of_the_rules_is_no_turn_of_the_model() -> None:
    """An observation with example tags between two turns of pure thinking must earn nothing."""
    observation = "That was invalid. Use <search>words</search> or <answer>Beijing</answer>."
    dialogue = [("assistant", "<think>a</think>"), ("user", observation), ("assistant", "<think>b</think>")]
    assert not pattern_ok(text for role, text in dialogue if role == "assistant")


def test_published_weights_and_gate() -> None:
    assert composite(1.0, True, 1.0).total == 1.0
    assert composite(1.0, True, 0.5).total == pytest.approx(0.7 + 0.1 + 0.1)
    assert composite(0.0, True, 1.0).total == pytest.approx(0.3)
    gated = composite(1.0, False, 1.0, PUBLISHED)
    assert (gated.total, gated.outcome, gated.right) == (0.0, 1.0, True)


def test_paper_and_vimrag_weights() -> None:
    paper = paper_weights(alpha=0.3, beta=0.6, gamma=0.1)
    assert composite(1.0, False, 0.5, paper).total == pytest.approx(0.6 + 0.15)
    assert composite(1.0, False, 0.0, VIMRAG).total == 1.0
    assert composite(0.0, True, 1.0, VIMRAG).total == 0.0
    assert weights("paper", 0.3, 0.6, 0.1) == paper
    assert weights("published") == PUBLISHED
    assert weights("vimrag") == VIMRAG


def test_a_judge_that_failed_leaves_no_reward() -> None:
    for pattern in (True, False):
        reward = composite(None, pattern, 1.0)
        assert reward.total is None
        assert reward.excluded
        assert not reward.right


def test_wrong_weights_say_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="sum to 1"):
        Weights(0.7, 0.1, 0.1)
    with pytest.raises(ConfigError, match="0 or more"):
        Weights(1.2, -0.2, 0.0)
    with pytest.raises(ConfigError, match="0 or more"):
        Weights(math.nan)
    with pytest.raises(ConfigError, match="needs alpha"):
        weights("paper", 0.5)
    with pytest.raises(ConfigError, match="fixed weights"):
        weights("published", alpha=0.5)
    with pytest.raises(ConfigError, match="published, paper and vimrag"):
        weights("best")
    for outcome, retrieval in ((1.5, 0.0), (math.nan, 0.0), (1.0, -0.1)):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            composite(outcome, True, retrieval)


@settings(max_examples=150, deadline=None)
@given(
    outcome=st.floats(0, 1),
    retrieval=st.floats(0, 1),
    pattern=st.booleans(),
    parts=st.tuples(*[st.floats(0, 1)] * 3).filter(lambda parts: sum(parts) > 0.01),
    gate=st.booleans(),
)
def test_totals_lie_in_0_to_1(
    outcome: float, retrieval: float, pattern: bool, parts: tuple[float, float, float], gate: bool
) -> None:
    share = [part / sum(parts) for part in parts]
    reward = composite(outcome, pattern, retrieval, Weights(*share, gate=gate))
    assert reward.total is not None
    assert 0.0 <= reward.total <= 1.0


@settings(max_examples=100, deadline=None)
@given(turns=st.lists(st.text(max_size=60) | st.sampled_from([SEARCH, ANSWER, CROP, TOOL_SEARCH]), max_size=4))
def test_any_turns_have_a_pattern_or_none(turns: list[str]) -> None:
    assert pattern_ok(turns) in (True, False)
