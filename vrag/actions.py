"""What a model may do, and the parser that reads it from a reply. Pure and total: any string gives an action.

The tag grammar of VRAG-RL: a thought in ``<think>``, then one action in ``<search>``, ``<bbox>`` or ``<answer>``::

    <think>The table on the left has the figure.</think>
    <bbox>[40, 120, 310, 260]</bbox>

How a reply that strays from it is read (:func:`parse_tags`):

* Tags count in any case; ``<region>``, the paper's name for ``<bbox>``, means the same.
* The first complete action wins, as in the published agent. What stands in a closed thought is looked at only when
  nothing follows it: models weigh actions in their thoughts that they then do not take.
* Without a complete action, the last opening tag counts up to the end of the reply, for servers that stop at a closing
  tag leave it out and a reply cut off for its length breaks there; but only at the beginning of a line or after another
  tag, for elsewhere it is a tag that the text speaks about.
* The thought is optional. Without its tags it is the text before the action; with only ``</think>`` (chat templates can
  write ``<think>`` into the prompt), the text before that.
* Chat markers such as ``<|im_start|>``, control characters and lone surrogates are dropped from thoughts, queries and
  answers; queries and answers are cut at ``MAX_QUERY_CHARS`` and ``MAX_ANSWER_CHARS``.

The time taken is linear in the length of the reply.
"""

from __future__ import annotations

import bisect
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from vrag.geometry import Box

MAX_QUERY_CHARS = 512
MAX_ANSWER_CHARS = 20_000
MAX_THOUGHT_CHARS = 20_000
_MAX_BBOX_CHARS = 256


@dataclass(frozen=True, slots=True)
class Search:
    query: str


@dataclass(frozen=True, slots=True)
class Crop:
    """Look closer at a region, in the pixels of the image as displayed; finite, but otherwise as the model wrote it."""

    box: Box


@dataclass(frozen=True, slots=True)
class Answer:
    text: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """A reply that holds no usable action; ``reason`` is fit to show to the model."""

    reason: str


Action = Search | Crop | Answer | Invalid

