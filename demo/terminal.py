"""One question in the terminal: the steps as they happen, then the cited answer."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterable

from vrag.errors import VragError
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


def show(events: Iterable[Event]) -> bool:
    """Print a run as it goes; whether it has an answer."""
    answered = False
    for event in events:
        for line in lines(event):
            print(line, flush=True)
        answered = answered or isinstance(event, Answered)
    return answered


def ask(question: str) -> bool:
    """Run the VRAG agent with the settings of the environment and print what it does; whether it has an answer."""
    from demo.vrag_agent import VRAG

    return show(VRAG().stream(question))


def question_parser(
    key: str = "VRAG_API_KEY", max_steps: int | None = None, top_k: int | None = None
) -> argparse.ArgumentParser:
    """What the agents' command lines have in common; ``key`` is the variable that holds the key of their endpoint."""
    parser = argparse.ArgumentParser(
        description="Ask a question about the indexed documents. The services have to run (see run_demo.sh).",
        epilog=f"Every setting can also be given in the environment, e.g. VRAG_MODEL, {key}, VRAG_RECORD_DIR.",
    )
    parser.add_argument("question")
    parser.add_argument("--base-url", metavar="URL", help="the model server, up to and including /v1")
    parser.add_argument("--search-url", metavar="URL", help="the search endpoint")
    parser.add_argument("--model", metavar="NAME", help="the model's name on that server; default: the one it serves")
    parser.add_argument("--max-steps", type=int, metavar="N", default=max_steps)
    parser.add_argument("--top-k", type=int, metavar="N", default=top_k)
    parser.add_argument("--record-dir", metavar="DIR", help="keep the record of the run there")
    return parser


def answer_once(events: Callable[[], Iterable[Event]]) -> int:
    """Start a run and print it; the exit status: 0 with an answer, 1 without one, 130 when it was interrupted."""
    try:
        return 0 if show(events()) else 1
    except KeyboardInterrupt:
        print("\nStopped.")
        return 130
    except VragError as error:
        print(error, file=sys.stderr)
        return 1
