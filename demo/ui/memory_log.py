"""The steps of a VimRAG run in words: thoughts in a fold, searches, the names of what was found, what was remembered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from demo.ui.text import literal, row
from vrag.events import Event, Memorized, Note, SearchResults, SearchStarted, Thought

#: Of a thought: the words that stand on its closed fold.
_GIST_CHARS = 90


def steps(events: Sequence[Event]) -> Iterator[tuple[int, str]]:
    """Number and HTML of every step in which something is to be seen."""
    for number, group in groupby(events, key=lambda event: event.step):
        if body := "".join(entry(event) for event in group):
            yield number, f'<div class="v-step">Step {number}</div>{body}' if number else body


def entry(event: Event) -> str:
    """What an event says, as HTML; empty for events without words."""
    if isinstance(event, Thought):
        return fold(event.text)
    if isinstance(event, SearchStarted):
        node = f'<span class="m-node">{literal(event.node or "", 120)}</span> ' if event.node else ""
        return row("search", f'<b>Search</b> {node}<span class="v-query">{literal(event.query, 1000)}</span>')
    if isinstance(event, SearchResults):
        return row("description", _found(event))
    if isinstance(event, Memorized):
        return _card(event)
    if isinstance(event, Note):
        return row("info", literal(event.text, 1000), "v-note")
    return ""


def fold(thought: str) -> str:
    """A thought behind its first words."""
    gist = " ".join(thought.split())
    if len(gist) <= _GIST_CHARS:
        return row("lightbulb", literal(thought), "v-thought")
    words = f'<span class="v-icon" translate="no" aria-hidden="true">lightbulb</span>{literal(gist[:_GIST_CHARS])} …'
    return f'<details class="m-thought"><summary>{words}</summary><div>{literal(thought)}</div></details>'


def _found(event: SearchResults) -> str:
    if not event.hits:
        return "Nothing was found."
    tags = []
    for hit in event.hits:
        new = hit.item.id in event.shown
        hint = "" if new else '<span class="m-hint"> seen before</span>'
        tags.append(f'<span class="m-tag{"" if new else " m-old"}">{literal(hit.item.label, 120)}{hint}</span>')
    return f'<div class="m-tags">{"".join(tags)}</div>'


def _card(event: Memorized) -> str:
    tags = "".join(f'<span class="m-tag">{literal(_name(entry), 120)}</span>' for entry in event.kept)
    kept = tags or '<span class="m-hint">nothing was kept</span>'
    return (
        f'<div class="m-card"><div><b>Remember</b> <span class="m-node">{literal(event.node, 120)}</span></div>'
        f'<div class="m-summary">{literal(event.summary, 3000)}</div><div class="m-tags">{kept}</div></div>'
    )


def _name(entry: dict[str, Any]) -> str:
    return str(entry.get("label") or entry.get("id") or "")
