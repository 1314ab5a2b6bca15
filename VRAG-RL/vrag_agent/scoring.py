"""From a trajectory to its reward and its masks. Asks the judge; knows neither verl nor tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vrag.errors import ConfigError
from vrag.judge import Judge, JudgeFailed
from vrag.rewards import Reward, Weights, composite, page_id, pattern_ok, retrieval_ndcg
from vrag_agent.advantages import Segment, masked_segments
from vrag_agent.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Task:
    """A row of the data, as the rewards need it."""

    question: str
    answer: str
    relevant: frozenset[str]
    """Ids of the reference pages; empty where the data names none."""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Scored:
    """A trajectory's reward, or why it has none. ``excluded`` is a word for the metrics, ``why`` a sentence."""

    reward: Reward | None
    excluded: str = ""
    why: str = ""


def task_of(row: Mapping[str, Any]) -> Task:
    """Read a row of the converted data: ``extra_info`` or top-level columns. Raises ConfigError that names what is missing."""
    extra = row.get("extra_info") or {}

    def find(name: str) -> Any:
        value = extra.get(name)
        return row.get(name) if value is None else value

    question = find("question")
    if not question:
        messages = row.get("raw_prompt") or row.get("prompt") or ()
        question = next((turn["content"] for turn in reversed(list(messages)) if turn["role"] == "user"), "")
    answer = (row.get("reward_model") or {}).get("ground_truth")
    answer = find("answer") if answer is None else answer
    if not question or answer is None or not str(answer).strip():
        missing = "question" if not question else "answer (reward_model.ground_truth)"
        raise ConfigError(f"A row of the data has no {missing}; convert it with scripts/hf_dataset_convert.py.")
    pages = find("reference_page")
    pages = [] if pages is None else ([pages] if isinstance(pages, int) else list(pages))
    name = find("file_name")
    listed = extra.get("relevant_ids")  # what the converter made of pages in several files
    if listed is not None and len(listed):
        relevant = frozenset(map(str, listed))
    else:
        relevant = frozenset(page_id(str(name), int(page)) for page in pages) if name else frozenset()
    return Task(str(question), str(answer), relevant, int(find("index") or 0))


async def score(
    trajectory: Trajectory,
    task: Task,
    judge: Judge,
    weights: Weights,
    function: Callable[..., Reward] | None = None,
) -> Scored:
    """The reward of a trajectory. One that ended by a fault, or that the judge could not judge, has none; nor has one for which
    ``function``, somebody's own, gives something else than a reward whose total lies in [0, 1]."""
    if trajectory.faulty:
        return Scored(None, trajectory.ended, trajectory.error)
    if not trajectory.sampled:
        return Scored(None, "empty", trajectory.error or "The model sampled no token.")
    verdict = await judge.ajudge(task.question, task.answer, trajectory.answer)
    if isinstance(verdict, JudgeFailed):
        return Scored(None, "judge", verdict.reason)
    if function is not None:
        return _given(function(trajectory, task, verdict))
    ndcg = retrieval_ndcg(trajectory.shown, task.relevant)
    # A search that no step was left for was written, but never made.
    pattern = trajectory.searches > 0 and pattern_ok(trajectory.turns)
    return Scored(composite(verdict.score, pattern, ndcg, weights))


def _given(reward: Any) -> Scored:
    """What somebody's own reward function gave, where it is one."""
    if not isinstance(reward, Reward):
        return Scored(
            None, "reward", f"The reward function returned {type(reward).__name__}, not a vrag.rewards.Reward."
        )
    if reward.total is None:
        return Scored(None, "reward", "The reward function gave no total.")
    if not 0 <= reward.total <= 1:
        return Scored(None, "reward", f"The reward function gave a total of {reward.total}; it has to lie in [0, 1].")
    return Scored(reward)


@dataclass(frozen=True, slots=True)
class Mark:
    """Tokens ``start`` to ``end`` of a sample's response belong to segment ``segment`` of that sample."""

    start: int
    end: int
    segment: int
    masked: bool


def marks(trajectory: Trajectory, relevant: frozenset[str], right: bool) -> list[list[Mark]]:
    """GGPO's segments for each sample of a trajectory, with their masks.

    A segment is all turns of one node in one sample. Turns without a node (the answer, replies that could not be used) make
    up the terminal segment.
    """
    graph = trajectory.graph or {"nodes": [], "answer_parents": None}
    nodes = {
        node["id"]: Segment(node["id"], tuple(node["parents"]), bool(relevant & set(node["retrieved"])))
        for node in graph["nodes"]
    }
    segments = [*nodes.values(), Segment(None)]
    decided = masked_segments(segments, right, graph["answer_parents"])
    masked = {segment.node: off for segment, off in zip(segments, decided, strict=True)}
    out: list[list[Mark]] = []
    for sample in trajectory.samples:
        numbers: dict[str | None, int] = {}
        row: list[Mark] = []
        for span in sample.spans:
            node = span.node if span.node in nodes else None
            number = numbers.setdefault(node, len(numbers))
            row.append(Mark(span.start, span.end, number, masked[node]))
        out.append(row)
    return out


def counts_of_masked(rows: Sequence[Sequence[Mark]]) -> tuple[int, int]:
    """How many segments and how many tokens are masked."""
    segments = sum(len({mark.segment for mark in row if mark.masked}) for row in rows)
    tokens = sum(mark.end - mark.start for row in rows for mark in row if mark.masked)
    return segments, tokens