_TAG = re.compile(r"<(/?)(think|search|answer|bbox|region)>", re.IGNORECASE)
_OTHER_ACTION = re.compile(r"<(search|bbox|region)>.*?(?:</\1>|\Z)", re.IGNORECASE | re.DOTALL)
#: Special tokens of chat templates (Qwen, Llama 3, Phi, DeepSeek; Llama 2, Mistral; Gemma): never part of a text.
_MARKER = re.compile(
    r"<[|｜][^|｜<>\s]{1,40}[|｜]>|\[/?INST\]|<</?SYS>>|</?(?:s|bos|eos|start_of_turn|end_of_turn)>", re.IGNORECASE
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BBOX_SEPARATORS = re.compile(r"""[\s,;\[\](){}"']+""")


def parse_tags(reply: str) -> tuple[str, Action]:
    """The thought ("" where there is none) and the action of a reply in the tag grammar; see the module's text."""
    tags = _tags(reply)
    thought_start, thought_end, tail = _thought(tags)
    after = [tag for tag in tags if tag.start >= tail]
    found = _first_complete(after) or _left_open(after, reply) or _first_complete(tags)
    if thought_end is None:
        thought_end = found.start if found else len(reply)
    thought = clean(_without_tags(reply[thought_start:thought_end]), MAX_THOUGHT_CHARS)
    if found is None:
        return thought, Invalid(
            "There is no action in it: a reply has to end with <search>...</search>, <bbox>...</bbox> or"
            " <answer>...</answer>."
            if reply.strip()
            else "It is empty."
        )
    content = reply[found.content_start : found.content_end]
    if found.name == "search":
        return thought, _search(content)
    if found.name == "answer":
        return thought, _answer(content)
    return thought, _crop(content)


def plain_text(reply: str) -> str:
    """What a reply says outside of thought, searches and boxes: the answer of a model that was asked for plain text.

    An ``<answer>``, where there is one, is all of it.
    """
    _, action = parse_tags(reply)
    if isinstance(action, Answer):
        return action.text
    after_thought = reply[_thought(_tags(reply))[2] :]
    return clean(_without_tags(_OTHER_ACTION.sub(" ", after_thought)), MAX_ANSWER_CHARS)


def clean(text: str, limit: int | None = None) -> str:
    """``text`` stripped, without chat markers, control characters and lone surrogates, cut at ``limit`` characters."""
    # A space in a marker's place: two halves around it must not become another marker.
    text = _CONTROL.sub(" ", _MARKER.sub(" ", _SURROGATE.sub("\ufffd", text.replace("\r\n", "\n")))).strip()
    return text if limit is None else text[:limit].rstrip()


class _Tag(NamedTuple):
    start: int
    end: int
    name: str
    closing: bool


class _Element(NamedTuple):
    name: str
    start: int
    content_start: int
    content_end: int


def _tags(reply: str) -> list[_Tag]:
    return [_Tag(*found.span(), found[2].lower(), bool(found[1])) for found in _TAG.finditer(reply)]


def _thought(tags: list[_Tag]) -> tuple[int, int | None, int]:
    """Where the thought begins, where it ends (None: where the action begins), and where what follows it begins."""
    opening = next((tag for tag in tags if tag.name == "think" and not tag.closing), None)
    closing = next(
        (tag for tag in tags if tag.name == "think" and tag.closing and (not opening or tag.start >= opening.end)), None
    )
    start = opening.end if opening else 0
    return (start, closing.start, closing.end) if closing else (start, None, 0)


def _first_complete(tags: list[_Tag]) -> _Element | None:
    """The first action that is closed: ``<name>`` up to the next ``</name>``, whatever lies between."""
    closings: dict[str, list[int]] = {}
    for tag in tags:
        if tag.closing:
            closings.setdefault(tag.name, []).append(tag.start)
    for tag in tags:
        if tag.closing or tag.name == "think":
            continue
        starts = closings.get(tag.name, [])
        nearest = bisect.bisect_left(starts, tag.end)
        if nearest < len(starts):
            return _Element(tag.name, tag.start, tag.end, starts[nearest])
    return None


def _left_open(tags: list[_Tag], reply: str) -> _Element | None:
    """The last opening tag of an action, at the beginning of a line or after a tag, up to the end of the reply."""
    for tag in reversed(tags):
        before = reply[max(0, tag.start - 16) : tag.start].rstrip(" \t")
        if not tag.closing and tag.name != "think" and (not before or before[-1] in "\r\n>"):
            return _Element(tag.name, tag.start, tag.end, len(reply))
    return None


def _search(content: str) -> Action:
    query = " ".join(clean(_without_tags(content)).split())[:MAX_QUERY_CHARS].strip()
    return Search(query) if query else Invalid("The search has no words in it.")


def _answer(content: str) -> Action:
    text = clean(_without_tags(content), MAX_ANSWER_CHARS)
    return Answer(text) if text else Invalid("The answer is empty.")


def _crop(content: str) -> Action:
    form = "A region is written <bbox>[x1, y1, x2, y2]</bbox>, with four numbers."
    content = _without_tags(content).strip()
    if not content or len(content) > _MAX_BBOX_CHARS:
        return Invalid(form)
    try:
        numbers = [float(part) for part in _BBOX_SEPARATORS.split(content) if part]
    except ValueError:
        return Invalid(form)
    if len(numbers) != 4:
        return Invalid(f"{form} There are {len(numbers)} in it.")
    if not all(math.isfinite(number) for number in numbers):
        return Invalid(f"{form} All of them have to be finite.")
    return Crop(Box(*numbers))


def _without_tags(text: str) -> str:
    return _TAG.sub(" ", text)
