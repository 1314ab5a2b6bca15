"""A document as Markdown (GitHub's flavour) beside a folder of pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vrag.report.graph_svg import draw
from vrag.report.html_page import KIND_NAMES
from vrag.report.model import (
    Block,
    Callout,
    Chapter,
    Claim,
    Document,
    ExhibitBlock,
    Figure,
    GraphBlock,
    Notice,
    Paragraph,
    Picture,
    Section,
    Step,
    Steps,
    Table,
    gap,
    plain,
)
from vrag.report.pictures import Drawn, Missing

#: The names in the folder that is written.
TEXT_NAME, PICTURES_NAME = "report.md", "images"

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$!^@])")
#: What makes a list, a heading's underline or a rule at the beginning of a line.
_LINE_START = re.compile(r"^(\s*)([-+=])|^(\s*\d+)([.)])(?=\s|$)")


def render(document: Document, pictures: Mapping[Picture, Drawn | Missing]) -> dict[str, bytes]:
    """The files by their names: ``report.md``, and ``images/...`` as far as the text shows them."""
    writer = _Writer(pictures)
    parts = [writer.chapter(number, chapter) for number, chapter in enumerate(document.chapters, 1)]
    if len(document.chapters) > 1:
        entries = [f"{n}. [{_inline(c.question)}](#run-{n})" for n, c in enumerate(document.chapters, 1)]
        parts = [f"# {_inline(document.title)}", "\n".join(entries), *parts]
    return {TEXT_NAME: ("\n\n".join(parts) + "\n").encode("utf-8"), **writer.files}


class _Writer:
    """Collects the pictures while it writes; each is stored once."""

    def __init__(self, pictures: Mapping[Picture, Drawn | Missing]) -> None:
        self.files: dict[str, bytes] = {}
        self._pictures = pictures
        self._names: dict[Picture, str] = {}
        self._number = 0

    def chapter(self, number: int, chapter: Chapter) -> str:
        self._number = number
        facts = "  \n".join(f"**{_inline(name)}:** {_inline(value)}" for name, value in chapter.facts)
        head = f'<a id="run-{number}"></a>\n\n# {_inline(chapter.question)}'
        return "\n\n".join([head, facts, *(self._section(section) for section in chapter.sections)])

    def _section(self, section: Section) -> str:
        blocks = [self._block(block) for block in section.blocks]
        return "\n\n".join([f"## {_inline(section.title)}", *blocks])

    def _block(self, block: Block) -> str:
        if isinstance(block, Paragraph):
            said = self._claims(block.claims)
            return f"- {said}" if block.bullet else said
        if isinstance(block, Callout):
            said = self._claims(block.claims)
            return _quoted(f"**Answer:** {said}" if block.tone == "answer" else said)
        if isinstance(block, Notice):
            return f"*{_inline(block.text)}*"
        if isinstance(block, ExhibitBlock):
            return self._exhibit(block)
        if isinstance(block, Steps):
            return "\n\n".join(self._step(step) for step in block.steps)
        if isinstance(block, GraphBlock):
            name = f"{PICTURES_NAME}/graph-{self._number:02}.svg"
            self.files[name] = draw(block.graph).encode("utf-8")
            return f"![Memory graph]({name})"
        return _table(block)

    def _claims(self, claims: Sequence[Claim]) -> str:
        return "".join(gap(claim) + self._claim(claim) for claim in claims).strip()

    def _claim(self, claim: Claim) -> str:
        cites = "".join(f" [\\[{number}\\]](#evidence-{self._number}-{number})" for number in claim.evidence)
        return _lines(claim.text) + cites + (" *(without evidence)*" if claim.unsupported else "")

    def _exhibit(self, block: ExhibitBlock) -> str:
        one = block.exhibit
        role = "" if one.cited else " (not cited by the answer)"
        head = f'<a id="evidence-{self._number}-{one.number}"></a>\n\n### \\[{one.number}\\] {_inline(one.where)}{role}'
        passage = [_quoted(_lines(block.passage))] if block.passage else []
        return "\n\n".join([head, *passage, *(self._figure(figure) for figure in block.figures)])

    def _step(self, step: Step) -> str:
        said = [f"**{KIND_NAMES[step.kind]}** (turn {step.number}): {_lines(step.text)}"]
        if step.found:
            said.append("\n".join(f"- {_inline(one.label)}{' (shown)' if one.shown else ''}" for one in step.found))
        return "\n\n".join([*said, *(self._figure(figure) for figure in step.figures)])

    def _figure(self, figure: Figure) -> str:
        drawn = self._pictures.get(figure.picture, Missing("The picture was not loaded."))
        caption = _inline(figure.caption)
        if isinstance(drawn, Missing):
            return f"*{caption}: {_inline(drawn.reason)}*"
        name = self._names.get(figure.picture)
        if name is None:
            # Not by the id: what a document is called must not decide what a file is called.
            name = f"{PICTURES_NAME}/picture-{len(self._names) + 1:03}.jpg"
            self._names[figure.picture] = name
            self.files[name] = drawn.data
        return f"![{caption}]({name})  \n*{caption}*"


def _table(table: Table) -> str:
    header = table.header or ("", "")
    rows = [header, tuple("---" for _ in header), *table.rows]
    return "\n".join(
        "| " + " | ".join(cell if number == 1 else _cell(cell) for cell in row) + " |"
        for number, row in enumerate(rows)
    )


def _cell(text: str) -> str:
    return "<br>".join(_inline(line) for line in plain(text).splitlines())


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _lines(text: str) -> str:
    """A text whose line breaks stay; blank lines do not, for the text must not leave the block it stands in."""
    return "  \n".join(_escaped(line.strip()) for line in plain(text).splitlines() if line.strip())


def _inline(text: str) -> str:
    """A text on one line."""
    return _escaped(" ".join(plain(text).split()))


def _escaped(line: str) -> str:
    """The line with nothing in it being markup, HTML or a link any more."""
    line = _SPECIAL.sub(r"\\\1", line)
    return _LINE_START.sub(lambda found: f"{found[1] or found[3] or ''}\\{found[2] or found[4]}", line)
