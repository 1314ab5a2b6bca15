"""What to do next: search, look closer, or answer. A pure function of the conversation so far, whatever its grammar."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from demo.reading.align import merge
from demo.reading.answer import Reply, answer
from demo.reading.layout import Line, Sheet
from demo.reading.question import Question, analyse
from demo.reading.words import CJK, HAN_FUNCTION_WORDS, STOPWORDS, normalise
from vrag.actions import Action, Answer, Crop, Search
from vrag.geometry import Box, whole

#: A reply at or above STRONG ends the search; below WEAK a page is not looked at any closer.
STRONG, WEAK = 0.5, 0.25
#: Below this, after everything was tried, the honest answer is that nothing was found.
NOTHING = 0.25
#: What is left of a reply from a page that does not even name what is asked for.
UNSAID = 0.4
#: A crop that is read worse than the page by this much was misread.
SETBACK = 0.15
MAX_SEARCHES = 4
#: A conversation of this many turns is brought to an end, so that the last allowed turn is never needed.
MAX_TURNS = 8
#: Text lower than this (pixels) may be misread: a page full of it is looked at in part before it is given up.
SMALL_PRINT = 9.0
#: A crop that would take more of the picture than this brings nothing.
MAX_CROP_SHARE = 0.75
MAX_QUERY = 300

Demand = Literal["act", "answer", "plain"]


@dataclass(frozen=True, slots=True)
class Look:
    """Something that was seen: an image by its bytes, or a passage of text. ``crop_of`` is the box that was asked for, in
    pixels of the picture before it, if this is a part of that."""

    image: bytes | None = None
    passage: str = ""
    crop_of: Box | None = None


@dataclass(frozen=True)
class Conversation:
    """The turns so far, without their grammar.

    ``demand`` is what the last message asks for: the next action, an answer at once, or an answer in plain text.
    ``news`` says whether the last message shows something new.
    """

    question: str
    looks: tuple[Look, ...] = ()
    queries: tuple[str, ...] = ()
    turns: int = 0
    demand: Demand = "act"
    news: bool = False
    refused_crop: bool = False
    """Whether the last action was a crop that brought no picture."""


@dataclass(frozen=True, slots=True)
class Decision:
    thought: str
    action: Action


@dataclass(frozen=True, slots=True)
class Reading:
    """The best reading of one page: the page itself, or the page with what its crops showed more sharply."""

    sheet: Sheet
    reply: Reply | None
    crops: int = 0
    croppable: bool = True

    @property
    def score(self) -> float:
        if self.reply is None:
            return 0.0
        score = 0.65 * self.reply.support + 0.35 * self.reply.coverage
        return score if self.reply.said else UNSAID * score


def decide(conversation: Conversation, see: Callable[[bytes], Sheet]) -> Decision:
    """The next step. ``see`` reads an image; it is asked for every image of the conversation, so it should remember."""
    question = analyse(conversation.question)
    say = _Phrases(question)
    pages = readings(conversation.looks, question, see)
    best = max(pages, key=lambda page: page.score, default=None)
    if conversation.demand != "act" or conversation.turns >= MAX_TURNS:
        return say.answer(best)
    if conversation.news and pages:
        last = pages[-1]
        region = _closer(last, question) if not conversation.refused_crop else None
        if region is not None:
            return Decision(say.closer(last.reply), Crop(region))
        if last.score >= STRONG:
            return say.answer(best)
    elif conversation.refused_crop and best is not None and best.score >= WEAK:
        return say.answer(best)
    query = next_query(question, conversation.queries)
    if query is None or len(conversation.queries) >= MAX_SEARCHES:
        return say.answer(best)
    return Decision(say.search(query, pages, conversation), Search(query))


def next_query(question: Question, tried: Sequence[str]) -> str | None:
    """Words to search for that were not tried: the question, its keywords, the rarer of them, then halves; None at the end."""
    done = {_key(query) for query in tried}
    for query in queries_of(question):
        if _key(query) and _key(query) not in done:
            return query
    return None


def queries_of(question: Question) -> list[str]:
    """What can be searched for, in the order in which it is tried."""
    words = keywords(question.text)
    joined = "" if question.chinese and all(re.match(f"[{CJK}]", word) for word in words) else " "
    names = [word for word in words if word[0].isupper() or word[0].isdigit() or re.match(f"[{CJK}]", word)]
    longest = sorted(words, key=len, reverse=True)[: max(2, len(words) // 2)]
    kept = [word for word in words if word in longest]
    half = len(words) // 2
    options = [[question.text], words, kept, names if len(names) > 1 else [], words[half:], words[:half]]
    return [(joined or " ").join(option)[:MAX_QUERY].strip() for option in options if option]


def keywords(text: str) -> list[str]:
    """The words of a question as it writes them, without function words and question words."""
    found: list[str] = []
    for token in re.findall(rf"[{CJK}]+|[^\W_{CJK}]+(?:[-.&'’][^\W_{CJK}]+)*", text):
        if re.match(f"[{CJK}]", token):
            found += [run for run in HAN_FUNCTION_WORDS.split(token) if len(run) > 1]
        elif token.casefold() not in STOPWORDS:
            found.append(token)
    return list(dict.fromkeys(found))


def passage_sheet(text: str) -> Sheet:
    """A passage of text as a sheet, so that it is read like a page: one line of the sheet per line, paragraphs apart."""
    lines, y = [], 0.0
    for row in text.splitlines():
        row = row.strip()
        if row:
            lines.append(Line(row, Box(0, y, 10.0 * len(row), y + 20)))
        y += 40
    width = max((line.box.x2 for line in lines), default=1.0)
    return Sheet((int(width), int(max(y, 1.0))), tuple(lines))


def _key(query: str) -> str:
    return " ".join(sorted(set(re.findall(rf"[^\W_]+|[{CJK}]", normalise(query)))))


def readings(looks: Sequence[Look], question: Question, see: Callable[[bytes], Sheet]) -> list[Reading]:
    """One reading per page, in the order shown; crops sharpen the page before them."""
    pages: list[Reading] = []
    crop: tuple[Sheet, Box] | None = None  # what the last crop shows, and where on its page
    for look in looks:
        sheet = see(look.image) if look.image is not None else passage_sheet(look.passage)
        if look.crop_of is None or not pages:
            pages.append(Reading(sheet, answer(sheet, question), croppable=look.image is not None))
            crop = None
            continue
        page = pages[-1]
        asked = look.crop_of
        if crop is not None:  # a crop of a crop: carried to the page by way of the first
            (width, height), area = crop[0].size, crop[1]
            sx, sy = area.width / width, area.height / height
            asked = Box(
                area.x1 + asked.x1 * sx, area.y1 + asked.y1 * sy, area.x1 + asked.x2 * sx, area.y1 + asked.y2 * sy
            )
        merged, area = merge(page.sheet, sheet, asked)
        crop = (sheet, area)
        closer = Reading(
            merged, answer(merged, question, near=area, at=page.reply.box if page.reply else None), page.crops + 1
        )
        # Enlarged print is read better as a rule, but not always: what was read clearly before is not given up.
        worse = closer.score < page.score - SETBACK
        pages[-1] = Reading(page.sheet, page.reply, page.crops + 1) if worse else closer
    return pages


def _closer(page: Reading, question: Question) -> Box | None:
    """The part of the last picture to look at more closely; None when that would bring nothing."""
    if not page.croppable or page.crops:
        return None
    bounds = whole(page.sheet.size)
    if page.reply is not None and page.score >= WEAK:
        margin = 0.6 * page.reply.height
        region = page.reply.region.padded(margin).clamped(bounds)
    elif page.sheet.lines and _line_height(page.sheet) < SMALL_PRINT:
        region = _best_half(page.sheet, question)
    else:
        return None
    region = Box(int(region.x1), int(region.y1), -int(-region.x2 // 1), -int(-region.y2 // 1)).clamped(bounds)
    if region.width < 4 or region.height < 4 or region.area > MAX_CROP_SHARE * bounds.area:
        return None
    return region


def _best_half(sheet: Sheet, question: Question) -> Box:
    """The half of a page of small print (upper, middle, lower) that has the most of the question."""
    width, height = sheet.size
    halves = [Box(0, height * top, width, height * (top + 0.5)) for top in (0.0, 0.25, 0.5)]

    def coverage(half: Box) -> float:
        part = Sheet(sheet.size, tuple(line for line in sheet.lines if half.covers(line.box, 0.6)))
        reply = answer(part, question)
        return 0.0 if reply is None else reply.support + reply.coverage

    return max(halves, key=coverage)


def _line_height(sheet: Sheet) -> float:
    heights = sorted(line.box.height for line in sheet.lines)
    return heights[len(heights) // 2]


class _Phrases:
    """The reader's few sentences, in the language of the question."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.chinese = question.chinese

    def search(self, query: str, pages: Sequence[Reading], conversation: Conversation) -> str:
        if not conversation.queries:
            return (
                "我需要找到写有答案的页面，先用问题检索。"
                if self.chinese
                else "I need the page that has the answer. I search for what the question asks."
            )
        if not conversation.news:
            return (
                "这次检索没有带来新的内容，我换一些词再检索。"
                if self.chinese
                else "That brought nothing new. I search with other words."
            )
        seen = pages[-1].reply.coverage if pages and pages[-1].reply else 0.0
        return (
            f"这一页包含了问题中约 {seen:.0%} 的词，但没有读到确切的答案，我换一些词再检索。"
            if self.chinese
            else f"This page has about {seen:.0%} of the question's words, but I do not read a certain answer in it. "
            "I search with other words."
        )

    def closer(self, reply: Reply | None) -> str:
        if reply is None or not reply.text:
            return "文字太小，我放大看。" if self.chinese else "The print is small. I look closer."
        where = quote(reply.label or reply.text)
        return (
            f"与问题最相关的地方是“{where}”，我放大确认。"
            if self.chinese
            else f'What fits the question best is "{where}". I look closer to be sure of it.'
        )

    def answer(self, page: Reading | None) -> Decision:
        if page is None or page.reply is None or not page.reply.text or page.score < NOTHING:
            return Decision(
                "读过的页面里没有与问题相符的内容。" if self.chinese else "Nothing that I read fits the question.",
                Answer(
                    "在读到的页面中没有找到答案。"
                    if self.chinese
                    else "I found no answer to this in the pages that I read."
                ),
            )
        reply = page.reply
        where = f"{quote(reply.label)}: {quote(reply.text)}" if reply.label else quote(reply.text)
        thought = f"我读到：“{where}”。" if self.chinese else f'I read "{where}".'
        return Decision(thought, Answer(reply.text))


def quote(text: str, limit: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
