"""Rotary positions of Qwen2.5-VL and Qwen3-VL prompts, computed here and not left to the model.

The two models give a token three coordinates (time, row, column): text counts all three up together, the tokens of a picture
share their start and add their place in the grid, and the text after a picture goes on behind the largest coordinate reached
(Qwen2-VL, arXiv 2409.12191, 2.1). Releases of ``transformers`` differ in when they compute them: some need an extra input and
silently count 1, 2, 3 without it, some round the time of video frames differently. Handing them over makes every release agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
"""``(3, tokens)``: time, row, column."""


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of visual tokens in a prompt: a grid of ``time`` x ``rows`` x ``columns`` tokens beginning at ``start``.

    Two layers of the grid are ``seconds`` apart at ``rate`` positions a second; as in the reference implementation the product is
    taken in single precision and cut to an integer.
    """

    start: int
    time: int
    rows: int
    columns: int
    seconds: float = 1.0
    rate: float = 1.0

    @property
    def length(self) -> int:
        return self.time * self.rows * self.columns


def flat(tokens: int) -> Positions:
    """Every token one further than the one before, pictures included."""
    return np.tile(np.arange(tokens, dtype=np.int64), (3, 1))


def multimodal(tokens: int, runs: Sequence[Run]) -> Positions:
    """Positions of ``tokens`` tokens with ``runs`` of visual tokens in between (in order, not overlapping)."""
    positions = np.empty((3, tokens), dtype=np.int64)
    cursor = following = 0
    for run in runs:
        text = run.start - cursor
        positions[:, cursor : run.start] = following + np.arange(text)
        elapsed = np.arange(run.time, dtype=np.float32) * np.float32(run.seconds)
        layers = (elapsed * np.float32(run.rate)).astype(np.int64)
        grid = np.stack(np.meshgrid(layers, np.arange(run.rows), np.arange(run.columns), indexing="ij")).reshape(3, -1)
        origin = following + text
        cursor = run.start + run.length
        positions[:, run.start : cursor] = origin + grid
        following = origin + int(grid.max()) + 1
    positions[:, cursor:] = following + np.arange(tokens - cursor)
    return positions
