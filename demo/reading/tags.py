"""The tag grammar of VRAG: from chat messages to a conversation, and from a decision to a reply.

What a message asks for is read from the tags that it names: one that names ``<search>`` or ``<bbox>`` leaves the choice,
one that names only ``<answer>`` wants the answer now, and text without tags, where nothing was looked up, wants plain text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from demo.reading.chat import ChatMessage
from demo.reading.dialogue import Conversation, Decision, Demand, Look
from vrag.actions import Action, Answer, Crop, Search, clean, parse_tags

_TAG = re.compile(r"<(search|bbox|region|answer)>", re.IGNORECASE)
_QUESTION = re.compile(r"(?:Question|问题)\s*[:：]", re.IGNORECASE)
_PARAGRAPH = re.compile(r"\n\s*\n")
MAX_QUESTION_CHARS = 4_000


def read(messages: Sequence[ChatMessage]) -> tuple[Conversation, bool]:
    """The conversation, and whether it speaks this grammar (else the reply is to be plain text). Total."""
    tagged = any(_TAG.search(message.text) for message in messages if message.role != "assistant")
    question, first = "", True
    looks: list[Look] = []
    queries: list[str] = []
    turns = 0
    last: Action | None = None
    demand: Demand = "act" if tagged else "plain"
    news = refused = False
    for message in messages:
        if message.role == "system":
            continue
        if message.role == "assistant":
            turns += 1
            _, last = parse_tags(message.text)
            if isinstance(last, Search):
                queries.append(last.query)
            continue
        text = message.text
        if first:
            question, text = _question(message.text, tagged)
            first = False
        cropped = last.box if isinstance(last, Crop) and message.images else None
        passage = _passage(text, last) if not message.images else ""
        looks += [Look(image, crop_of=cropped if index == 0 else None) for index, image in enumerate(message.images)]
        if passage:
            looks.append(Look(passage=passage))
        news = bool(message.images or passage)
        refused = isinstance(last, Crop) and not message.images
        demand = _demand(text, last, news) if tagged else "plain"
    conversation = Conversation(
        question=question,
        looks=tuple(looks),
        queries=tuple(queries),
        turns=turns,
        demand=demand,
        news=news,
        refused_crop=refused,
    )
    return conversation, tagged


def write(decision: Decision, demand: Demand) -> str:
    """The reply: thought and action in their tags, or the bare answer where plain text was asked for."""
    action = decision.action
    if demand == "plain":
        return action.text if isinstance(action, Answer) else decision.thought
    return f"<think>{_untagged(decision.thought)}</think>\n{_write_action(action)}"


def _write_action(action: Action) -> str:
    if isinstance(action, Search):
        return f"<search>{_untagged(action.query)}</search>"
    if isinstance(action, Crop):
        return f"<bbox>[{', '.join(str(round(value)) for value in action.box.as_list())}]</bbox>"
    text = action.text if isinstance(action, Answer) else ""
    return f"<answer>{_untagged(text)}</answer>"


def _untagged(text: str) -> str:
    """Text that was read on a page must not act as a tag or a chat marker."""
    return re.sub(r"<(?=/?(?:think|search|bbox|region|answer)\s*>)", "‹", clean(text), flags=re.IGNORECASE) or "-"


def _question(text: str, tagged: bool) -> tuple[str, str]:
    """The question of the first message, and what the message says after it (a call to answer, for instance)."""
    marks = list(_QUESTION.finditer(text))
    if marks:
        paragraphs = _PARAGRAPH.split(text[marks[-1].end() :])
    elif tagged:
        # Another prompt's wording: the question is its last paragraph without a tag.
        plain = [part for part in _PARAGRAPH.split(text) if part.strip() and not _TAG.search(part)]
        paragraphs = plain[-1:]
    else:
        return clean(text, MAX_QUESTION_CHARS), ""
    rest = next((index for index, part in enumerate(paragraphs) if index and _TAG.search(part)), len(paragraphs))
    question = clean("\n".join(paragraphs[:rest]), MAX_QUESTION_CHARS)
    return question, "\n\n".join(paragraphs[rest:])


def _passage(text: str, last: Action | None) -> str:
    """The passage that a search brought: text that names no tags."""
    if not isinstance(last, Search):
        return ""
    parts = _PARAGRAPH.split(text)
    while parts and _TAG.search(parts[-1]):
        parts.pop()  # a hint on how to go on
    return clean("\n\n".join(parts))


def _demand(text: str, last: Action | None, news: bool) -> Demand:
    hints = [part for part in _PARAGRAPH.split(text) if _TAG.search(part)]
    if hints:
        named = {name.casefold() for name in _TAG.findall(hints[-1])}
        return "answer" if named == {"answer"} else "act"
    return "act" if news or last is None or not text.strip() else "plain"
