"""What to do next on a memory graph: search, judge what a search brought, or answer. A pure function of the conversation.

Between two searches nothing stays but the graph, so what was read is written into the summaries, in sentences that are read
back from there (:func:`facts_of`): the span, what it answers, and how certain that is. A question of several parts is
looked up part by part; a part that leans on another ("what was its score") is searched for with what the other found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from demo.reading.dialogue import (
    MAX_SEARCHES,
    NOTHING,
    STRONG,
    WEAK,
    Demand,
    Look,
    Reading,
    keywords,
    next_query,
    queries_of,
    quote,
    readings,
)
from demo.reading.layout import Sheet
from demo.reading.question import Question, analyse, subquestions
from vrag.memory_graph import ROOT
from vrag.tool_calls import AddAnswer, AddSearch, Judgement, Memorize, harmless

#: The frames of a clip that are named as its key moments, at most, and how near to the best one they are read.
MAX_MOMENTS, NEAR_BEST = 3, 0.85
#: A search of a question of several parts may be followed by this many more.
MAX_PART_SEARCHES = MAX_SEARCHES + 1
#: An answer that is read from one place is preferred to one that is put together, unless it is less certain by this.
IN_ONE_PLACE = 0.05
MAX_TITLE = 40
#: The longest finding that is searched for together with the part that leans on it.
MAX_LEANING = 60
_LEANS = re.compile(r"\b(?:it|its|they|their|them|this|that|these|those|he|she|his|her)\b|[其它该此]", re.IGNORECASE)
_FACT = re.compile(r"([^“”]*?)[:：] ?“([^“”]*)” (?:for|回答) “([^“”]*)” [(（](?:certainty|把握) (\d{1,3})%[)）][.。]?")

Action = AddSearch | Memorize | AddAnswer


@dataclass(frozen=True, slots=True)
class Node:
    """A search of the graph: its parents, what it looked for, the summary of what came of it, and whether it kept any."""

    id: str
    parents: tuple[str, ...] = ()
    query: str = ""
    summary: str = ""
    useful: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """Something that a node brought: its name among the results, what it is called, and what there is to look at.

    ``seconds`` are the times of the frames of a clip, one per look; empty for anything else.
    """

    node: str
    name: str
    label: str
    looks: tuple[Look, ...]
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class GraphTalk:
    """The conversation so far. ``open`` is the node whose results wait to be judged; ``tried`` are the queries."""

    question: str
    nodes: tuple[Node, ...] = ()
    shown: tuple[Shown, ...] = ()
    open: str = ""
    tried: tuple[str, ...] = ()
    demand: Demand = "act"


@dataclass(frozen=True, slots=True)
class Step:
    thought: str
    action: Action


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that was read: the span, what it answers, how certain that is (0 to 1), on which node and page."""

    text: str
    about: str
    certainty: float
    node: str = ""
    label: str = ""


def facts_of(summary: str, node: str) -> list[Fact]:
    """What a summary says was read."""
    return [
        Fact(text, about, int(percent) / 100, node, label.strip())
        for label, text, about, percent in _FACT.findall(summary)
    ]


def options(talk: GraphTalk, see: Callable[[bytes], Sheet]) -> Iterator[Step]:
    """The possible steps, the best first; the last ones are answers, and there is at least one."""
    plan = _Plan(talk, see)
    if talk.demand == "act" and talk.open:
        yield from plan.judgements()
    elif talk.demand == "act":
        yield from plan.searches()
    yield from plan.answers()


