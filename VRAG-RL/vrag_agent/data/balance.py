"""Which of the correct demonstrations are kept, so that no length and no kind of action crowds out the others."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")


def balanced(
    items: Sequence[T],
    cell: Callable[[T], Hashable],
    limit: int | None = None,
    per_cell: int | None = None,
    seed: int = 0,
) -> list[T]:
    """At most ``limit`` items, at most ``per_cell`` of each cell, as evenly over the cells as they allow.

    The cells are dealt from in turn, each in a random order of its own (by ``seed``), until the limit is reached or all
    are empty; so a rare cell gives all it has, and the frequent ones share the rest. Kept items stay in their order.
    """
    draw = random.Random(seed)
    cells: dict[Hashable, list[int]] = {}
    for index, item in enumerate(items):
        cells.setdefault(cell(item), []).append(index)
    hands = []
    for name in sorted(cells, key=repr):
        hand = cells[name]
        draw.shuffle(hand)
        hands.append(hand[:per_cell])
    chosen: list[int] = []
    while any(hands) and (limit is None or len(chosen) < limit):
        for hand in hands:
            if hand and (limit is None or len(chosen) < limit):
                chosen.append(hand.pop())
    return [items[index] for index in sorted(chosen)]
