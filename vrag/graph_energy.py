"""How much of the pixel budget each remembered picture deserves: equations 6 to 8 of VimRAG, as pure functions.

For item ``k`` of node ``i``, created as number ``t_i`` of ``0..T`` and rated ``p`` from 1 to 5:

    E(m_ik) = p / 5 * (1 + out-degree(i)) * exp(-decay * (T - t_i))                              (6)
    O(m_ik) = E(m_ik) + feedback * sum over children j of mean_k O(m_jk)                           (7)
    b_ik    = floor(pixels * O(m_ik) / sum of O over the top_k items)                              (8)

A node that much was built on keeps its pictures sharp, although it is old; one that led nowhere fades.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vrag.errors import ConfigError

#: Ratings are given from 1 to this.
TOP_PRIORITY = 5.0
#: A smaller picture is not worth sending: the processor of Qwen3-VL scales it up to this area again (64 visual tokens of
#: 32 x 32 pixels), so it would cost more than its share and show no more.
MIN_PICTURE_PIXELS = 64 * 32 * 32
#: Energies are cut here: a few hundred nodes that all build on all before them would otherwise leave the floats.
_MOST = 1e300


@dataclass(frozen=True, slots=True)
class EnergyModel:
    """The constants of the equations. Raises ConfigError for values that make no sense."""

    pixels: int
    """S_total: area of all remembered pictures together; 0 shows none."""
    top_k: int = 5
    """Items (pages or clips) that get a share."""
    decay: float = 0.1
    """Lambda: how fast a node fades with every node after it."""
    feedback: float = 0.3
    """Gamma: how much of its children's energy a node gets back."""
    bridge: bool = True
    """What a node without items hands to its parents. The mean of eq. 7 is undefined for it. True: it counts as if it held
    one item of no energy of its own, so what was built on it still reaches its parents. False: nothing (the published
    code), which cuts the chain."""
    uniform: bool = False
    """Ablation: no energy. Every item weighs the same, and the newest ``top_k`` are shown."""
    min_pixels: int = MIN_PICTURE_PIXELS
    """The least area of a picture that is worth sending."""

    def __post_init__(self) -> None:
        for name, least in (("pixels", 0), ("top_k", 1), ("decay", 0.0), ("feedback", 0.0), ("min_pixels", 1)):
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise ConfigError(f"{name} of the memory has to be a number from {least}, not {value}.")


#: The published agent: top 5 and 2,007,040 pixels; a node without items cuts the chain.
PUBLISHED = EnergyModel(pixels=2_007_040, bridge=False)
#: The paper: S_total = 5 * 256 * 32 * 32 pixels, that is 1,280 visual tokens of Qwen3-VL.
PAPER = EnergyModel(pixels=1_310_720)
PRESETS: Mapping[str, EnergyModel] = {"published": PUBLISHED, "paper": PAPER}


def energies(
    parents: Mapping[str, Sequence[str]], priorities: Mapping[str, Sequence[float]], model: EnergyModel
) -> dict[str, tuple[float, ...]]:
    """Eqs. 6 and 7: the energy of every item of every node.

    ``parents`` holds all nodes in the order of their creation (the root first, without parents); ``priorities`` the
    ratings of a node's items. The order of evaluation is a topological one, whatever the order of creation. Takes
    O(nodes + edges). Raises ValueError for a cycle or an unknown parent.
    """
    children: dict[str, list[str]] = {node: [] for node in parents}
    for node, above in parents.items():
        for parent in above:
            if parent not in children:
                raise ValueError(f"the parent {parent!r} of {node!r} is no node")
            children[parent].append(node)
    if model.uniform:
        return {node: (1.0,) * len(priorities.get(node, ())) for node in parents}
    last = len(parents) - 1
    age = {node: last - number for number, node in enumerate(parents)}
    found: dict[str, tuple[float, ...]] = {}
    mean: dict[str, float] = {}
    for node in _leaves_first(parents, children):
        rated = priorities.get(node, ())
        back = model.feedback * math.fsum(mean[child] for child in children[node])
        own = (1 + len(children[node])) * math.exp(-model.decay * age[node])
        found[node] = tuple(min(priority / TOP_PRIORITY * own + back, _MOST) for priority in rated)
        if rated:
            mean[node] = min(math.fsum(found[node]) / len(rated), _MOST)
        else:
            mean[node] = min(back, _MOST) if model.bridge else 0.0
    return {node: found[node] for node in parents}


def shares(weights: Sequence[float], pictures: Sequence[int], model: EnergyModel) -> list[tuple[int, int]]:
    """Eq. 8 for items in the order of their creation: for each, how many pictures it shows and the area of each at most.

    ``weights`` are the items' energies; ``pictures`` how many pictures an item has (1, or the kept frames of a clip,
    which divide its share evenly). Their areas together never exceed ``model.pixels``; of two items, the one with more
    energy never has the smaller share. Where a share would be less than ``min_pixels``, the item with the least energy
    goes without and the others share anew; a clip shows fewer of its frames. Of equals the newer is preferred.
    """
    out = [(0, 0)] * len(weights)
    ranked = sorted((number for number, count in enumerate(pictures) if count > 0), key=lambda i: (-weights[i], -i))
    chosen = ranked[: model.top_k]
    while chosen:
        total = math.fsum(weights[number] for number in chosen)
        allotted = [
            math.floor(model.pixels * weights[number] / total) if total > 0 else model.pixels // len(chosen)
            for number in chosen
        ]
        if allotted[-1] >= model.min_pixels:
            for number, share in zip(chosen, allotted, strict=True):
                count = min(pictures[number], share // model.min_pixels)
                out[number] = count, share // count
            break
        chosen.pop()
    return out


def _leaves_first(parents: Mapping[str, Sequence[str]], children: Mapping[str, Sequence[str]]) -> list[str]:
    """All nodes, each after its children. Raises ValueError for a cycle."""
    waiting = {node: len(below) for node, below in children.items()}
    order = [node for node, count in waiting.items() if not count]
    for node in order:
        for parent in parents[node]:
            waiting[parent] -= 1
            if not waiting[parent]:
                order.append(parent)  # the list is also the queue of this walk
    if len(order) < len(parents):
        raise ValueError("the nodes form a cycle")
    return order
