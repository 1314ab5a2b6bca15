"""The composite reward as small pure functions: outcome (a judge's verdict), pattern, retrieval efficiency.

    relevant = relevant_ids("report.pdf", [3, 4])                        # {"report_3", "report_4"}
    ndcg = retrieval_ndcg(outcome.shown, relevant)                       # in [0, 1]
    pattern = pattern_ok(turns)                                          # the model's own turns
    reward = composite(verdict.score, pattern, ndcg, PUBLISHED)          # reward.total in [0, 1], or None

Sources: VRAG-RL (arXiv 2505.22019), section "reward", for the parts and their weighted sum; its published trainer for the
weights 0.7 / 0.1 / 0.2 and the gate; VimRAG (arXiv 2602.12735) for the binary outcome. A judge that failed has no
outcome: such a sample has no total and is left out of training; it is never a reward of 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from vrag import tool_calls
from vrag.actions import Answer, Search, parse_tags
from vrag.errors import ConfigError

#: Files with pages, or none: the suffix is no part of the id.
_DOCUMENTS = frozenset({".pdf", ".txt", ".md", ".jsonl"})
#: Files that are one item of their own: their id is the stem, without a page.
_SINGLE = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".mp4", ".mkv", ".webm", ".mov", ".avi"}
)
#: How far a sum of weights may be from 1.
_TOLERANCE = 1e-6


# --- retrieval


def page_id(file_name: str, page: int = 1) -> str:
    """The id under which the search service knows a page: ``{stem}_{page}``; a standalone image or clip: ``{stem}``.

    Only a suffix that names a kind of file is cut off, and only the last one: ``a.pdf.v2.pdf`` has the stem ``a.pdf.v2``,
    and a deck called ``v1.2 launch`` keeps its whole name. Pages count from 1.
    """
    name = PurePosixPath(file_name.replace("\\", "/")).name
    stem, dot, suffix = name.rpartition(".")
    suffix = dot + suffix.lower()
    if stem and suffix in _SINGLE:
        return stem if page == 1 else f"{stem}_{page}"
    return f"{stem if stem and suffix in _DOCUMENTS else name}_{page}"


def relevant_ids(file_name: str | None, pages: Iterable[int]) -> frozenset[str]:
    """The ids of a question's reference pages, from the dataset's ``file_name`` and ``reference_page``.

    Empty where the data names no file or no page.
    """
    return frozenset(page_id(file_name, int(page)) for page in pages) if file_name else frozenset()


def retrieval_ndcg(shown: Sequence[str], relevant: Collection[str]) -> float:
    """NDCG of the pages that a trajectory was shown, in the order of their first appearance; in [0, 1].

    VRAG-RL, r_Ret = DCG / IDCG with DCG = sum over i of (2^s_i - 1) / log2(i + 1), s_i = 1 for a relevant page and else
    0, i counting from 1, and IDCG = sum for i = 1 .. |D_rel| of 1 / log2(i + 1). A page counts once, where it came
    first (counted again, repeated pages would lift NDCG above 1). 0 where nothing is relevant or nothing was shown.
    """
    wanted = frozenset(relevant)
    if not wanted:
        return 0.0
    once = dict.fromkeys(shown)
    dcg = math.fsum(_discount(rank) for rank, item in enumerate(once, 1) if item in wanted)
    ideal = math.fsum(_discount(rank) for rank in range(1, len(wanted) + 1))
    return min(1.0, dcg / ideal)


def _discount(rank: int) -> float:
    return 1.0 / math.log2(rank + 1)


# --- pattern


def pattern_ok(turns: Iterable[str]) -> bool:
    """r_Pat of VRAG-RL: whether the model searched and answered, by its own turns alone.

    ``turns`` are the model's replies, never observations: tags in an explanation of the rules must not count. A turn
    counts for the one action that an episode takes from it, and only when its tag or tool call is closed; so tags inside of
    a thought, or a second action behind the first, earn nothing. Both grammars are read. Whether a search that a turn asks
    for was made is the trajectory's to say.
    """
    done = {kind for turn in turns for kind in [_kind(turn)] if kind}
    return {"search", "answer"} <= done


def _kind(turn: str) -> str:
    """What a turn does: "search", "answer" or "" for anything else."""
    lower = turn.lower()
    if "<tool_call>" in lower:
        _, call = tool_calls.parse_reply(turn)
        closed = "</tool_call>" in lower
        if isinstance(call, tool_calls.AddSearch):
            return "search" if closed else ""
        if isinstance(call, tool_calls.AddAnswer):
            return "answer" if closed else ""
        # The words alone, in a thought say, are no call.
    _, action = parse_tags(turn)
    if isinstance(action, Search):
        return "search" if "</search>" in lower else ""
    return "answer" if isinstance(action, Answer) and "</answer>" in lower else ""


# --- the sum


@dataclass(frozen=True, slots=True)
class Weights:
    """How the parts are summed: ``outcome``, ``pattern`` and ``retrieval`` are in [0, 1] and sum to 1.

    With ``gate``, a trajectory without the pattern has a total of 0 whatever else it achieved. Raises ConfigError.
    """

    outcome: float
    pattern: float = 0.0
    retrieval: float = 0.0
    gate: bool = False

    def __post_init__(self) -> None:
        parts = (self.outcome, self.pattern, self.retrieval)
        if not all(math.isfinite(part) and part >= 0 for part in parts):
            raise ConfigError(f"The weights of the reward have to be 0 or more, not {parts}.")
        if abs(math.fsum(parts) - 1) > _TOLERANCE:
            raise ConfigError(f"The weights of the reward have to sum to 1, but {parts} sum to {math.fsum(parts):g}.")


#: The published trainer: 0.7 outcome + 0.1 pattern + 0.2 NDCG, and 0 for a trajectory without the pattern.
PUBLISHED = Weights(outcome=0.7, pattern=0.1, retrieval=0.2, gate=True)
#: VimRAG: the judge's verdict alone.
VIMRAG = Weights(outcome=1.0)


def paper_weights(alpha: float, beta: float, gamma: float) -> Weights:
    """VRAG-RL's sum r = alpha r_Ret + beta r_Ans + gamma r_Pat, with alpha + beta + gamma = 1 and no gate.

    The paper gives gamma alone: 0 after an SFT, 0.1 when starting cold. Raises ConfigError.
    """
    return Weights(outcome=beta, pattern=gamma, retrieval=alpha)


def weights(preset: str, alpha: float | None = None, beta: float | None = None, gamma: float | None = None) -> Weights:
    """The weights of a preset by its name: ``published``, ``paper`` (alpha, beta and gamma have to be given), ``vimrag``.

    Raises ConfigError for another name, for a missing number, and for a number that the preset does not take.
    """
    given = (alpha, beta, gamma)
    if preset == "paper":
        if alpha is None or beta is None or gamma is None:
            raise ConfigError(
                "The reward preset 'paper' needs alpha (retrieval), beta (outcome) and gamma (pattern), summing to 1: "
                "the paper does not give them."
            )
        return paper_weights(alpha, beta, gamma)
    fixed = {"published": PUBLISHED, "vimrag": VIMRAG}.get(preset)
    if fixed is None:
        raise ConfigError(f"There is no reward preset {preset!r}; there are published, paper and vimrag.")
    if any(value is not None for value in given):
        raise ConfigError(f"alpha, beta and gamma belong to the reward preset 'paper'; {preset!r} has fixed weights.")
    return fixed


@dataclass(frozen=True, slots=True)
class Reward:
    """The parts of a reward and their sum, all in [0, 1]. ``outcome`` and ``total`` are None where the judge failed."""

    outcome: float | None
    pattern: float
    retrieval: float
    total: float | None

    @property
    def excluded(self) -> bool:
        """Whether the sample has to be left out: there is no verdict on it."""
        return self.total is None

    @property
    def right(self) -> bool:
        """The binary outcome (VimRAG's r): whether the judge was, on balance, for the answer."""
        return self.outcome is not None and self.outcome >= 0.5


def composite(outcome: float | None, pattern: bool, retrieval: float, weights: Weights = PUBLISHED) -> Reward:
    """Sum the parts of a trajectory's reward; ``outcome`` is None where the judge failed, and then so is the total.

    total = w_outcome * outcome + w_pattern * pattern + w_retrieval * retrieval; with a gate, 0 without the pattern.
    Raises ValueError for a part outside of [0, 1].
    """
    for name, value in (("outcome", outcome), ("retrieval", retrieval)):
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"the {name} of a reward has to lie in [0, 1], not {value}")
    formed = float(bool(pattern))
    if outcome is None:
        return Reward(None, formed, retrieval, None)
    if weights.gate and not pattern:
        return Reward(outcome, formed, retrieval, 0.0)
    total = weights.outcome * outcome + weights.pattern * formed + weights.retrieval * retrieval
    return Reward(outcome, formed, retrieval, min(1.0, max(0.0, total)))
