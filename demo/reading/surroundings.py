"""What surrounds a span on a page, and how much each block around it explains of it: row, column, series, headings.

A sentence explains its own numbers, a row label its cells, a header its column, a legend's entry the bars of its colour, a
caption the number above it; a heading explains less of what stands below it, and the rest of the page hardly anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demo.reading.colours import SAME, distance
from demo.reading.layout import Block, Colour
from demo.reading.values import is_number, number
from vrag.geometry import Box, Size

Floats = NDArray[np.float64]

#: Weights of what a block can be to a span.
LABEL, PARAGRAPH, HEADING, PAGE = 1.0, 0.6, 0.35, 0.12
#: A number beside which a label stands behind another label; a label in another cell of the row.
BEHIND = 0.8
#: How far apart the channels of a strong colour are.
STRONG = 70
_LEGEND_CHARS = 40
#: The widest gap between a cell and its header, or between the cells of a column, in heights of a line.
REACH = 8.0
_LONG_LABEL_LINES, _LONG_LABEL_CHARS = 3, 120


@dataclass(frozen=True)
class Surroundings:
    """``weights[i]``: how much block ``i`` explains of the span, 0 to 1. The others are the blocks that name it."""

    weights: Floats
    row: int | None = None
    column: int | None = None
    series: int | None = None

    @property
    def names(self) -> list[int]:
        return [index for index in (self.row, self.column, self.series) if index is not None]


class Map:
    """The blocks of a page as arrays, prepared for asking what surrounds a box."""

    def __init__(self, blocks: Sequence[Block], size: Size, named: Sequence[bool] | None = None) -> None:
        """``named`` says which blocks the question itself names: a number among them is a label ("30 min"), not a value."""
        self.blocks = blocks
        self.size = size
        boxes = np.array([block.box.as_list() for block in blocks], np.float64).reshape(-1, 4)
        self.x1, self.y1, self.x2, self.y2 = boxes.T
        self.heights = np.array([block.height for block in blocks], np.float64)
        self.middles = (self.y1 + self.y2) / 2
        self.numbers = np.array([is_number(block.text) for block in blocks], bool)
        if named is not None:
            self.numbers &= ~np.array(named, bool)
        #: Numbers that are measurements; a year may be the name of a column or a series.
        self.values = np.array(
            [bool(n) and not _is_year(b.text) for n, b in zip(self.numbers, blocks, strict=True)], bool
        )
        self.legend = np.array([block.lines[0].swatch is not None for block in blocks], bool) & ~self.values
        self.legend &= self._in_line(self.legend)
        self._marks = self._colours()
        self._long = np.array(
            [len(b.lines) > _LONG_LABEL_LINES or len(b.text) > _LONG_LABEL_CHARS for b in blocks], bool
        )
        self.ticks = self._axes()
        """Numbers that mark the axis of a chart, or the page itself: they measure nothing."""
        #: [i, j]: whether the blocks stand in one column.
        self._mates = _overlap(self.x1[:, None], self.x2[:, None], self.x1[None], self.x2[None]) > 0.3

    def around(self, box: Box, block: int, bars: Sequence[Colour] = (), cell: bool = True) -> Surroundings:
        """The surroundings of ``box``, which lies in ``block``; ``bars`` are the colours that stand by it.

        ``cell``: whether it is most of its block, as in a table or a chart; only then it has a column.
        """
        above = (self.y2 <= box.y1) & ((_overlap(self.x1, self.x2, box.x1, box.x2) > 0.3) | (self.x1 <= box.x1))
        weights = np.where(above, HEADING, PAGE)
        weights[block] = PARAGRAPH
        hidden = np.zeros(len(self.blocks), bool)
        hidden[block] = True
        series = None
        letters = self.blocks[block].lines[0].ink
        bars = (*bars, letters) if letters is not None and self.numbers[block] else tuple(bars)
        if bars:
            series = self._series(bars)
            if series is not None and self.legend[series]:
                hidden |= self.legend
                weights[self.legend] = 0.05
        row_weights = self._row(box, block, hidden)
        if not self.numbers[block]:  # only a number may have its label on the right
            row_weights[self.x1 >= box.x2 - 0.4 * box.height] = 0.0
        caption = self._caption(box, hidden) if self.numbers[block] else None
        if caption is not None:
            row_weights *= 0.4
        labels = np.where(self.numbers, 0.0, row_weights)
        row = int(labels.argmax()) if labels.size and labels.max() >= 0.35 else None
        weights = np.maximum(weights, LABEL * row_weights)
        column = caption
        if caption is not None:
            weights[caption] = LABEL
        elif cell and self.x2[block] - self.x1[block] < 0.5 * self.size[0]:
            stacked = self._stacked(box, block, hidden, has_row=bool(labels.max() >= 0.7))
            if series is not None:  # the bars of a chart have no header; what stands far above them is a title
                stacked[box.y1 - self.y2 > 1.5 * box.height] = 0.0
            weights = np.maximum(weights, LABEL * stacked)
            column = int(stacked.argmax()) if stacked.max() >= 0.8 else None
        if series is not None:
            weights[series] = LABEL
        return Surroundings(weights, row, column, series)

    def _in_line(self, entries: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which entries have another beside them or close under or over them, as the entries of a legend have."""
        found = np.zeros(len(self.blocks), bool)
        for index in np.flatnonzero(entries):
            h = self.heights[index]
            row = np.abs(self.middles - self.middles[index]) < 0.6 * h
            column = (np.abs(self.x1 - self.x1[index]) < 0.8 * h) & (np.abs(self.middles - self.middles[index]) < 5 * h)
            found[index] = (entries & (row | column)).sum() > 1
        return found

    def _colours(self) -> dict[int, Colour]:
        """Block -> the colour that it stands for: a legend's entries; without a legend, short labels in letters of colour."""
        marks = {i: self.blocks[i].lines[0].swatch for i in map(int, np.flatnonzero(self.legend))}
        if not marks:
            short = [
                len(b.lines) <= 3 and len(b.text) <= _LEGEND_CHARS and b.lines[0].ink is not None for b in self.blocks
            ]
            entries = self._in_line(np.array(short, bool) & ~self.values)
            marks = {i: self.blocks[i].lines[0].ink for i in map(int, np.flatnonzero(entries))}
        return {index: mark for index, mark in marks.items() if mark is not None}

    def _axes(self) -> NDArray[np.bool_]:
        """Numbers in even steps at even distances, in one row or column, and a small number alone at the page's edge."""
        amounts = np.array(
            [_amount(b.text) if n else np.nan for n, b in zip(self.numbers, self.blocks, strict=True)], np.float64
        )
        found = np.zeros(len(self.blocks), bool)
        centres = (self.x1 + self.x2) / 2
        known = np.flatnonzero(~np.isnan(amounts))
        for along, edges in ((self.middles, (self.x2, self.x1, centres)), (centres, (self.middles,))):
            for edge in edges:
                for index in known:
                    line = known[np.abs(edge[known] - edge[index]) < 0.35 * self.heights[index]]
                    line = line[np.argsort(along[line], kind="stable")]
                    if len(line) >= 4 and _even(amounts[line], 0.02) and _even(along[line], 0.15):
                        found[line] = True
        edge_rows = (self.y2 > 0.94 * self.size[1]) | (self.y1 < 0.04 * self.size[1])
        small = (np.abs(amounts) < 1000) & (amounts == np.round(amounts))
        marks: NDArray[np.bool_] = found | (
            edge_rows & small & np.array(["%" not in block.text for block in self.blocks], bool)
        )
        return marks

    def row_name(self, box: Box, block: int, nearest: int) -> int:
        """The block that says what the row of ``box`` is: the first text left of it that has some letters."""
        level = _overlap(self.y1, self.y2, box.y1, box.y2) >= 0.45
        left = [int(i) for i in np.flatnonzero(level & ~self.numbers & (self.x2 <= box.x1)) if i != block]
        named = [index for index in left if sum(char.isalpha() for char in self.blocks[index].text) >= 3]
        return min(named or left or [nearest], key=lambda index: float(self.x1[index]))

    def _row(self, box: Box, block: int, hidden: NDArray[np.bool_]) -> Floats:
        """How much each block is a label of the row of ``box``: the nearest in full, those behind it less."""
        height = np.maximum(1.0, np.minimum(box.height, self.heights))
        left = self.x2 <= box.x1 + 0.4 * height
        right = self.x1 >= box.x2 - 0.4 * height
        gap = np.maximum(np.maximum(self.y1 - box.y2, box.y1 - self.y2), 0.0) / height
        level = np.where(
            _overlap(self.y1, self.y2, box.y1, box.y2) >= 0.45, 1.0, np.where(gap < 1.6, 0.8 - 0.3 * gap, 0.0)
        )
        weights = level * np.where(left, 1.0, np.where(right, 0.75, 0.0))
        weights[hidden] = 0.0
        weights[self._long] *= 0.3
        middle = (box.y1 + box.y2) / 2
        away = np.maximum(np.maximum(self.y1 - middle, middle - self.y2), 0.0)
        order = away + 1e-3 * np.abs(self.middles - middle)
        candidates = np.flatnonzero(weights > 0)
        for index in candidates:
            rivals = self._mates[index] & (order < order[index])
            rivals[block] = False
            if rivals.any():
                weights[index] *= 0.3
        behind = 1.0
        aside = np.maximum(self.x1 - box.x2, box.x1 - self.x2)
        for index in sorted(candidates, key=lambda i: float(aside[i])):
            full = weights[index] >= 0.7 and not self.numbers[index]
            weights[index] *= behind
            if full:
                behind = BEHIND
        return weights

    def _caption(self, box: Box, hidden: NDArray[np.bool_]) -> int | None:
        """The label that stands right below a number as its own, as around a pie or in a tile."""
        gap = self.y1 - box.y2
        below = (gap >= -0.4 * box.height) & (gap <= 0.9 * box.height) & ~self.numbers & ~hidden & ~self.legend
        centred = np.abs((self.x1 + self.x2) - (box.x1 + box.x2)) / 2 <= 0.6 * box.height + 0.25 * box.width
        below &= _overlap(self.x1, self.x2, box.x1, box.x2) > 0.6
        below &= centred | (self.x2 - self.x1 <= 4 * box.width)
        found = np.flatnonzero(below)
        if not len(found):
            return None
        # A number with numbers close above it is a cell of a table, and what is below is the next row or a note.
        over = self.values & ~hidden & (box.y1 - self.y2 < 2 * box.height) & (self.y2 <= box.y1 + 0.4 * box.height)
        if (over & (_overlap(self.x1, self.x2, box.x1, box.x2) > 0.6)).any():
            return None
        return int(found[gap[found].argmin()])

    def _stacked(self, box: Box, block: int, hidden: NDArray[np.bool_], has_row: bool) -> Floats:
        """How much each block is a header above, or a label below, of the column of ``box``."""
        weights = np.zeros(len(self.blocks))
        reach = max(6 * (box.x2 - box.x1), 0.3 * self.size[0])
        column = ~hidden & ~self.values & (self.x2 - self.x1 <= reach)
        column &= _overlap(self.x1, self.x2, box.x1, box.x2) >= 0.4
        above = np.flatnonzero(column & (self.y2 <= box.y1 + 0.4 * box.height))
        above = self._connected(above[np.argsort(-self.y2[above], kind="stable")], box)
        if has_row and not self.numbers[block] and len(above):
            weights[above[0]], weights[above[-1]] = (
                0.8,
                0.9,
            )  # a cell of text: the nearest is the row above, the last the header
        elif len(above):
            weights[above[1:4]] = 0.7
            weights[above[0]] = 1.0
            for upper, lower in zip(above[1:3], above[:2], strict=False):  # a header of several lines
                if self.y1[lower] - self.y2[upper] > 0.6 * self.heights[lower] or weights[lower] < 1.0:
                    break
                weights[upper] = 1.0
        below = np.flatnonzero(column & (self.y1 >= box.y2 - 0.4 * box.height))
        if len(below):
            index = below[self.y1[below].argmin()]
            near = self.y1[index] - box.y2 <= 1.2 * box.height
            weights[index] = (0.25 if self.numbers[block] else 0.6) if has_row else 0.95 if near else 0.85
        return weights

    def _connected(self, above: NDArray[np.intp], box: Box) -> NDArray[np.intp]:
        """Of the blocks above, nearest first, those that no wide gap in their column parts from ``box``."""
        column = np.flatnonzero(
            (self.y2 <= box.y1 + 0.4 * box.height) & (_overlap(self.x1, self.x2, box.x1, box.x2) > 0)
        )
        top, reached = box.y1, []
        for index in column[np.argsort(-self.y2[column], kind="stable")]:
            if top - self.y2[index] > REACH * max(box.height, self.heights[index]):
                break
            top = min(top, self.y1[index])
            reached.append(index)
        return above[np.isin(above, reached)]

    def _series(self, bars: Sequence[Colour]) -> int | None:
        """The legend's entry whose colour one of ``bars`` has."""
        if not self.legend.any():  # letters stand for strong colours only; the stripes of a table are none
            bars = [colour for colour in bars if max(colour) - min(colour) >= STRONG]
        for colour in bars:
            near = [(distance(mark, colour), index) for index, mark in self._marks.items()]
            near.sort()
            if near and (
                near[0][0] <= SAME or (near[0][0] <= 2 * SAME and (len(near) < 2 or near[1][0] >= 1.6 * near[0][0]))
            ):
                return near[0][1]
        return None


def _overlap(a1: Floats, a2: Floats, b1: Floats | float, b2: Floats | float) -> Floats:
    """The shared part of intervals, as a share of the shorter one."""
    shared = np.minimum(a2, b2) - np.maximum(a1, b1)
    return np.asarray(np.maximum(shared, 0.0) / np.maximum(np.minimum(a2 - a1, np.subtract(b2, b1)), 1e-9))


def _is_year(text: str) -> bool:
    text = text.strip()
    return len(text) == 4 and text.isdigit() and text[:2] in ("19", "20")


def _amount(text: str) -> float:
    amount = number(text)
    return np.nan if amount is None else amount


def _even(values: Floats, tolerance: float) -> bool:
    """Whether the steps between values are the same, and not zero."""
    steps = np.diff(values)
    middle = float(np.median(steps))
    return middle != 0 and bool((np.abs(steps - middle) <= tolerance * abs(middle)).all())
