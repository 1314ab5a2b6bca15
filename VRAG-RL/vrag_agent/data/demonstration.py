"""What an expert did on one question: its actions, by reference, with everything that is known about where they come from.

A demonstration holds no pictures and no wire format. Regions are in *page pixels*, so it does not matter at which size
the expert saw a page: :mod:`vrag_agent.data.dialogue` plays the actions again at the sizes of training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vrag.events import Answered, CropRequested, Event, Note, SearchResults, Thought
from vrag.geometry import Box
from vrag.items import Item
from vrag_agent.data.rows import Dropped, Unusable, read_lines

#: What a damaged line is counted under.
DAMAGED = "a damaged line"
#: What an attempt answers: id, question and reference answer. By the id alone, another file's question would pass for it.
Asked = tuple[str, str, str]


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
    def asked(self) -> Asked:
        return self.id, self.question, self.reference

    @property
    def key(self) -> tuple[Asked, int]:
        return self.asked, self.attempt

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


def read_attempts(path: Path) -> Iterator[Attempt | Dropped]:
    """The attempts in a file, in order; a damaged line is Dropped. Raises ConfigError for a file that cannot be read."""
    for place, row in read_lines(path):
        if isinstance(row, Unusable):
            yield Dropped(place, DAMAGED, str(row))
            continue
        try:
            yield Attempt.model_validate(row)
        except ValidationError as error:
            yield Dropped(place, DAMAGED, error.errors()[0]["msg"])
