"""Rewards and marks of trajectories; no model, no network but a judge that is not there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.servers import dead_url
from vrag.episode import Outcome
from vrag.errors import ConfigError
from vrag.judge import JudgeSettings, ModelJudge, RuleJudge
from vrag.rewards import PUBLISHED, Reward
from vrag_agent.scoring import Task, counts_of_masked, marks, score, task_of
from vrag_agent.trajectory import Sample, Span, Trajectory

TASK = Task("Which digit?", "7", frozenset({"cards_2"}))
ROW = {
    "extra_info": {"question": "Which?", "index": 3, "file_name": "cards.pdf", "reference_page": [2, 4]},
    "reward_model": {"ground_truth": "7"},
}


def trajectory(answer: str | None = "7", ended: str = "answer", sampled: int = 6, **changes: Any) -> Trajectory:
    spans = [
        Span(0, 2, 1, "search", "a"),
        Span(3, 4, 2, "memorize", "a"),
        Span(5, 6, 3, "search", "b"),
        Span(6, 8, 4, "answer"),
    ]
    sample = Sample([1], [1] * 8, [1, 1, 0, 1, 0, 1, 1, 1][:8] if sampled else [0] * 8, spans=spans)
    graph = {
        "nodes": [
            {"id": "a", "parents": ["root"], "retrieved": ["cards_1"], "shown": ["cards_1"]},
            {"id": "b", "parents": ["root"], "retrieved": ["cards_2"], "shown": ["cards_2"]},
        ],
        "answer_parents": ["b"],
    }
    outcome = Outcome(answer, "answer", 4, (), ("cards_1", "cards_2"))
    turns = ["<search>a</search>", "<answer>7</answer>"]
    searches = changes.get("searches", 2)
    return Trajectory(
        "u", "Which digit?", [sample], outcome, turns, changes.get("graph", graph), ended, searches=searches
    )


def scored(one: Trajectory, judge: Any = None) -> Any:
    return asyncio.run(score(one, TASK, judge or RuleJudge("exact"), PUBLISHED))


def test_a_right_answer_has_its_parts() -> None:
    reward = scored(trajectory()).reward
    assert reward is not None
    assert (reward.outcome, reward.pattern) == (1.0, 1.0)
    assert reward.total == pytest.approx(0.7 + 0.1 + 0.2 * reward.retrieval)


def test_a_search_that_was_written_but_never_made_does_not_count() -> None:
    reward = scored(trajectory(searches=0)).reward
    assert (reward.pattern, reward.total) == (0.0, 0.0)  # published: the gate


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Reward(1.0, 0.0, 0.0, None), "no total"),
        (Reward(1.0, 0.0, 0.0, float("nan")), "nan"),
        (Reward(1.0, 0.0, 0.0, 7.0), "7.0"),
        (0.5, "float"),
    ],
)
def test_what_is_no_reward_is_left_out_and_counted(given: Any, why: str) -> None:
    found = asyncio.run(score(trajectory(), TASK, RuleJudge("exact"), PUBLISHED, lambda *_: given))
    assert (found.reward, found.excluded) == (None, "reward")
    assert why in found.why


def test_no_answer_is_a_reward_of_little_and_no_exclusion() -> None:
    found = scored(trajectory(answer=None, ended="no_answer"))
    assert found.excluded == ""
    assert found.reward.outcome == 0.0


@pytest.mark.parametrize("ended", ["retriever", "model", "media", "unexpected"])
def test_a_fault_of_the_surroundings_excludes(ended: str) -> None:
    found = scored(trajectory(ended=ended))
    assert (found.reward, found.excluded) == (None, ended)


def test_a_judge_that_is_down_excludes_and_says_why() -> None:
    settings = JudgeSettings(base_url=f"{dead_url()}/v1", model="judge", retries=0, failure_limit=1.0)
    with ModelJudge(settings) as judge:
        found = scored(trajectory(), judge)
    assert (found.reward, found.excluded) == (None, "judge")
    assert "no verdict" in found.why


def test_a_trajectory_without_tokens_has_no_reward() -> None:
    assert scored(trajectory(sampled=0)).excluded == "empty"


def test_rows_are_read_and_what_is_missing_is_named() -> None:
    assert task_of(ROW) == Task("Which?", "7", frozenset({"cards_2", "cards_4"}), 3)
    with pytest.raises(ConfigError, match="no answer"):
        task_of({"extra_info": {"question": "Which?"}})
    with pytest.raises(ConfigError, match="no question"):
        task_of({"reward_model": {"ground_truth": "7"}})


def test_marks_follow_the_graph() -> None:
    [right] = marks(trajectory(), frozenset({"cards_2"}), right=True)
    assert [(mark.segment, mark.masked) for mark in right] == [(0, True), (0, True), (1, False), (2, False)]
    [wrong] = marks(trajectory(), frozenset({"cards_2"}), right=False)
    assert [(mark.segment, mark.masked) for mark in wrong] == [(0, False), (0, False), (1, True), (2, False)]
    assert counts_of_masked([right]) == (1, 3)


def test_without_a_graph_nothing_is_masked() -> None:
    [row] = marks(trajectory(graph=None), frozenset({"cards_2"}), right=True)
    assert not any(mark.masked for mark in row)
