"""From runs and reports to a document: pure, nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from vrag.events import (
    Answered,
    CropRequested,
    EndReason,
    Failed,
    Memorized,
    Note,
    SearchResults,
    SearchStarted,
    Thought,
    Usage,
    ViewShown,
)
from vrag.items import Item
from vrag.library import spread
from vrag.records import Record
from vrag.report.model import (
    Block,
    Callout,
    Chapter,
    Claim,
    Document,
    ExhibitBlock,
    Figure,
    Found,
    GraphBlock,
    Notice,
    Picture,
    Report,
    Section,
    Step,
    Steps,
    Table,
)
from vrag.report.trace import Exhibit, RunTrace, place
from vrag.usage import Totals

#: Areas at which pictures are drawn: a page of evidence, a region of it, a thumbnail in the reasoning path.
PAGE_PIXELS, REGION_PIXELS, THUMBNAIL_PIXELS = 420_000, 700_000, 110_000
#: Of a step that brought more (the frames of a clip), so many are shown, spread evenly.
MAX_THUMBNAILS = 9
#: A longer passage or thought is cut: the record has all of it.
MAX_TEXT_CHARS = 4_000

Source = Record | RunTrace | Report

#: How a run ended, where there is more to say than that it did.
_ENDS: dict[EndReason, str] = {
    "answer": "answered",
    "forced_answer": "answered when it was told to, at the last step",
    "fallback": "answered in plain text, after the last step",
    "no_answer": "no answer within the steps",
    "time": "the time was up",
    "tokens": "the tokens were used up",
    "stopped": "stopped by the user",
    "error": "ended by an error",
}


def document(sources: Iterable[Source], title: str = "") -> Document:
    """A document with a chapter per run or report. Raises ValueError for no source at all."""
    chapters = tuple(_chapter(source) for source in sources)
    if not chapters:
        raise ValueError("a document needs at least one run")
    if not title:
        title = chapters[0].question if len(chapters) == 1 else f"{len(chapters)} questions"
    return Document(title, chapters)


def _chapter(source: Source) -> Chapter:
    report = source if isinstance(source, Report) else None
    trace = RunTrace.of_record(source) if isinstance(source, Record) else report.trace if report else source
    assert isinstance(trace, RunTrace)
    exhibits = report.exhibits if report else trace.exhibits()
    sections = [Section("Answer", tuple(_answer(trace, exhibits)))]
    if report:
        sections += [Section(part.title, part.paragraphs) for part in report.sections]
        if report.notes:
            sections.append(Section("About this report", tuple(Notice(note) for note in report.notes)))
    shown = exhibits if report else [one for one in exhibits if one.cited]
    if shown:
        sections.append(Section("Evidence", tuple(_exhibit(one) for one in shown)))
    if (graph := trace.graph()) is not None:
        sections.append(Section("Memory graph", (GraphBlock(graph), _nodes(trace))))
    if steps := _steps(trace):
        sections.append(Section("Reasoning path", (Steps(steps),)))
    sections.append(Section("Cost", (_cost(trace, report.usage if report else ()),)))
    return Chapter(trace.question, _facts(trace), tuple(sections))


def _facts(trace: RunTrace) -> tuple[tuple[str, str], ...]:
    end = trace.end
    ended = _ENDS[end.reason] if end else "cut off before it ended"
    facts = [
        ("Agent", {"vrag": "VRAG", "vimrag": "VimRAG"}.get(trace.agent, trace.agent)),
        ("Model", str(trace.settings.get("model") or "")),
        ("Asked", f"{trace.started:%Y-%m-%d %H:%M:%S} UTC" if trace.started else ""),
        ("Outcome", ended),
        ("Run", trace.id),
        ("Version", trace.version),
    ]
    return tuple((name, value) for name, value in facts if value)


def _answer(trace: RunTrace, exhibits: Sequence[Exhibit]) -> Iterable[Block]:
    end = trace.end
    if isinstance(end, Answered):
        yield Callout((Claim(end.text, tuple(one.number for one in exhibits if one.cited)),), "answer")
        if end.reason not in ("answer", "fallback"):
            yield Notice(f"How it ended: {_ENDS[end.reason]}.")
    elif isinstance(end, Failed):
        yield Callout((Claim(end.text),), "failure")
    else:
        yield Callout((Claim("The run was cut off before it ended: there is no answer."),), "failure")


def _exhibit(exhibit: Exhibit) -> ExhibitBlock:
    item, box = exhibit.item, exhibit.box
    if item.kind == "text":
        return ExhibitBlock(exhibit, passage=_cut(item.content or "The passage itself is not in the record."))
    if exhibit.timestamp is not None or item.kind == "video":
        seconds = exhibit.timestamp or 0.0
        picture = Picture(item.id, "page", PAGE_PIXELS, None, seconds, item=item)
        return ExhibitBlock(exhibit, (Figure(picture, f"The frame at {seconds:.1f} s"),))
    whole_page = Figure(
        Picture(item.id, "page", PAGE_PIXELS, box, item=item), "The page" if box is None else "Where it stands"
    )
    if box is None:
        return ExhibitBlock(exhibit, (whole_page,))
    region = Figure(Picture(item.id, "region", REGION_PIXELS, box, item=item), "The region")
    return ExhibitBlock(exhibit, (whole_page, region))


def _steps(trace: RunTrace) -> tuple[Step, ...]:
    """The reasoning path. Results and pictures join the step that brought them."""
    items = trace.items()
    steps: list[Step] = []
    for event in trace.events:
        if isinstance(event, Thought):
            steps.append(Step(event.step, "thought", _cut(event.text)))
        elif isinstance(event, SearchStarted):
            steps.append(Step(event.step, "search", event.query))
        elif isinstance(event, SearchResults):
            found = tuple(Found(hit.item.label, hit.item.id in event.shown) for hit in event.hits)
            _join(steps, "search", found=found)
        elif isinstance(event, CropRequested):
            item = items.get(event.item_id) or Item(id=event.item_id, kind="image", document=event.item_id)
            steps.append(Step(event.step, "crop", place(item, event.page_box)))
        elif isinstance(event, ViewShown) and event.source != "memory":
            view = event.view
            crop = event.source == "crop"
            size = f"{view.size[0]} × {view.size[1]}"
            caption = f"{place(view.item, None, view.timestamp)}, seen at {size}"
            picture = Picture(
                view.item.id,
                "region" if crop else "page",
                THUMBNAIL_PIXELS,
                view.box if crop else None,
                view.timestamp,
                item=view.item,
            )
            _join(steps, "crop" if crop else "search", figures=(Figure(picture, caption),))
        elif isinstance(event, Memorized):
            kept = tuple(Found(_label(entry), True) for entry in event.kept)
            steps.append(Step(event.step, "memory", _cut(event.summary), kept))
        elif isinstance(event, Note):
            steps.append(Step(event.step, "note", _cut(event.text)))
        elif isinstance(event, Answered):
            steps.append(Step(event.step, "answer", _cut(event.text)))
        elif isinstance(event, Failed):
            steps.append(Step(event.step, "failure", _cut(event.text)))
    return tuple(replace(step, figures=tuple(spread(step.figures, MAX_THUMBNAILS))) for step in steps)


def _join(steps: list[Step], kind: str, found: tuple[Found, ...] = (), figures: tuple[Figure, ...] = ()) -> None:
    """Add to the last step of a kind; an event without its step (a damaged record) is left out."""
    for place_, step in reversed(list(enumerate(steps))):
        if step.kind == kind:
            steps[place_] = replace(step, found=step.found + found, figures=step.figures + figures)
            return


def _nodes(trace: RunTrace) -> Table:
    """The nodes of the graph with what they keep, as the last event has it: energies and pixels are only there."""
    value = trace.graph_json() or {}
    listed = value.get("nodes")
    rows = []
    for node in listed if isinstance(listed, list) else ():
        if isinstance(node, dict):
            memory = node.get("memory")
            kept = [_weight(one) for one in (memory if isinstance(memory, list) else ()) if isinstance(one, dict)]
            parents = node.get("parent_ids")
            above = ", ".join(map(str, parents)) if isinstance(parents, list) else ""
            summary = _cut(str(node.get("summary") or "(not judged)"))
            rows.append(
                (str(node.get("id", "")), above, str(node.get("query", "")), summary, "\n".join(kept) or "nothing")
            )
    return Table(tuple(rows), ("Node", "Builds on", "Search", "Summary", "Kept"))


def _weight(entry: dict[str, Any]) -> str:
    """A kept item with what the graph thinks of it."""
    said = [f"priority {entry.get('priority_score', '?')}"]
    if isinstance(energy := entry.get("energy"), int | float):
        said.append(f"energy {energy:.2f}")
    if isinstance(pixels := entry.get("sent", entry.get("pixels")), int | float) and pixels:
        said.append(f"{pixels:,.0f} px")
    return f"{_label(entry)} ({', '.join(said)})"


def _label(entry: dict[str, Any]) -> str:
    return str(entry.get("label", entry.get("id", "")))


def _cost(trace: RunTrace, writing: Sequence[Usage]) -> Table:
    totals = Totals.of(trace.events)
    searches = sum(isinstance(event, SearchStarted) for event in trace.events)
    views = {event.view.item.id for event in trace.events if isinstance(event, ViewShown)}
    rows = [
        ("Model calls", f"{totals.calls:,}"),
        ("Prompt tokens", f"{totals.prompt_tokens:,}"),
        ("Reply tokens", f"{totals.completion_tokens:,}"),
        ("Time of the model", f"{totals.seconds:,.1f} s"),
        ("Searches", f"{searches:,}"),
        ("Pages, pictures and clips looked at", f"{len(views):,}"),
        ("Pictures sent", f"{totals.images:,}"),
        ("Pixels sent", f"{totals.image_pixels / 1e6:,.2f} million"),
        ("Bytes of pictures sent", f"{totals.image_bytes / 1e6:,.2f} MB"),
    ]
    if trace.seconds is not None:
        rows.append(("The whole run", f"{trace.seconds:,.1f} s"))
    prices = [_price(trace.settings.get(name)) for name in ("input_price", "output_price")]
    price = totals.cost(prices[0], prices[1])
    if price is not None:
        rows.append(("Price of the tokens", f"{price:,.4f}"))
    if writing:
        report = Totals.of(writing)
        tokens = report.prompt_tokens + report.completion_tokens
        rows.append(("Tokens for writing this report", f"{tokens:,}"))
        rows.append(("Time for writing it", f"{report.seconds:,.1f} s"))
    return Table(tuple(rows))


def _price(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS].rstrip()} [...]"
