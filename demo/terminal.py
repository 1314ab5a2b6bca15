"""One question in the terminal: the steps as they happen, then the cited answer."""

from __future__ import annotations

import textwrap

from vrag.events import (
    Answered,
    CropRequested,
    Event,
    Failed,
    Memorized,
    Note,
    SearchResults,
    SearchStarted,
    Thought,
    ViewShown,
)


def lines(event: Event) -> list[str]:
    """An event as the lines that a person reads; empty for events that only machines need."""
    if isinstance(event, Thought):
        return textwrap.wrap(event.text, 100, initial_indent="  think   ", subsequent_indent="          ")
    if isinstance(event, SearchStarted):
        return [f"  search  {event.query}"]
    if isinstance(event, SearchResults):
        return [f"          {'->' if hit.item.id in event.shown else '  '} {hit.item.label}" for hit in event.hits]
    if isinstance(event, CropRequested):
        box = ", ".join(f"{value:.0f}" for value in event.page_box.as_list())
        return [f"  crop    [{box}] of {event.item_id}"]
    if isinstance(event, ViewShown) and event.source == "search":
        return [f"  look    {event.view.item.label}, shown at {event.view.size[0]} x {event.view.size[1]}"]
    if isinstance(event, Memorized):
        kept = ", ".join(str(entry.get("label", entry["id"])) for entry in event.kept) or "nothing"
        return [
            *textwrap.wrap(event.summary, 100, initial_indent="  memory  ", subsequent_indent="          "),
            f"          kept: {kept}",
        ]
    if isinstance(event, Note):
        return [f"  note    {event.text}"]
    if isinstance(event, Answered):
        out = ["", *textwrap.wrap(event.text, 100, initial_indent="Answer: ", subsequent_indent="        ")]
        for citation in event.citations:
            region = ""
            if citation.box is not None:
                region = ", region [" + ", ".join(f"{value:.0f}" for value in citation.box.as_list()) + "]"
            out.append(f"Source: {citation.item.label}{region}")
        return out
    if isinstance(event, Failed):
        return ["", event.text]
    return []


def ask(question: str) -> bool:
    """Run the VRAG agent with the settings of the environment and print what it does; whether it has an answer."""
    from demo.vrag_agent import VRAG

    answered = False
    for event in VRAG().stream(question):
        for line in lines(event):
            print(line, flush=True)
        answered = answered or isinstance(event, Answered)
    return answered
