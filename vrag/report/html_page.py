"""A document as one HTML file that needs nothing else: styles inside, pictures as data URLs, no script, no address.

All texts are escaped; a content security policy in the page forbids scripts and requests, should one slip through.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources

from vrag import __version__
from vrag.report.graph_svg import draw
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
    StepKind,
    Steps,
    Table,
    gap,
    plain,
)
from vrag.report.pictures import Drawn, Missing

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_SHOWN = {True: '"shown"', False: '"passed"'}
#: A longer answer is set as text, not as a headline.
_LONG_ANSWER = 160

KIND_NAMES: dict[StepKind, str] = {
    "thought": "Thought",
    "search": "Search",
    "crop": "Look closer",
    "memory": "Memory",
    "note": "Note",
    "answer": "Answer",
    "failure": "End",
}


def render(document: Document, pictures: Mapping[Picture, Drawn | Missing]) -> str:
    """The whole file. A picture that ``pictures`` does not have is replaced by a sentence."""
    style = resources.files(__package__).joinpath("style.css").read_text("utf-8")
    contents = ""
    if len(document.chapters) > 1:
        entries = "".join(
            f'<li><a href="#run-{number}">{_text(chapter.question)}</a></li>'
            for number, chapter in enumerate(document.chapters, 1)
        )
        contents = f'<nav class="contents"><h1>{_text(document.title)}</h1><ol>{entries}</ol></nav>'
    body = "".join(_Page(number, pictures).chapter(chapter) for number, chapter in enumerate(document.chapters, 1))
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{_text(document.title)}</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>{contents}{body}<footer>Made by VRAG {__version__}</footer></main></body></html>\n"
    )


class _Page:
    """The chapter ``number``, whose anchors begin with it."""

    def __init__(self, number: int, pictures: Mapping[Picture, Drawn | Missing]) -> None:
        self._number = number
        self._pictures = pictures

    def chapter(self, chapter: Chapter) -> str:
        facts = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in chapter.facts)
        sections = "\n".join(self._section(section) for section in chapter.sections)
        return (
            f'<article id="run-{self._number}"><header><h1>{_text(chapter.question)}</h1>'
            f'<dl class="facts">{facts}</dl></header>\n{sections}</article>\n'
        )

    def _section(self, section: Section) -> str:
        parts: list[str] = []
        bullets: list[str] = []
        for block in section.blocks:
            if isinstance(block, Paragraph) and block.bullet:
                bullets.append(f"<li>{self._paragraph(block.claims)}</li>")
                continue
            if bullets:
                parts.append(f"<ul>{''.join(bullets)}</ul>")
                bullets = []
            parts.append(self._block(block))
        if bullets:
            parts.append(f"<ul>{''.join(bullets)}</ul>")
        return f"<section><h2>{_text(section.title)}</h2>{''.join(parts)}</section>"

    def _block(self, block: Block) -> str:
        if isinstance(block, Paragraph):
            return self._paragraph(block.claims)
        if isinstance(block, Callout):
            long = " long" if sum(len(claim.text) for claim in block.claims) > _LONG_ANSWER else ""
            return f'<div class="callout {block.tone}{long}">{self._paragraph(block.claims)}</div>'
        if isinstance(block, Notice):
            return f'<p class="notice">{_text(block.text)}</p>'
        if isinstance(block, ExhibitBlock):
            return self._exhibit(block)
        if isinstance(block, Steps):
            return f'<ol class="steps">{"".join(self._step(step) for step in block.steps)}</ol>'
        if isinstance(block, GraphBlock):
            return f'<div class="graph">{draw(block.graph)}</div>'
        return _table(block)

    def _paragraph(self, claims: Sequence[Claim]) -> str:
        return f"<p>{''.join(gap(claim) + self._claim(claim) for claim in claims).strip()}</p>"

    def _claim(self, claim: Claim) -> str:
        cites = "".join(self._cite(number) for number in claim.evidence)
        if claim.unsupported:
            return f'<span class="unsupported">{_text(claim.text)}</span><span class="flag">without evidence</span>'
        return _text(claim.text) + cites

    def _cite(self, number: int) -> str:
        return f'<a class="cite" href="#evidence-{self._number}-{number}">{number}</a>'

    def _exhibit(self, block: ExhibitBlock) -> str:
        one = block.exhibit
        role = "" if one.cited else "<small>not cited by the answer</small>"
        head = f'<h3><span class="cite">{one.number}</span>{_text(one.where)}{role}</h3>'
        body = f"<blockquote>{_text(block.passage)}</blockquote>" if block.passage else ""
        if block.figures:
            columns = "two" if len(block.figures) > 1 else "one"
            figures = "".join(self._figure(figure) for figure in block.figures)
            body += f'<div class="figures {columns}">{figures}</div>'
        return f'<div class="exhibit" id="evidence-{self._number}-{one.number}">{head}{body}</div>'

    def _step(self, step: Step) -> str:
        found = "".join(f"<li class={_SHOWN[one.shown]}>{_text(one.label)}</li>" for one in step.found)
        figures = "".join(self._figure(figure) for figure in step.figures)
        return (
            f'<li class="step-{step.kind}"><span class="kind">{KIND_NAMES[step.kind]}</span>'
            f"<p>{_text(step.text)}</p>"
            + (f'<ul class="found">{found}</ul>' if found else "")
            + (f'<div class="thumbs">{figures}</div>' if figures else "")
            + "</li>"
        )

    def _figure(self, figure: Figure) -> str:
        drawn = self._pictures.get(figure.picture, Missing("The picture was not loaded."))
        caption = f"<figcaption>{_text(figure.caption)}</figcaption>"
        if isinstance(drawn, Missing):
            return f'<figure><p class="gone">{_text(drawn.reason)}</p>{caption}</figure>'
        width, height = drawn.size
        data = base64.b64encode(drawn.data).decode("ascii")
        wide = ' class="wide"' if width > 2 * height else ""
        return (
            f'<figure{wide}><img src="data:image/jpeg;base64,{data}" width="{width}" height="{height}" '
            f'alt="{_text(figure.caption)}">{caption}</figure>'
        )


def _table(table: Table) -> str:
    if not table.header:
        rows = "".join(
            f'<tr><th scope="row">{_text(row[0])}</th>{"".join(f"<td>{_text(cell)}</td>" for cell in row[1:])}</tr>'
            for row in table.rows
        )
        return f'<table class="pairs"><tbody>{rows}</tbody></table>'
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in table.header)
    rows = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _text(text: str) -> str:
    """Fit for an element and for a quoted attribute."""
    return escape(plain(text), quote=True)
