"""From recognised lines to what they make up: blocks (a paragraph, a label of two lines, a table cell) and sentences."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from demo.reading.values import is_number
from demo.reading.words import CJK, content
from vrag.geometry import Box, Size

Colour = tuple[int, int, int]

#: The widest gap between two lines of one block, in heights of a line: in running text, and beside numbers.
LEADING = 0.6
CLOSE = 0.3
#: ... and in a row of three or more short texts, as a table without numbers has them.
TIGHT = 0.08
_SHORT = 0.3


@dataclass(frozen=True, slots=True)
class Line:
    """One recognised line. ``box`` is in pixels of the image as displayed.

    ``swatch`` is the colour of a legend's mark left of the text; ``bars`` are the colours of the chart's shapes that a number
    stands in, beside or on; ``ink`` is the colour of the letters, where it is not black, grey or white.
    """

    text: str
    box: Box
    swatch: Colour | None = None
    bars: tuple[Colour, ...] = ()
    ink: Colour | None = None

    def part(self, start: int, end: int) -> Box:
        """The box of ``text[start:end]``, by its share of the line's length (Chinese characters are twice as wide)."""
        widths = [2 if re.match(f"[{CJK}]", char) else 1 for char in self.text]
        total = sum(widths) or 1
        left, right = sum(widths[:start]) / total, sum(widths[:end]) / total
        box = self.box
        return Box(box.x1 + box.width * left, box.y1, box.x1 + box.width * right, box.y2)


