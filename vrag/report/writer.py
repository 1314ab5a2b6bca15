"""A longer, sectioned answer in which claims carry their evidence, written by the model after a run.

    report = write_report(trace, chat, retriever)       # trace: a RunTrace, or the Record of a run
    report.sections[0].paragraphs[0].claims[0]          # Claim("Sales rose to 4.2 million", evidence=(2,))

The model gets the evidence of the run, numbered, and cites it by number. A claim is the text up to its citations; numbers
that do not exist are dropped, text without any is marked as a claim without evidence, and the model is asked once to mend
that. Where it writes nothing that can be used, the report is put together from what the run itself noted, and says so.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from vrag import prompts
from vrag.actions import clean, plain_text
from vrag.chat import Chat
from vrag.episode import Generate, Generation
from vrag.errors import MediaError, ModelError, RetrieverError, VragError
from vrag.events import Usage
from vrag.geometry import MAX_PIXELS, MIN_PIXELS
from vrag.messages import Message, message
from vrag.pages import View, open_page, view_of
from vrag.records import Record
from vrag.report.findings import findings
from vrag.report.model import Claim, Paragraph, Report, ReportSection
from vrag.report.pictures import Pages, nearest_frame, sampled_frames
from vrag.report.trace import Exhibit, RunTrace
from vrag.turns import MAX_PASSAGE_CHARS, Meter, kept_reply, said

log = logging.getLogger(__name__)

_MAX_TITLE_CHARS = 200
_HEADING = re.compile(r"[ \t]{0,3}(#{1,6})[ \t]+(.*)")
_BOLD_LINE = re.compile(r"\s*\*\*([^*]{1,120})\*\*:?\s*")
_BULLET = re.compile(r"\s*(?:[-*+•·]|\d{1,2}[.)])\s+(.*)")
_FENCE = re.compile(r"\s*(?:```|~~~)")
_NUMBERS = r"\d{1,6}(?:\s?(?:[,;，、&–-]|and|to)\s?\d{1,6})*"
#: [1], [1, 3], [2-4], [^1], [Evidence 1], 【1】, and [1](#somewhere), of which only the number counts.
_CITATION = re.compile(
    rf"[\[【［]\s?\^?(?:(?:evidence|exhibit|source|no\.?)\s?)?({_NUMBERS})\s?[\]】］](?:\([^()\s]{{0,200}}\))?",
    re.IGNORECASE,
)
_CLOSING = re.compile(r"\s*[.,;:!?)。，；：！？）、]+")
_RANGE = re.compile(r"(\d+)\s?(?:–|-|to)\s?(\d+)|(\d+)", re.IGNORECASE)
_LONGEST_RANGE = 100


@dataclass(frozen=True)
class WriterOptions:
    """How a report is asked for."""

    max_exhibits: int = 8
    """Pieces of evidence that are shown to the model, the cited ones first."""
    min_pixels: int = MIN_PIXELS
    max_pixels: int = MAX_PIXELS
    """Limits of the area of one picture."""
    revisions: int = 1
    """How often the model is asked to mend claims without evidence."""
    prompt: str = field(default_factory=lambda: prompts.load("report"))  # {question}, {answer}
    revise: str = field(default_factory=lambda: prompts.load("report_revise"))  # {claims}, {numbers}

    @classmethod
    def load(cls, folder: Path | None = None, **values: int) -> WriterOptions:
        """With the prompts ``report.txt`` and ``report_revise.txt`` of ``folder``, where it has them."""
        return cls(prompt=prompts.load("report", folder), revise=prompts.load("report_revise", folder), **values)


@dataclass(frozen=True, slots=True)
class Draft:
    """A reply as read: what :func:`parse_report` makes of it."""

    title: str
    sections: tuple[ReportSection, ...]
    unknown: tuple[int, ...]
    """Numbers that it cites and that do not exist."""

    def claims(self, supported: bool) -> list[Claim]:
        return [
            claim
            for section in self.sections
            for paragraph in section.paragraphs
            for claim in paragraph.claims
            if claim.unsupported != supported
        ]


def write_report(run: RunTrace | Record, chat: Chat, retriever: Pages, options: WriterOptions | None = None) -> Report:
    """The report on a finished run. Always gives one: what went wrong on the way stands in its notes."""
    options = options or WriterOptions()
    trace = RunTrace.of_record(run) if isinstance(run, Record) else run
    exhibits = trace.exhibits()[: options.max_exhibits]
    parts, notes = _gather(exhibits, retriever, options)
    numbers = list(parts)
    usage: list[Usage] = []
    draft = None
    if parts:
        try:
            draft = _write(chat, _request(trace, parts, options), numbers, options, usage)
        except ModelError as error:
            log.warning("the model wrote no report: %s", error)
            notes.append(f"The model could not be asked for a report. {error}")
    if draft is not None and draft.claims(supported=True):
        if draft.unknown:
            listed = ", ".join(f"[{number}]" for number in draft.unknown[:10])
            notes.append(f"The report cited evidence that does not exist; these citations were left out: {listed}.")
        if loose := len(draft.claims(supported=False)):
            notes.append(
                f"{loose} {'statement is' if loose == 1 else 'statements are'} marked: no evidence was named for "
                f"{'it' if loose == 1 else 'them'}."
            )
        title = draft.title or trace.question
        return Report(trace, title, draft.sections, exhibits, "model", tuple(notes), tuple(usage))
    why = "The model wrote no report whose statements carry evidence" if usage else "There is no report by the model"
    notes.append(f"{why}, so this one was put together from what the run itself noted.")
    return Report(trace, trace.question, findings(trace, exhibits), exhibits, "run", tuple(notes), tuple(usage))


# Asking


def _gather(
    exhibits: Sequence[Exhibit], pages: Pages, options: WriterOptions
) -> tuple[dict[int, str | View], list[str]]:
    """What the model is shown of each exhibit, by number, and why some cannot be shown."""
    parts: dict[int, str | View] = {}
    notes: list[str] = []
    down = False  # then every further page would wait for the service
    for exhibit in exhibits:
        if down and exhibit.item.kind != "text":
            notes.append(f"[{exhibit.number}] could not be shown to the model for the same reason.")
            continue
        part = _shown(exhibit, pages, options)
        if isinstance(part, VragError):
            down = isinstance(part, RetrieverError)
            notes.append(f"[{exhibit.number}] could not be shown to the model. {part}")
        else:
            parts[exhibit.number] = part
    return parts, notes


def _shown(exhibit: Exhibit, pages: Pages, options: WriterOptions) -> str | View | VragError:
    try:
        return _show(exhibit, pages, options)
    except VragError as error:
        return error


def _show(exhibit: Exhibit, pages: Pages, options: WriterOptions) -> str | View:
    """Raises MediaError, RetrieverError."""
    item = exhibit.item
    limits = options.min_pixels, options.max_pixels
    if item.kind == "text":
        return _passage(exhibit)
    if item.kind == "video" or exhibit.timestamp is not None:
        seconds = exhibit.timestamp or 0.0
        frame = nearest_frame(sampled_frames(pages, item.id, options.max_pixels), item, seconds)
        return view_of(frame, None, *limits, timestamp=seconds)
    page = open_page(pages.image(item.id), item)
    try:
        return view_of(page, exhibit.box, *limits)
    except ValueError as error:
        raise MediaError(f"{item.id}: the region is not on the page.") from error


def _passage(exhibit: Exhibit) -> str:
    text = clean(exhibit.item.content or "", MAX_PASSAGE_CHARS)
    if not text:
        raise MediaError(f"{exhibit.item.id}: the passage is not in the record.")
    return text


def _request(trace: RunTrace, parts: dict[int, str | View], options: WriterOptions) -> Generate:
    """Evidence first, the task last: that order reads the same for models that look at pictures and for the reader."""
    places = {one.number: " ".join(clean(one.where).split()) for one in trace.exhibits()}
    content: list[str | View] = []
    for number, part in parts.items():
        content.append(f"[{number}] {places[number]}:" + (f"\n{part}" if isinstance(part, str) else ""))
        if isinstance(part, View):
            content.append(part)
    answer = (
        f"The short answer that was found: {clean(trace.answer)}" if trace.answer else "No answer was found so far."
    )
    content.append(prompts.fill(options.prompt, question=clean(trace.question), answer=answer))
    return Generate((message("user", *content),), "report")


def _write(
    chat: Chat, request: Generate, numbers: list[int], options: WriterOptions, usage: list[Usage]
) -> Draft | None:
    """The best draft; None where none can be used. Raises ModelError if the first cannot be had."""
    meter = Meter(None, None, time.monotonic)
    reply = _ask(chat, request, meter, usage)
    draft = parse_report(said(reply), numbers)
    for _ in range(options.revisions):
        loose = draft.claims(supported=False)
        if not loose or not draft.claims(supported=True):
            break
        try:
            reply = _ask(chat, _revision(request, reply, loose, numbers, options), meter, usage)
        except ModelError as error:
            log.warning("the report was not revised: %s", error)
            break
        better = parse_report(said(reply), numbers)
        if len(better.claims(supported=True)) * 2 < len(draft.claims(supported=True)):
            break  # it lost more than it mended
        if len(better.claims(supported=False)) >= len(loose):
            break
        draft = better
    return draft


def _revision(
    request: Generate, reply: Generation, loose: Sequence[Claim], numbers: Sequence[int], options: WriterOptions
) -> Generate:
    listed = "\n".join(f"- {claim.text[:300]}" for claim in loose[:20])
    asked = prompts.fill(options.revise, claims=listed, numbers=", ".join(f"[{number}]" for number in numbers))
    turns: tuple[Message, ...] = (
        *request.messages,
        message("assistant", kept_reply(replace(reply, text=said(reply)))),
        message("user", asked),
    )
    return Generate(turns, "report")


def _ask(chat: Chat, request: Generate, meter: Meter, usage: list[Usage]) -> Generation:
    meter.step += 1
    with closing(chat.stream(request)) as pieces:
        for piece in pieces:
            if isinstance(piece, Generation):
                usage.append(meter.count(request.messages, piece))
                return piece
    raise ModelError("The model's reply broke off.")


# Reading


def parse_report(reply: str, numbers: Collection[int]) -> Draft:
    """A reply as sections of claims; ``numbers`` are those of the evidence. Total: any string gives a draft."""
    title = ""
    sections: list[ReportSection] = []
    unknown: dict[int, None] = {}
    heading: str | None = None
    for line_heading, level, blocks in _headed(plain_text(reply)):
        if line_heading:
            if level == 1 and not title and not sections:
                title, heading = line_heading, None
            else:
                heading = line_heading
        paragraphs = tuple(
            Paragraph(claims, bullet) for bullet, text in blocks if (claims := _claims(text, numbers, unknown))
        )
        if paragraphs:
            sections.append(ReportSection(heading or ("Summary" if title else "Report"), paragraphs))
    return Draft(title, tuple(sections), tuple(unknown))


def _headed(text: str) -> Iterator[tuple[str, int, list[tuple[bool, str]]]]:
    """Headings with their level and the blocks below: (is a list item, text). What stands before the first has none."""
    heading, level = "", 0
    blocks: list[tuple[bool, str]] = []
    open_block = False
    for line in text.splitlines():
        if _FENCE.match(line):
            open_block = False
        elif (found := _HEADING.fullmatch(line)) or _BOLD_LINE.fullmatch(line):
            yield heading, level, blocks
            bold = _BOLD_LINE.fullmatch(line)
            heading = _title(found[2] if found else bold[1] if bold else "")
            level, blocks, open_block = len(found[1]) if found else 2, [], False
        elif not line.strip():
            open_block = False
        elif item := _BULLET.fullmatch(line):
            blocks.append((True, item[1]))
            open_block = True
        elif open_block:
            bullet, before = blocks[-1]
            blocks[-1] = bullet, f"{before} {line.strip()}"
        else:
            blocks.append((False, line.strip()))
            open_block = True
    yield heading, level, blocks


def _title(text: str) -> str:
    return " ".join(_unmarked(_CITATION.sub(" ", text)).strip("# \t").split())[:_MAX_TITLE_CHARS]


def _claims(text: str, numbers: Collection[int], unknown: dict[int, None]) -> tuple[Claim, ...]:
    """The text cut after its citations; those before any text belong to the first claim."""
    found: list[tuple[str, list[int]]] = []
    early: list[int] = []
    start = 0
    for citation in (*_CITATION.finditer(text), None):
        piece = text[start : citation.start() if citation else len(text)]
        if found and (closing := _CLOSING.match(piece)):
            # A full stop after the citation closes the statement before it.
            found[-1] = found[-1][0].rstrip() + closing[0].strip(), found[-1][1]
            piece = piece[closing.end() :]
        if any(sign.isalnum() for sign in piece):
            found.append((piece, early))
            early = []
        if citation:
            numbered = list(_cited(citation[1]))
            (found[-1][1] if found else early).extend(number for number in numbered if number in numbers)
            unknown.update((number, None) for number in numbered if number not in numbers)
            start = citation.end()
    return tuple(
        Claim(" ".join(_unmarked(piece).split()), tuple(dict.fromkeys(cited)), unsupported=not cited)
        for piece, cited in found
    )


def _cited(text: str) -> Iterator[int]:
    for first, last, one in _RANGE.findall(text):
        if one:
            yield int(one)
        elif 0 <= int(last) - int(first) <= _LONGEST_RANGE:
            yield from range(int(first), int(last) + 1)
        else:
            yield from (int(first), int(last))


def _unmarked(text: str) -> str:
    """Without the marks of emphasis and code, which are not part of what is said."""
    return text.replace("**", "").replace("`", "")