class _Plan:
    """A conversation with everything that was read in it."""

    def __init__(self, talk: GraphTalk, see: Callable[[bytes], Sheet]) -> None:
        self.talk = talk
        self.see = see
        self.question = analyse(talk.question)
        self.chinese = self.question.chinese
        alone = self.question.extreme or not self.question.clauses
        self.parts = [self.question] if alone else [_own_terms(part) for part in subquestions(self.question)]
        self.targets = [self.question] if alone else [self.question, *self.parts]
        facts = [fact for node in talk.nodes for fact in facts_of(node.summary, node.id)]
        noted = {fact.node for fact in facts}
        #: What was read of the things that are before the reader now and that no summary speaks of.
        self.seen = [
            (one, {target.text: self._read(one.looks, target) for target in self.targets})
            for one in talk.shown
            if one.node not in noted
        ]
        for one, read in self.seen:
            for about, pages in read.items():
                facts += [self._fact(page, about, one) for page in pages if page.reply is not None and page.reply.text]
        self.facts = facts

    def _read(self, looks: Iterable[Look], target: Question) -> list[Reading]:
        return [readings([look], target, self.see)[0] for look in looks]

    def _fact(self, page: Reading, about: str, one: Shown) -> Fact:
        assert page.reply is not None
        return Fact(page.reply.text, about, page.score, one.node, one.label)

    def best(self, target: Question, node: str | None = None) -> Fact | None:
        """The most certain reading of a target; the earliest of equals. With ``node``: of that node alone."""
        about = _about(target.text)
        own = [fact for fact in self.facts if _about(fact.about) == about and node in (None, fact.node)]
        return max(own, key=lambda fact: fact.certainty, default=None)

    # Judging

    def judgements(self) -> Iterator[Step]:
        """The judgement of what the last search brought; then the same in fewer words."""
        brought = [(one, read) for one, read in self.seen if one.node == self.talk.open]
        scores = {
            one.name: max((page.score for pages in read.values() for page in pages), default=0.0)
            for one, read in brought
        }
        best = max(scores.values(), default=0.0)
        judged = []
        for one, read in brought:
            score = scores[one.name]
            useful = score >= STRONG or (score >= WEAK and score == best)
            moments = self._moments(one, read) if useful and one.seconds else ()
            judged.append(Judgement(one.name, useful, float(min(5, max(1, round(1 + 4 * score)))), moments))
        found = [
            fact for target in self.targets if (fact := self.best(target, self.talk.open)) and fact.certainty >= WEAK
        ]
        sentences = [self._noted(fact) for fact in found] or [self._nothing(brought)]
        thought = self._thought_of(found)
        yield Step(thought, Memorize(" ".join(sentences), tuple(judged)))
        yield Step(thought, Memorize(sentences[0], tuple(judged)))

    def _moments(self, one: Shown, read: dict[str, list[Reading]]) -> tuple[float, ...]:
        """The times of the frames that say most of what is asked."""
        scores = [max(pages[index].score for pages in read.values()) for index in range(len(one.looks))]
        top = max(scores)
        near = [index for index, score in enumerate(scores) if score >= NEAR_BEST * top]
        near = sorted(sorted(near, key=lambda index: -scores[index])[:MAX_MOMENTS])
        return tuple(one.seconds[index] for index in near)

    def _noted(self, fact: Fact) -> str:
        text, about, percent = _plain(quote(fact.text, 300)), _about(fact.about), round(100 * fact.certainty)
        label = _plain(fact.label)
        if self.chinese:
            return f"{label}：“{text}” 回答 “{about}” （把握 {percent}%）。"
        return f"{label}: “{text}” for “{about}” (certainty {percent}%)."

    def _nothing(self, brought: Sequence[tuple[Shown, dict[str, list[Reading]]]]) -> str:
        names = ", ".join(one.label for one, _ in brought)
        if self.chinese:
            return f"读过 {names}，没有与问题相符的内容。"
        return f"Nothing relevant: {names} does not say it."

    def _thought_of(self, found: Sequence[Fact]) -> str:
        if not found:
            return "这些结果里没有读到所问的内容。" if self.chinese else "I do not read what is asked in these results."
        fact = max(found, key=lambda fact: fact.certainty)
        if self.chinese:
            return f"与问题最相关的是 {fact.label} 上的“{quote(fact.text, 80)}”，我把它记下来。"
        return f"What fits best is “{quote(fact.text, 80)}” on {fact.label}. I keep it."

    # Searching

    def searches(self) -> Iterator[Step]:
        """Searches for what is not answered for certain yet, each target's next words; none when enough was tried."""
        open_parts = [part for part in self.parts if (fact := self.best(part)) is None or fact.certainty < STRONG]
        limit = MAX_SEARCHES if len(self.parts) == 1 else MAX_PART_SEARCHES
        if not open_parts or len(self.talk.nodes) >= limit:
            return
        targets = [*open_parts, *(target for target in self.targets if target not in self.parts)]
        tried = list(self.talk.tried)
        for target in sorted(targets, key=self._attempts):
            parents, words = self._leaning_on(target, tried)
            query = words or next_query(target, tried)
            if query is not None:
                tried.append(query)
                yield Step(self._thought_before(query, target), AddSearch(self._title(query), parents, query))

    def _attempts(self, target: Question) -> int:
        own = {" ".join(query.split()) for query in queries_of(target)}
        return sum(" ".join(query.split()) in own or query.startswith(target.text) for query in self.talk.tried)

    def _leaning_on(self, target: Question, tried: Sequence[str]) -> tuple[tuple[str, ...], str]:
        """The parents of a search for a target, and its words where they come from what another part found."""
        if target in self.parts[1:]:
            first = self.best(self.parts[0])
            alone = _stands_alone(target)
            if alone and not self._attempts(target):
                return (ROOT,), ""
            if not alone and first is not None and first.certainty >= WEAK and first.node:
                words = f"{target.text} {first.text}" if len(first.text) <= MAX_LEANING else ""
                return (first.node,), words if words not in tried else ""
        return self._next_parents(), ""

    def _next_parents(self) -> tuple[str, ...]:
        """The last node; what it builds on, where it has led nowhere."""
        if not self.talk.nodes:
            return (ROOT,)
        last = self.talk.nodes[-1]
        return (last.id,) if last.useful else last.parents or (ROOT,)

    def _title(self, query: str) -> str:
        """A short name for a node that no other node has."""
        words = keywords(query) or query.split() or ["search"]
        title = ""
        for word in words:
            longer = f"{title} {word}".strip()
            if len(longer) > MAX_TITLE and title:
                break
            title = longer[:MAX_TITLE]
        taken = {node.id.casefold() for node in self.talk.nodes}
        name, number = title, 2
        while name.casefold() in taken:
            name, number = f"{title} {number}", number + 1
        return name

    def _thought_before(self, query: str, target: Question) -> str:
        several = len(self.parts) > 1
        if not self.talk.nodes:
            if several and self.chinese:
                return f"这个问题有 {len(self.parts)} 个部分，我逐个检索。先检索：“{quote(query, 80)}”。"
            if several:
                return f"The question has {len(self.parts)} parts; I look them up one by one, beginning with “{quote(query, 80)}”."
            return (
                "我需要找到写有答案的页面，先用问题检索。"
                if self.chinese
                else "I need the page that has the answer. I search for what the question asks."
            )
        if several and target in self.parts and not self._attempts(target):
            return (
                f"下一部分：“{quote(target.text, 80)}”。"
                if self.chinese
                else f"The next part is “{quote(target.text, 80)}”."
            )
        if not self.talk.nodes[-1].useful:
            return (
                "上一次检索没有结果，我退回去换一些词再检索。"
                if self.chinese
                else "That led nowhere. I go back and search with other words."
            )
        return (
            "还没有确切的答案，我继续检索。" if self.chinese else "What I kept is no certain answer yet. I search on."
        )

    # Answering

    def answers(self) -> Iterator[Step]:
        """The answer from all that was read; then the same without its parents."""
        used = self._used()
        if not used:
            nothing = (
                "在读到的页面中没有找到答案。"
                if self.chinese
                else "I found no answer to this in the pages that I read."
            )
            thought = "读过的内容里没有与问题相符的。" if self.chinese else "Nothing that I read fits the question."
            step = Step(thought, AddAnswer(tuple(node.id for node in self.talk.nodes[-1:]) or (ROOT,), nothing))
        else:
            texts = dict.fromkeys(fact.text for fact in used)
            text = "; ".join(part.rstrip(".。") for part in texts) if len(texts) > 1 else used[0].text
            read = ", ".join(f"“{quote(fact.text, 80)}”" for fact in used)
            thought = f"我读到：{read}。" if self.chinese else f"I read {read}."
            step = Step(thought, AddAnswer(tuple(dict.fromkeys(fact.node or ROOT for fact in used)), text))
        yield step
        assert isinstance(step.action, AddAnswer)
        yield Step(step.thought, AddAnswer((ROOT,), step.action.text))

    def _used(self) -> list[Fact]:
        """The readings that the answer consists of: one for the whole question, or one for each part that has one."""
        whole = self.best(self.question)
        whole = whole if whole is not None and whole.certainty >= NOTHING else None
        parts = [fact for part in self.parts if (fact := self.best(part)) is not None and fact.certainty >= NOTHING]
        if whole is not None and all(self._as_well(part, whole) for part in self.parts):
            return [whole]
        return parts

    def _as_well(self, part: Question, whole: Fact) -> bool:
        """Whether the place that answers the whole answers a part as well as any other place does."""
        best = self.best(part)
        about = _about(part.text)
        return best is None or any(
            fact.certainty >= best.certainty - IN_ONE_PLACE
            for fact in self.facts
            if (fact.node, fact.label, _about(fact.about)) == (whole.node, whole.label, about)
        )


def _stands_alone(part: Question) -> bool:
    """Whether a part of a question says by itself what it asks for."""
    return len(keywords(part.text)) >= 3 and not _LEANS.search(part.text)


def _own_terms(part: Question) -> Question:
    """A part without what it inherits from the others, where it stands alone: its page need not say anything of them."""
    return replace(part, terms=analyse(part.text).terms) if _stands_alone(part) else part


def _plain(text: str) -> str:
    """In one line, without the quotation marks that the summaries use."""
    return " ".join(harmless(text).replace("“", '"').replace("”", '"').split())


def _about(text: str) -> str:
    """A question as the summaries write it."""
    return _plain(quote(text, 200))
