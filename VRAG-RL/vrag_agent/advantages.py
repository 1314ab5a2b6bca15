"""Group advantages, and GGPO's masks: which segments of a trajectory the policy learns from. No tensors, no verl.

A *segment* is what one node of the memory graph cost the model: the search that opened it, and the turn that judged it.
The turns after the last search (the answer) are the terminal segment.

    advantages = group_advantages(rewards, groups)
    masked = masked_segments(segments, right=True, answer_parents=("b",))

GRPO: Shao et al., arXiv 2402.03300; the published trainer of VRAG-RL for the epsilon and the group of one. GGPO: VimRAG,
arXiv 2602.12735: mu = 1(r = 1) 1(v not in P_ans) + 1(r = 0) 1(v in R_val).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

EPSILON = 1e-6


def group_advantages(
    rewards: Sequence[float], groups: Sequence[Hashable], eps: float = EPSILON, scale_by_std: bool = True
) -> list[float]:
    """(r - mean) / (std + eps) inside each group, std with Bessel's correction; without scaling, r - mean.

    A group of one keeps its raw reward, as in the published trainer (there is nothing to compare it with). ``rewards`` and
    ``groups`` have one entry per trajectory. Raises ValueError where their lengths differ.
    """
    if len(rewards) != len(groups):
        raise ValueError(f"there are {len(rewards)} rewards, but {len(groups)} groups")
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    out = [0.0] * len(rewards)
    for indices in members.values():
        values = [rewards[index] for index in indices]
        if len(values) == 1:
            out[indices[0]] = values[0]
            continue
        mean = math.fsum(values) / len(values)
        std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
        for index, value in zip(indices, values, strict=True):
            out[index] = (value - mean) / (std + eps) if scale_by_std else value - mean
    return out


def silent_groups(rewards: Sequence[float], groups: Sequence[Hashable]) -> set[Hashable]:
    """The groups of more than one whose rewards are all equal: their advantages are 0, so they teach nothing."""
    seen: dict[Hashable, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        seen.setdefault(group, []).append(reward)
    return {group for group, values in seen.items() if len(values) > 1 and min(values) == max(values)}


@dataclass(frozen=True, slots=True)
class Segment:
    """A node's share of a trajectory, in the order of time. ``node`` is None for the terminal segment.

    ``valuable``: whether the node's search brought an item that the dataset names as relevant (R_val).
    """

    node: str | None
    parents: tuple[str, ...] = ()
    valuable: bool = False


def answer_path(parents: Mapping[str, Collection[str]], answer_parents: Collection[str]) -> frozenset[str]:
    """P_ans: the nodes that the answer rests on, walking the edges back from it; names that are no node are passed over."""
    path: set[str] = set()
    waiting = list(answer_parents)
    while waiting:
        node = waiting.pop()
        if node not in path:
            path.add(node)
            waiting.extend(parents.get(node, ()))
    return frozenset(path)


def masked_segments(
    segments: Sequence[Segment], right: bool, answer_parents: Collection[str] | None
) -> tuple[bool, ...]:
    """mu of each segment: True is left out of the loss.

    Right answers (r = 1) lose what is not on the answer's path: dead ends are not rewarded. Wrong ones (r = 0) lose the
    searches that found something relevant: they are not punished. The terminal segment always stays, and a right answer that
    names no parent that exists masks nothing: there is no path to be off.
    """
    if not right:
        return tuple(segment.node is not None and segment.valuable for segment in segments)
    nodes = {segment.node: segment.parents for segment in segments if segment.node is not None}
    if not set(answer_parents or ()) & nodes.keys():
        return tuple(False for _ in segments)
    path = answer_path(nodes, answer_parents or ())
    return tuple(segment.node is not None and segment.node not in path for segment in segments)
