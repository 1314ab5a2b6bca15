"""What a rollout leaves: samples of token ids that a policy is trained on, and what the rewards look at.

Token ids are kept as they were sampled. Masks and spans are made while the tokens come in, never by decoding them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from PIL import Image

from vrag.episode import Outcome

Action = Literal["search", "crop", "memorize", "answer", "invalid"]

#: Ends that say nothing about the policy: the trajectory is left out of training, and counted.
FAULTS = ("retriever", "model", "media", "unexpected")


@dataclass(frozen=True, slots=True)
class Span:
    """One turn of the model: tokens ``start`` (inclusive) to ``end`` (exclusive) of the response.

    ``step`` counts the turns of the trajectory from 1; ``node`` is the memory-graph node that the turn belongs to (the
    search it made or judged), None for the answer.
    """

    start: int
    end: int
    step: int
    action: Action
    node: str | None = None


@dataclass(slots=True)
class Sample:
    """One (prompt, response) pair.

    A response holds the model's turns (mask 1) and, between them, the observations (mask 0). Images are those of prompt
    and response in their order; the image tokens are expanded in the ids.
    """

    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    """As long as the response, 0.0 where the mask is 0; None when the model gave none."""
    images: list[Image.Image] = field(default_factory=list)
    prompt_images: int = 0
    """How many of the images stand in the prompt."""
    spans: list[Span] = field(default_factory=list)
    truncated: bool = False
    """Whether it ended because a limit left no room for what would have come next."""

    @property
    def ids(self) -> list[int]:
        return [*self.prompt_ids, *self.response_ids]

    @property
    def sampled(self) -> int:
        """How many tokens the model sampled."""
        return sum(self.response_mask)


@dataclass(slots=True)
class Trajectory:
    """One run of an episode. Without a sampled token there are no samples."""

    uid: str
    question: str
    samples: list[Sample]
    outcome: Outcome
    turns: list[str]
    """The model's own turns as text, in order; what the pattern reward reads."""
    graph: dict[str, Any] | None
    """The searches as a graph: ``{"nodes": [{"id", "parents", "retrieved", "shown"}], "answer_parents": [...] | None}``.

    ``retrieved`` are the ids of all hits of the search, ``shown`` those that it brought before the model. An episode that
    keeps no memory graph has one all the same: each search builds on the root, and the answer on the searches that brought
    the pages it cites.
    """
    ended: str
    """Why it ended: an :data:`vrag.events.EndReason` of the episode; a limit of the driver (``prompt_limit``,
    ``response_limit``); or one of :data:`FAULTS`."""
    error: str = ""
    """What happened, as a sentence, where it ended by an error."""
    notes: dict[str, int] = field(default_factory=dict)
    """Counts of what happened on the way: ``cut`` turns, ``forbidden`` tokens, ``rebuilt`` contexts."""
    seconds: float = 0.0
    model_seconds: float = 0.0
    retriever_seconds: float = 0.0
    """Time waited for the model and for the retriever."""
    searches: int = 0
    """Queries that the retriever was asked."""

    @property
    def shown(self) -> tuple[str, ...]:
        """Ids of the pages shown, in order, each once."""
        return self.outcome.shown

    @property
    def answer(self) -> str | None:
        return self.outcome.answer

    @property
    def faulty(self) -> bool:
        """Whether it ended by a fault of the surroundings, which is no reason to reward or punish the policy."""
        return self.ended in FAULTS

    @property
    def sampled(self) -> int:
        return sum(sample.sampled for sample in self.samples)

    def summary(self) -> dict[str, Any]:
        """JSON without tokens and pictures, for logs."""
        return {
            "uid": self.uid,
            "question": self.question,
            "answer": self.answer,
            "ended": self.ended,
            "error": self.error,
            "shown": list(self.shown),
            "turns": self.turns,
            "graph": self.graph,
            "samples": [
                {
                    "prompt_tokens": len(sample.prompt_ids),
                    "response_tokens": len(sample.response_ids),
                    "sampled_tokens": sample.sampled,
                    "images": len(sample.images),
                    "truncated": sample.truncated,
                    "spans": [[one.start, one.end, one.step, one.action, one.node] for one in sample.spans],
                }
                for sample in self.samples
            ],
            "searches": self.searches,
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
            "model_seconds": round(self.model_seconds, 3),
            "retriever_seconds": round(self.retriever_seconds, 3),
        }


def counts(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """How the trajectories ended: ``{"answer": 120, "response_limit": 3, ...}``; none is left out."""
    out: dict[str, int] = {}
    for one in trajectories:
        out[one.ended] = out.get(one.ended, 0) + 1
    return out
