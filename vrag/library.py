"""What a run has been shown and may be shown again: pages, frames and passages, drawn at the size they are worth.

The memory graph knows its evidence by id; the library has what is behind the ids. Pictures are drawn from the page itself
each time their size changes, so what was sent small can come back sharp, and are reused as long as it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from vrag.errors import MediaError
from vrag.items import Item
from vrag.memory_graph import Weighed
from vrag.pages import PageImage, View, view_of
from vrag.tool_calls import harmless
from vrag.turns import MAX_PASSAGE_CHARS

#: The order in which a search result lists its items, and what they are called.
NAMES = {"text": "Text", "image": "Picture", "video": "Video"}
#: A kept passage of which less would fit into the prompt is left out.
_MIN_PASSAGE_CHARS = 200

Part = str | View
_T = TypeVar("_T")


@dataclass(slots=True)
class Source:
    """An item with what is needed to show it: its page, its sampled frames, or the passage that it holds itself."""

    item: Item
    page: PageImage | None = None
    frames: dict[float, PageImage] = field(default_factory=dict)
    """By seconds, in the order of time."""

    @property
    def text(self) -> str:
        return harmless(self.item.content or "", MAX_PASSAGE_CHARS)

    @property
    def label(self) -> str:
        return " ".join(harmless(self.item.label).split())


class Library:
    """The sources of one run by item id, and the pictures of them that are in use."""

    def __init__(self, max_pixels_image: int, max_pixels_video: int) -> None:
        self._limits = max_pixels_image, max_pixels_video
        self._sources: dict[str, Source] = {}
        self._drawn: dict[tuple[str, float | None, int], View] = {}

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._sources

    def __getitem__(self, item_id: str) -> Source:
        return self._sources[item_id]

    def add(self, source: Source) -> None:
        """Take in a source. Raises MediaError, and does not take it in, where it has nothing that can be shown."""
        if not self.fresh("", source)[1:] and not source.text:
            raise MediaError(f"{source.item.id}: there is nothing in it to be shown.")
        self._sources[source.item.id] = source

    def forget(self, item_id: str) -> None:
        del self._sources[item_id]

    def labels(self) -> dict[str, str]:
        return {item_id: source.label for item_id, source in self._sources.items()}

    def fresh(self, name: str, source: Source) -> list[Part]:
        """A result of a search as the model sees it the first time."""
        head = f"{name} ({source.label}):"
        if source.item.kind == "text":
            return [f"{head}\n{source.text}"]
        if source.page is not None:
            return [head, self._view(source, None, self._limits[0])]
        return [head, *self._frames(source, source.frames, self._limits[1])]

    def remembered(self, weighed: Sequence[Weighed], passage_chars: int) -> list[tuple[Weighed, list[Part]]]:
        """What is shown of the memory: pictures at the size of their share, passages as far as there is room.

        Pictures that are not shown any more are let go.
        """
        room = self._passage_room(weighed, passage_chars)
        before, self._drawn = self._drawn, {}
        out: list[tuple[Weighed, list[Part]]] = []
        for one in weighed:
            source = self._sources[one.evidence.item_id]
            head = f"{source.label}:"
            parts: list[Part] = []
            if source.item.kind == "text":
                if size := room.get(source.item.id, 0):
                    parts = [f"{head}\n{source.text[:size]}"]
            elif one.pictures:
                times = [None] if source.page is not None else spread(one.evidence.timestamps, one.pictures)
                keys = [(source.item.id, seconds, one.pixels) for seconds in times]
                self._drawn.update({key: before[key] for key in keys if key in before})
                if source.page is not None:
                    parts = [head, self._view(source, None, one.pixels)]
                else:
                    parts = [head, *self._frames(source, [key[1] or 0.0 for key in keys], one.pixels)]
            if parts:
                out.append((one, parts))
        return out

    def _view(self, source: Source, seconds: float | None, max_pixels: int) -> View:
        """A picture of a source, never larger than it is, nor than ``max_pixels``. Raises MediaError."""
        key = (source.item.id, seconds, max_pixels)
        if key not in self._drawn:
            page = source.page if seconds is None else source.frames[seconds]
            if page is None:
                raise MediaError(f"{source.item.id}: there is no picture of it.")
            self._drawn[key] = view_of(page, None, 1, max_pixels, timestamp=seconds)
        return self._drawn[key]

    def _frames(self, source: Source, times: Iterable[float], max_pixels: int) -> list[Part]:
        """Frames, each after its time."""
        parts: list[Part] = []
        for seconds in times:
            parts += [f"<{seconds:.1f} seconds>", self._view(source, seconds, max_pixels)]
        return parts

    def _passage_room(self, weighed: Sequence[Weighed], room: int) -> dict[str, int]:
        """How many characters of each kept passage are shown: those with the most energy first, whole if they fit."""
        passages = [one for one in weighed if one.evidence.kind == "text"]
        out: dict[str, int] = {}
        for one in sorted(passages, key=lambda one: -one.energy):
            length = len(self._sources[one.evidence.item_id].text)
            if room >= min(length, _MIN_PASSAGE_CHARS):
                out[one.evidence.item_id] = min(length, room)
                room -= out[one.evidence.item_id]
        return out


def named(sources: Iterable[Source]) -> dict[str, Source]:
    """Results by the names they are shown under, in that order: ``Text 1``, ``Picture 1``, ``Picture 2``, ``Video 1``."""
    order = list(NAMES)
    counts = dict.fromkeys(NAMES, 0)
    out: dict[str, Source] = {}
    for source in sorted(sources, key=lambda source: order.index(source.item.kind)):
        kind = source.item.kind
        counts[kind] += 1
        out[f"{NAMES[kind]} {counts[kind]}"] = source
    return out


def spread(values: Sequence[_T], count: int) -> list[_T]:
    """At most ``count`` of the values, spread evenly from the first to the last."""
    if count >= len(values):
        return list(values)
    if count == 1:
        return [values[len(values) // 2]]
    return [values[round(number * (len(values) - 1) / (count - 1))] for number in range(count)]
