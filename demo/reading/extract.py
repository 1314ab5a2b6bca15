"""Question + sheet -> findings: spans that could be the answer, each with what supports it and where it stands.

Everything is one measure, :attr:`Finding.support`: the share of the question's (weighted) terms that the surroundings of a
span explain, each term by the best of them (:mod:`demo.reading.surroundings`). Terms that occur all over the page weigh less.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from demo.reading.layout import Block, Colour, Sheet, blocks, union
from demo.reading.question import Question
from demo.reading.surroundings import HEADING, Floats, Map, Surroundings
from demo.reading.values import Value, is_number, number, values
from demo.reading.words import best_match, content
from vrag.geometry import Box, whole

#: What the highest or lowest value of a group gains over spans that merely stand near the question's words.
EXTREME_BONUS = 0.25
#: What is left of the rank of a span whose form does not fit at all.
UNFIT = 0.2
#: What is left of the rank of values of other series, when the question names one.
OTHER_SERIES = 0.6
#: The upper and lower part of a page, as a share of its height, that hold running titles and page numbers.
MARGIN = 0.07
#: The longest text that is taken for the cell of a table, in characters.
MAX_CELL = 60
_SUM = re.compile(
    r"\s*(?:grand |sub)?-?(?:total|sum|average|mean|overall|all)\b|\s*(?:合计|总计|总和|小计|平均|全部)", re.I
)

_LAST, _FIRST = (
    re.compile(r"\b(?:last|latest)\b|最晚|最后|末班", re.I),
    re.compile(r"\b(?:first|earliest)\b|最早|首班", re.I),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A span that could be the answer. Boxes are in pixels of the sheet."""

    text: str
    support: float
    """0 to 1: how much of the question its surroundings explain."""
    rank: float
    """What findings are ordered by: support, and how well the form fits."""
    box: Box
    region: Box
    """The span with the label, row or sentence that says what it is: what to look at more closely."""
    height: float
    """The height of its line, in pixels."""
    label: str = ""
    """The row, column and series that it was read from, "" for a sentence."""
    sentence: str = ""
    """The sentence that it was read from, "" for a cell or a label."""
    series: float = 0.0
    """How far the question names the series of the chart that it belongs to: 1 if in full, 0 if there is none."""


@dataclass(frozen=True)
class _Place:
    """A span on the page, before it is judged."""

    block: int
    text: str
    box: Box
    fit: float
    sentence: str
    sentence_box: Box
    bars: tuple[Colour, ...] = ()


