"""What an expert did on one question: its actions, by reference, with everything that is known about where they come from.

A demonstration holds no pictures and no wire format. Regions are in *page pixels*, so it does not matter at which size
the expert saw a page: :mod:`vrag_agent.data.dialogue` plays the actions again at the sizes of training.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vrag.errors import RecordError
from vrag.events import Answered, CropRequested, Event, Note, SearchResults, Thought
from vrag.geometry import Box
from vrag.items import Item

log = logging.getLogger(__name__)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Turn(_Record):
    """One action of the expert. ``shown`` are the items that a search brought into view; ``page_box`` is what a crop
    asked for, before padding, in page pixels; ``displayed`` the same in the pixels of the picture the expert saw."""

    step: int
    action: Literal["search", "crop", "answer", "other"]
    thought: str = ""
    query: str = ""
    shown: tuple[Item, ...] = ()
    item_id: str = ""
    page_box: Box | None = None
    displayed: Box | None = None
    relocated_from: Box | None = Field(
        default=None, description="what the deciding model had named, where a grounding model chose the region"
    )
    text: str = ""
    note: str = Field(default="", description="what the episode had to say about the action")


class Attempt(_Record):
    """One attempt at a question. ``status``: ``correct``, ``dropped`` (for ``reason``), or ``error`` (asked again)."""

    id: str
    attempt: int
    status: Literal["correct", "dropped", "error"]
    reason: str = ""
    detail: str = ""
    question: str
    reference: str
    answer: str | None = None
    file_name: str = ""
    reference_page: tuple[int, ...] = ()
    relevant_ids: tuple[str, ...] = ()
    split: str = ""
    data_source: str = ""
    turns: tuple[Turn, ...] = ()
    pages: dict[str, str] = Field(default_factory=dict, description="item id -> its image, below the output folder")
    ndcg: float = 0.0
    score: float | None = Field(default=None, description="the judge's; None where nobody was asked")
    judge: str = ""
    experts: dict[str, Any] = Field(default_factory=dict, description="models and settings that produced it")
    record: str = Field(default="", description="the run's record, below the output folder")
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, int]:
        return self.id, self.attempt

    @property
    def cell(self) -> tuple[int, bool]:
        """What the choice is balanced over: the number of turns, and whether the expert looked closer."""
        return len(self.turns), any(turn.action == "crop" for turn in self.turns)


def turns_of(events: Sequence[Event], relocated: dict[int, Box]) -> tuple[Turn, ...]:
    """The expert's turns, in order, from the events of a run. ``relocated``: turn -> the deciding model's own region."""
    fields: dict[int, dict[str, Any]] = {}
    for event in events:
        turn = fields.setdefault(event.step, {"action": "other"}) if event.step else {}
        if isinstance(event, Thought):
            turn["thought"] = event.text
        elif isinstance(event, SearchResults):
            items = {hit.item.id: hit.item for hit in event.hits}
            turn |= {"action": "search", "query": event.query, "shown": tuple(items[one] for one in event.shown)}
        elif isinstance(event, CropRequested):
            turn |= {
                "action": "crop",
                "item_id": event.item_id,
                "page_box": event.page_box,
                "displayed": event.displayed,
                "relocated_from": relocated.get(event.step),
            }
        elif isinstance(event, Answered):
            turn |= {"action": "answer", "text": event.text}
        elif isinstance(event, Note):
            turn["note"] = event.text
    return tuple(Turn(step=step, **turn) for step, turn in sorted(fields.items()))


def read_attempts(path: Path) -> Iterator[Attempt]:
    """The attempts in a file, in order. A last line that a killed run cut off is left out; any other damage is a
    RecordError that names the line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RecordError(f"The attempts {path} cannot be read ({error.strerror}).") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield Attempt.model_validate(json.loads(line))
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                log.warning("%s, line %d is incomplete and left out", path, number)
                return
            said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise RecordError(f"{path}, line {number}: not an attempt of the construction ({said}).") from None