@dataclass(frozen=True, slots=True)
class Sheet:
    """One image as it was read: its size in pixels and its lines, in the recogniser's order."""

    size: Size
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Sentence:
    """A sentence of a block. ``spans`` says which part of which line it takes: (index into the block's lines, start, end)."""

    text: str
    spans: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Block:
    """Lines that are read together, top to bottom."""

    lines: tuple[Line, ...]

    @cached_property
    def box(self) -> Box:
        return union(line.box for line in self.lines)

    @cached_property
    def height(self) -> float:
        """The height of one line, in pixels."""
        heights = sorted(line.box.height for line in self.lines)
        return heights[len(heights) // 2]

    @cached_property
    def text(self) -> str:
        return self._joined[0]

    @cached_property
    def terms(self) -> frozenset[str]:
        return frozenset(content(self.text))

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        text, origins = self._joined
        found = []
        for start, end in self._bounds:
            spans: dict[int, tuple[int, int]] = {}
            for at in range(start, end):
                line, char = origins[at]
                if line >= 0:
                    low, high = spans.get(line, (char, char + 1))
                    spans[line] = (min(low, char), max(high, char + 1))
            if spans:
                found.append(Sentence(text[start:end].strip(), tuple((i, a, b) for i, (a, b) in sorted(spans.items()))))
        return tuple(found)

    def locate(self, start: int, end: int) -> Box:
        """The box of ``text[start:end]``: the union over the lines that it touches."""
        spans: dict[int, tuple[int, int]] = {}
        for line, char in self._joined[1][start:end]:
            if line >= 0:
                low, high = spans.get(line, (char, char + 1))
                spans[line] = (min(low, char), max(high, char + 1))
        if not spans:
            return self.box
        return union(self.lines[i].part(a, b) for i, (a, b) in spans.items())

    def line_at(self, start: int) -> Line:
        """The line that holds the character ``start`` of ``text``."""
        return self.lines[max(0, self._joined[1][start][0])] if self._joined[1] else self.lines[0]

    @cached_property
    def _bounds(self) -> list[tuple[int, int]]:
        """Where the sentences are: at their marks, and where a line ends early and the next begins anew (a list)."""
        text, origins = self._joined
        ends = [
            at
            for at in range(1, len(text))
            if origins[at][1] == 0
            and text[at].isupper() | text[at].isdigit()
            and self.lines[origins[at][0] - 1].box.x2 < self.box.x2 - max(0.2 * self.box.width, 3 * self.height)
            and len(self.lines) > 2
        ]
        bounds = []
        for start, end in itertools.pairwise([0, *ends, len(text)]):
            bounds += [(start + a, start + b) for a, b in _sentence_bounds(text[start:end])]
        return bounds

    @cached_property
    def _joined(self) -> tuple[str, list[tuple[int, int]]]:
        """The text, and for each of its characters (line, position in the line); (-1, -1) for a blank put in between."""
        text = ""
        origins: list[tuple[int, int]] = []
        for index, line in enumerate(self.lines):
            piece = line.text
            if text and piece:
                if re.search(r"[A-Za-z]-$", text) and piece[0].islower():
                    text, origins = text[:-1], origins[:-1]
                elif not (_is_han(text[-1]) and _is_han(piece[0])):
                    text += " "
                    origins.append((-1, -1))
            text += piece
            origins += [(index, at) for at in range(len(piece))]
        return text, origins


def union(boxes: Iterable[Box]) -> Box:
    """The smallest box around all of ``boxes`` (at least one)."""
    boxes = list(boxes)
    return Box(
        min(box.x1 for box in boxes),
        min(box.y1 for box in boxes),
        max(box.x2 for box in boxes),
        max(box.y2 for box in boxes),
    )


def overlap(a1: float, a2: float, b1: float, b2: float) -> float:
    """The shared part of two intervals, as a share of the shorter one."""
    shorter = min(a2 - a1, b2 - b1)
    return max(0.0, min(a2, b2) - max(a1, b1)) / shorter if shorter > 0 else 0.0


def blocks(sheet: Sheet) -> tuple[Block, ...]:
    """Groups lines into blocks: one under the other, close, of like height and aligned at an edge or the middle.

    Beside numbers (in a table or a chart) lines have to be closer than in running text, and lines that stand beside
    different rows of numbers are different rows, however close.
    """
    lines = sorted((line for line in sheet.lines if line.text.strip()), key=lambda line: (line.box.y1, line.box.x1))
    numbers = [line for line in lines if is_number(line.text)]
    rows = [None if is_number(line.text) else _row_beside(line, numbers) for line in lines]
    cells = [_in_text_row(line, lines, sheet.size[0]) for line in lines]
    groups: list[list[int]] = []
    for index, line in enumerate(lines):
        home: tuple[float, list[int]] | None = None
        for group in groups:
            last = group[-1]
            row, other = rows[index], rows[last]
            if row and other and row.differs(other):
                continue
            leading = TIGHT if cells[index] and cells[last] else CLOSE if row or other else LEADING
            if _continues(lines[last], line, leading):
                gap = line.box.y1 - lines[last].box.y2
                if home is None or gap < home[0]:
                    home = (gap, group)
        if home is None:
            groups.append([index])
        else:
            home[1].append(index)
    return tuple(Block(tuple(lines[i] for i in group)) for group in groups)


@dataclass(frozen=True, slots=True)
class _Row:
    """The row of numbers that a label stands beside."""

    middle: float
    exact: bool
    """Whether the label stands on the row's very height."""
    dense: bool
    """Whether the rows of numbers are as close as lines of text: bars of a group, or a tight table."""

    def differs(self, other: _Row) -> bool:
        if self.middle == other.middle:
            return False
        # A label of two lines beside a group of bars touches several of them, none exactly.
        return (self.exact and other.exact) or not (self.dense and other.dense)


def _row_beside(line: Line, numbers: Sequence[Line]) -> _Row | None:
    """The row of numbers nearest to the height of a label, among those left or right of it."""
    middle, height = _middle(line), line.box.height
    beside = sorted(
        (abs(_middle(other) - middle), _middle(other))
        for other in numbers
        if not (other.box.x1 < line.box.x2 and other.box.x2 > line.box.x1)
        and abs(_middle(other) - middle) < 2.5 * height
    )
    if not beside or beside[0][0] > 0.8 * height:
        return None
    nearest = beside[0][1]
    pitch = min((abs(y - nearest) for _, y in beside if abs(y - nearest) > 0.35 * height), default=10 * height)
    same_row = [y for _, y in beside if abs(y - nearest) <= 0.35 * height]
    return _Row(round(min(same_row), 3), beside[0][0] < 0.2 * height, pitch < 1.3 * height)


def _in_text_row(line: Line, lines: Sequence[Line], width: float) -> bool:
    """Whether a short text stands in a row with at least two others."""
    if line.box.width > _SHORT * width:
        return False
    mates = 0
    for other in lines:
        apart = other.box.x1 >= line.box.x2 or other.box.x2 <= line.box.x1
        if apart and other.box.width <= _SHORT * width:
            mates += abs(_middle(other) - _middle(line)) < 0.3 * line.box.height
    return mates >= 2


def _middle(line: Line) -> float:
    return (line.box.y1 + line.box.y2) / 2


def _continues(above: Line, below: Line, leading: float) -> bool:
    """Whether ``below`` carries on the text of ``above``; ``leading`` is the widest gap, in heights of a line."""
    a, b = above.box, below.box
    height = max(1.0, min(a.height, b.height))
    if not -0.5 * height <= b.y1 - a.y2 <= leading * height or max(a.height, b.height) > 1.45 * height:
        return False
    if is_number(above.text) or is_number(below.text) or below.swatch is not None:
        return False
    if overlap(a.x1, a.x2, b.x1, b.x2) < 0.5:
        return False
    aligned = min(abs(a.x1 - b.x1), abs(a.x2 - b.x2), abs((a.x1 + a.x2) - (b.x1 + b.x2)) / 2)
    return aligned <= 1.2 * height or (a.x1 - 3 * height <= b.x1 <= a.x1 + 4 * height and b.width > 12 * height)


def _is_han(char: str) -> bool:
    return bool(re.match(f"[{CJK}，。；：、？！（）]", char))


_SENTENCE_END = re.compile(r"(?<=[.!?])[\"”’)\]]*\s+(?=[\"“(\[]?[A-Z0-9•])|(?<=[。！？；])|\s*[•●▪■]\s*")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Dr|Mr|Mrs|Ms|Prof|St|No|vs|Fig|Inc|Ltd|Co|Jr|Sr|U\.S|e\.g|i\.e|approx|est)|\b[A-Z])\.$"
)


def _sentence_bounds(text: str) -> list[tuple[int, int]]:
    bounds, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        if _ABBREVIATION.search(text[start : match.start()]):
            continue
        if text[start : match.start()].strip():
            bounds.append((start, match.start()))
        start = match.end()
    if text[start:].strip():
        bounds.append((start, len(text)))
    return bounds