class Page:
    """A sheet prepared for one question."""

    def __init__(self, sheet: Sheet, question: Question) -> None:
        self.question = question
        self.blocks: tuple[Block, ...] = blocks(sheet)
        self.bounds = whole(sheet.size)
        self._terms = [term.text for term in question.terms]
        asked = set(self._terms)
        named = [bool(block.terms) and block.terms <= asked for block in self.blocks]
        self._map = Map(self.blocks, sheet.size, named)
        heights = sorted(line.box.height for line in sheet.lines)
        self._line_height = heights[len(heights) // 2] if heights else 1.0
        base = np.array([term.weight for term in question.terms], np.float64)
        #: [block, term]: how well the block has the term.
        self._matches = np.array([self._match(block.terms) for block in self.blocks]).reshape(
            len(self.blocks), len(self._terms)
        )
        self._weights = base * self._rarity()
        self._total = float(self._weights.sum()) or 1.0
        best = self._matches.max(axis=0, initial=0.0)
        self.coverage = float((base * best).sum() / (base.sum() or 1.0))
        """The share of the question's terms that occur anywhere on the page, by weight."""

    def findings(self) -> list[Finding]:
        """All findings, best first. Ties keep the page's order."""
        found = list(self._extremes()) if self.question.extreme and not self._is_written(self.question.extreme) else []
        judged = [finding for place in self._places() if (finding := self._judge(place)) is not None]
        if any(finding.series == 1.0 for finding in judged):  # the question names a series that has values
            judged = [f if f.series > 0 else replace(f, rank=OTHER_SERIES * f.rank) for f in judged]
        return sorted(found + judged, key=lambda finding: -finding.rank)

    def names(self, asked: Sequence[str]) -> bool:
        """Whether any of these terms occurs anywhere on the page; so if there are none."""
        return not asked or any(best_match(term, block.terms) >= 0.7 for term in asked for block in self.blocks)

    # -- terms -------------------------------------------------------------------------------------------------------

    def _match(self, terms: frozenset[str] | set[str]) -> list[float]:
        return [best_match(term, terms) for term in self._terms]

    def _rarity(self) -> Floats:
        """Per term, how much it tells the blocks of this page apart, 0.2 to 1; 1 for what the page does not have."""
        count = len(self.blocks)
        seen = (self._matches >= 0.7).sum(axis=0)
        rarity = np.log((count + 1.5) / (seen + 0.5)) / math.log(count + 1.5)
        return np.where(seen > 0, np.clip(1.2 * rarity, 0.2, 1.0), 1.0)

    def _support(self, around: Floats, own: Floats) -> float:
        explained = np.maximum((around[:, None] * self._matches).max(axis=0, initial=0.0), own)
        return float((self._weights * explained).sum() / self._total)

    def _precision(self, index: int) -> float:
        """The share of a block's terms that the question has: labels that say nothing else are the likelier ones."""
        terms = self.blocks[index].terms
        asked = set(self._terms)
        return sum(best_match(term, asked) for term in terms) / len(terms) if terms else 0.0

    # -- where an answer could stand ---------------------------------------------------------------------------------

    def _places(self) -> Iterator[_Place]:
        for index, block in enumerate(self.blocks):
            at = 0
            for sentence in block.sentences:
                at = start = max(at, block.text.find(sentence.text, at))
                box = block.locate(start, start + len(sentence.text))
                for value in values(sentence.text, self.question):
                    fit = value.fit * self._standing(index, value)
                    value = replace(value, fit=fit)
                    yield _value_place(index, block, sentence.text, start, value, box)
                if not self.question.numeric:
                    yield _Place(index, sentence.text, box, self._statement(index, sentence.text), sentence.text, box)

    def _standing(self, index: int, value: Value) -> float:
        """How much a value counts for where it stands: less on an axis, in a running title, in a heading."""
        block = self.blocks[index]
        if self._map.ticks[index] and self.question.kind != "year":
            return 0.3
        if self._in_margin(block):
            return 0.2
        return 0.85 if block.height > 1.4 * self._line_height and not is_number(block.text) else 1.0

    def _in_margin(self, block: Block) -> bool:
        low, high = MARGIN * self.bounds.height, (1 - MARGIN) * self.bounds.height
        return (block.box.y2 < low or block.box.y1 > high) and block.height <= 1.2 * self._line_height

    def _statement(self, index: int, text: str) -> float:
        """How much a text looks like something a page says, rather than a heading, a footer or an address."""
        fit = 0.8 if self.question.kind in ("person", "date") else 1.0
        block = self.blocks[index]
        if "://" in text or "www." in text:
            fit *= 0.4
        if self._in_margin(block) or block.height > 1.4 * self._line_height:
            fit *= 0.6
        if text.rstrip().endswith(("?", "？")):
            fit *= 0.6
        # The longer a text, the more words of any question it has.
        return fit / (1.0 + max(0.0, len(text) - 160) / 800)

    def _numbers(self) -> Iterator[_Place]:
        """The cells and bars that hold nothing but a number of the kind asked for."""
        for index in np.flatnonzero(self._map.values & ~self._map.ticks):
            block = self.blocks[index]
            if number(block.text) is None or (self.question.kind == "percent" and "%" not in block.text):
                continue
            yield _Place(int(index), block.text, block.box, 1.0, block.text, block.box, block.lines[0].bars)

    # -- judging -----------------------------------------------------------------------------------------------------

    def _judge(self, place: _Place) -> Finding | None:
        own = np.array(self._match(content(place.sentence)))
        if place.text == place.sentence and self._repeats(place.text):
            return None
        block = self.blocks[place.block]
        cell = len(block.text) <= MAX_CELL and len(place.text) >= 0.6 * len(block.text)
        around = self._map.around(place.box, place.block, place.bars, cell)
        support = self._support(around.weights, own)
        precision = min(2.0, sum(self._precision(index) for index in around.names))
        spoken = len(place.sentence) > 20 and (
            len(place.sentence) >= 1.5 * len(place.text) or place.text == place.sentence
        )
        label = " — ".join(dict.fromkeys(self.blocks[index].text for index in around.names))
        return Finding(
            text=place.text.strip(),
            support=support,
            rank=support * (UNFIT + (1 - UNFIT) * place.fit) + 0.05 * precision,
            box=place.box,
            region=self._region(place, around),
            height=block.height,
            label="" if spoken else label,
            sentence=place.sentence if spoken else "",
            series=0.0 if around.series is None else self._precision(around.series),
        )

    def _repeats(self, text: str) -> bool:
        """Whether a text says nothing that the question does not say."""
        asked = set(self._terms)
        return all(best_match(term, asked) >= 0.7 for term in content(text))

    def _region(self, place: _Place, around: Surroundings) -> Box:
        """The span and its sentence with the labels of its row and column, as far as they are not across the page."""
        region = union([place.box, place.sentence_box])
        for index in (around.row, around.column):
            if index is None:
                continue
            wider = union([region, self.blocks[index].box])
            if wider.area <= 0.3 * self.bounds.area or wider.height <= 6 * self.blocks[place.block].height:
                region = wider
        return region

    # -- the highest and the lowest ----------------------------------------------------------------------------------

    def _extremes(self) -> Iterator[Finding]:
        """The highest or lowest of every group of values that share a series or a column."""
        groups: dict[tuple[str, int], list[tuple[float, _Place, Surroundings]]] = {}
        for place in self._numbers():
            around = self._map.around(place.box, place.block, place.bars)
            amount = number(place.text)
            if amount is not None and (around.row is not None or around.column is not None):
                groups.setdefault(self._group(place, around), []).append((amount, place, around))
        for group in groups.values():
            if len(group) < 3 or len({amount for amount, _, _ in group}) < 2:
                continue
            group = [entry for entry in group if not self._is_sum(entry[1], entry[2])] or group
            _, place, around = max(group, key=lambda entry: entry[0] * self.question.extreme)
            name = around.row if around.row is not None else around.column
            if name is None:
                continue
            shared = around.weights.copy()
            shared[shared == HEADING] = 0.8
            if around.row is not None:
                shared[around.row] = 0.0
            support = min(1.0, self._support(shared, np.zeros(len(self._terms))) + EXTREME_BONUS)
            finding = self._judge(place)
            if finding is not None:
                label = self.blocks[self._map.row_name(place.box, place.block, name)].text
                text = f"{label} ({place.text})" if self.question.names_item or self.question.parts > 1 else place.text
                yield replace(finding, text=text, support=support, rank=support, label=label, sentence="")

    def _is_sum(self, place: _Place, around: Surroundings) -> bool:
        """Whether a value is a total or an average of the others."""
        names = [*around.names, self._map.row_name(place.box, place.block, place.block)]
        return any(_SUM.match(self.blocks[index].text) for index in names if index != place.block)

    def _is_written(self, extreme: int) -> bool:
        """Whether the page itself says which is the last or the first: then nothing is to be compared."""
        if self.question.kind != "time":
            return False
        words = _LAST if extreme > 0 else _FIRST
        return any(words.search(block.text) for block in self.blocks)

    def _group(self, place: _Place, around: Surroundings) -> tuple[str, int]:
        if around.series is not None:
            return "series", around.series
        if around.row is None:
            return "line", 0
        if around.column is not None:
            return "column", around.column
        # Bars end where their values say; cells of a table stand under each other.
        return ("bars", 0) if place.bars else ("place", round(place.box.x2 / (0.04 * self.bounds.width)))


def _value_place(index: int, block: Block, sentence: str, start: int, value: Value, box: Box) -> _Place:
    return _Place(
        block=index,
        text=sentence[value.start : value.end],
        box=block.locate(start + value.start, start + value.end),
        fit=value.fit,
        sentence=sentence,
        sentence_box=box,
        bars=block.line_at(start + value.start).bars,
    )
