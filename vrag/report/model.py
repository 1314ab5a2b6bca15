"""What a report consists of: typed blocks without any format, and pictures by reference.

A :class:`Document` has a chapter per run, a chapter has sections, a section has blocks. :mod:`vrag.report.document` makes
it, :mod:`vrag.report.html_page` and :mod:`vrag.report.markdown` write it down, and :mod:`vrag.report.pictures` loads the
pictures in between. All texts are what models, documents and users wrote: only the writers know how to escape them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from vrag.events import Usage
from vrag.geometry import Box
from vrag.items import Item
from vrag.memory_graph import MemoryGraph
from vrag.messages import well_formed
from vrag.report.trace import Exhibit, RunTrace

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")


def plain(text: str) -> str:
    """The text without what no document may hold: control characters and lone surrogates."""
    return _CONTROL.sub("", well_formed(text))


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that a document shows: a page with ``box`` marked on it, or the region inside the box, or a frame."""

    item_id: str
    part: Literal["page", "region"]
    max_pixels: int
    """Area at most; nothing is ever enlarged."""
    box: Box | None = None
    """Page pixels."""
    timestamp: float | None = None
    """Seconds into the clip: the frame nearest to it is shown."""
    item: Item = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Figure:
    picture: Picture
    caption: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A piece of text with the numbers of the exhibits that it rests on.

    ``unsupported`` marks a claim that should rest on some but names none.
    """

    text: str
    evidence: tuple[int, ...] = ()
    unsupported: bool = False


@dataclass(frozen=True, slots=True)
class Paragraph:
    claims: tuple[Claim, ...]
    bullet: bool = False


@dataclass(frozen=True, slots=True)
class Callout:
    """The answer, or why there is none, set off from the rest."""

    claims: tuple[Claim, ...]
    tone: Literal["answer", "failure"]


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark of the report on itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ExhibitBlock:
    exhibit: Exhibit
    figures: tuple[Figure, ...] = ()
    passage: str = ""
    """The text itself, for a passage."""


StepKind = Literal["thought", "search", "crop", "memory", "note", "answer", "failure"]


@dataclass(frozen=True, slots=True)
class Found:
    """A hit of a search, and whether the model was shown it."""

    label: str
    shown: bool


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    """The model's turn, from 1."""
    kind: StepKind
    text: str
    found: tuple[Found, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True, slots=True)
class Steps:
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class GraphBlock:
    """The memory graph, to be drawn."""

    graph: MemoryGraph


@dataclass(frozen=True, slots=True)
class Table:
    rows: tuple[tuple[str, ...], ...]
    header: tuple[str, ...] = ()


Block = Paragraph | Callout | Notice | ExhibitBlock | Steps | GraphBlock | Table


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Chapter:
    """One run. ``facts`` are name and value: the model, the time, ..."""

    question: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    chapters: tuple[Chapter, ...]

    def pictures(self) -> Iterator[Picture]:
        """All pictures in the order of the text; one that is shown twice comes twice."""
        for chapter in self.chapters:
            for section in chapter.sections:
                for block in section.blocks:
                    figures: tuple[Figure, ...] = ()
                    if isinstance(block, ExhibitBlock):
                        figures = block.figures
                    elif isinstance(block, Steps):
                        figures = tuple(figure for step in block.steps for figure in step.figures)
                    yield from (figure.picture for figure in figures)


@dataclass(frozen=True, slots=True)
class ReportSection:
    title: str
    paragraphs: tuple[Paragraph, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A sectioned answer in which claims carry their evidence: the numbers in ``exhibits``."""

    trace: RunTrace
    title: str
    sections: tuple[ReportSection, ...]
    exhibits: tuple[Exhibit, ...]
    written_by: Literal["model", "run"]
    """Who wrote the sections: the model, or, where it wrote none that can be used, they are put together from the run."""
    notes: tuple[str, ...] = ()
    """What had to be repaired or left out."""
    usage: tuple[Usage, ...] = ()
    """Cost of the model calls that wrote it."""

    @property
    def question(self) -> str:
        return self.trace.question

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(
            claim for section in self.sections for paragraph in section.paragraphs for claim in paragraph.claims
        )

    @property
    def unsupported(self) -> tuple[Claim, ...]:
        """The claims that name no evidence."""
        return tuple(claim for claim in self.claims if claim.unsupported)

    def text(self) -> str:
        """The sections as plain text with their citations, for a terminal."""
        parts = [plain(self.title)]
        parts += ["\n".join([plain(section.title), *map(_line, section.paragraphs)]) for section in self.sections]
        parts.append("Evidence\n" + "\n".join(f"[{one.number}] {plain(one.where)}" for one in self.exhibits))
        return "\n\n".join([*parts, *map(plain, self.notes)])

    def as_json(self) -> dict[str, Any]:
        """The sections, the evidence and the notes as JSON values (the run itself has its record)."""
        return {
            "question": self.question,
            "title": self.title,
            "written_by": self.written_by,
            "sections": [
                {
                    "title": section.title,
                    "paragraphs": [
                        [
                            {"text": claim.text, "evidence": list(claim.evidence), "unsupported": claim.unsupported}
                            for claim in paragraph.claims
                        ]
                        for paragraph in section.paragraphs
                    ],
                }
                for section in self.sections
            ],
            "evidence": [one.as_json() for one in self.exhibits],
            "notes": list(self.notes),
        }


def gap(claim: Claim) -> str:
    """What stands between a claim and the one before it: no blank before punctuation and East Asian text."""
    first = claim.text[:1]
    return " " if (first.isascii() and first not in ",.;:!?)") or (first.isalpha() and first < "\u2e80") else ""


def _line(paragraph: Paragraph) -> str:
    said = "".join(
        gap(claim)
        + plain(claim.text)
        + "".join(f" [{number}]" for number in claim.evidence)
        + (" (without evidence)" if claim.unsupported else "")
        for claim in paragraph.claims
    ).strip()
    return f"- {said}" if paragraph.bullet else said
