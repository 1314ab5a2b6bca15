"""A mediocre expert of the tiny world, for supervised fine-tuning: it makes the product's episodes and searches over HTTP.

Every demonstration sees an edition of the pages of its own: the same titles, other digits, other corners. With one edition
a model that knows the question by heart needs no picture; on questions that it never saw, it would be blind.

What it spoils are decisions: to guess at once, to search for the colour alone, to search again without need. Its reading is
mostly right, or the vision tower would learn nothing in the time. Its most frequent search is a bad one, so that there is
something left to be found by reinforcement, for greedy decoding too.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from vrag.episode import Frame
from vrag.items import Hit
from vrag.retriever import AsyncRetriever
from vrag_agent.driver import roll_out, roll_out_all
from vrag_agent.scripted import ScriptedModel
from vrag_agent.template import ChatTemplate
from vrag_agent.tiny.task import TinyTask
from vrag_agent.tiny.words import ANIMALS, COLOURS
from vrag_agent.tiny.world import Card, World, draw
from vrag_agent.trajectory import Trajectory


@dataclass(frozen=True)
class Habits:
    """Probabilities."""

    guess: float = 0.15
    """To answer at once, with any digit."""
    right_query: float = 0.42
    colour_only: float = 0.52
    """The rest of the queries has one wrong word."""
    search_again: float = 0.5
    """After a wrong page."""
    crop: float = 0.9
    right_corner: float = 0.95
    read: float = 0.98
    """To read a large digit right, or a small one after looking closer."""
    read_small: float = 0.3


#: One that makes no mistake, to measure the reading with.
FAULTLESS = Habits(guess=0, right_query=1, colour_only=0, search_again=0, crop=1, right_corner=1, read=1)
#: A VimRAG context names the question twice among twice as many tokens: it sees a little less of the bad query.
HABITS = {"vrag": Habits(), "vimrag": Habits(colour_only=0.5)}


async def demonstrate(
    task: TinyTask,
    world: World,
    retriever: AsyncRetriever,
    template: ChatTemplate,
    number: int,
    seed: int,
    habits: Habits | None = None,
) -> list[Trajectory]:
    """``number`` trajectories on training questions; the same seed gives the same."""

    async def one(stream: int) -> Trajectory:
        rng = random.Random(stream)
        card = rng.choice(world.training)
        seen = _Editions(retriever, world, rng.getrandbits(32))
        expert = _Expert(task, world, card, seen.cards, rng, habits or HABITS[task.agent])
        model = ScriptedModel(template, expert.turns())
        return await roll_out(task.episode(card.question), model, seen, template, task.limits, uid=str(stream))

    streams = random.Random(seed)
    jobs = [partial(one, streams.getrandbits(40)) for _ in range(number)]
    return await roll_out_all(jobs, 64)


class _Editions:
    """A retriever whose pages carry digits of their own, and that remembers which were looked at."""

    def __init__(self, retriever: AsyncRetriever, world: World, seed: int) -> None:
        self.cards: list[Card] = []
        self._retriever, self._world, self._seed = retriever, world, seed

    async def search(self, queries: Sequence[str], top_k: int, corpus: str | None = None) -> list[list[Hit]]:
        return await self._retriever.search(queries, top_k, corpus)

    async def image(self, item_id: str) -> bytes:
        card = self._world.by_id[item_id]
        rng = random.Random(f"{self._seed}/{item_id}")
        self.cards.append(replace(card, digit=rng.randint(0, 9), corner=rng.randint(0, 3)))
        data = io.BytesIO()
        draw(self.cards[-1], self._world.corners, rng).save(data, "PNG", compress_level=1)
        return data.getvalue()

    async def frames(self, item_id: str, fps: float, max_frames: int, max_pixels: int) -> list[Frame]:
        return await self._retriever.frames(item_id, fps, max_frames, max_pixels)


@dataclass
class _Expert:
    task: TinyTask
    world: World
    card: Card
    seen: list[Card]
    rng: random.Random
    habits: Habits

    def turns(self) -> Iterator[str]:
        return self._vrag() if self.task.agent == "vrag" else self._vimrag()

    def _vrag(self) -> Iterator[str]:
        habits, rng = self.habits, self.rng
        if rng.random() < habits.guess:
            yield f"<think> guess</think><answer> {rng.randint(0, 9)}</answer>"
            return
        for _ in range(2):
            yield f"<think> find</think><search>{self._query()}</search>"
            if self.found or rng.random() > habits.search_again:
                break
        page = self.seen[-1]
        sure = habits.read
        if self.task.crop:
            sure = habits.read_small
            if rng.random() < habits.crop:
                corner = page.corner if rng.random() < habits.right_corner else rng.randint(0, 3)
                sure = habits.read if corner == page.corner else 0.1
                yield f"<think> zoom</think><bbox>{self._corner(corner)}</bbox>"
        yield f"<think> read</think><answer> {self._read(page, sure)}</answer>"

    def _vimrag(self) -> Iterator[str]:
        habits, rng = self.habits, self.rng
        if rng.random() < habits.guess:
            yield _call("guess", "add_answer_node", parent_ids=["root"], answer=str(rng.randint(0, 9)))
            return
        parent, digit = "root", 0
        for node in ("a", "b"):
            looked = len(self.seen)
            yield _call("find", "add_search_node", id=node, parent_ids=["root"], query=self._query())
            again = node == "a" and not self.found and rng.random() < habits.search_again
            if len(self.seen) > looked:  # else there was nothing new, and there is nothing to judge
                parent, digit = node, self._read(self.seen[-1], habits.read)
                kept = {
                    "information_id": "Picture 1",
                    "is_useful": not again,
                    "key_timestamp": [],
                    "priority_score": 1 if again else 5,
                }
                yield _call(
                    "drop" if again else "keep", "summarize_and_memorize", summarize=str(digit), memorize=[kept]
                )
            if not again:
                yield _call("read", "add_answer_node", parent_ids=[parent], answer=str(digit))
                return

    @property
    def found(self) -> bool:
        return bool(self.seen) and self.seen[-1].id == self.card.id

    def _query(self) -> str:
        """The words of a search; all begin with a space, as in the question, so that they can be copied."""
        draw = self.rng.random()
        if draw < self.habits.right_query:
            return f" {self.card.title}"
        if draw < self.habits.right_query + self.habits.colour_only:
            return f" {self.card.colour}"
        if self.rng.random() < 0.5:
            return f" {self.rng.choice(list(COLOURS))} {self.card.animal}"
        return f" {self.card.colour} {self.rng.choice(ANIMALS)}"

    def _corner(self, corner: int) -> str:
        half = self.task.side // 2
        left, top = half * (corner % 2), half * (corner // 2)
        return f"[{left}, {top}, {left + half}, {top + half}]"

    def _read(self, page: Card, sure: float) -> int:
        return page.digit if self.rng.random() < sure else self.rng.randint(0, 9)


def _call(thought: str, name: str, **arguments: object) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<think> {thought}</think><tool_call>{call}</tool_call>"
