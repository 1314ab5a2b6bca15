"""A mediocre expert of the tiny world, for supervised fine-tuning: it makes the product's episodes and gets pages over HTTP.

What it spoils are decisions: to guess at once, to search for the colour alone, to search again without need. Its reading is
mostly right, or the vision tower would learn nothing in the time. Its most frequent search is a bad one, so that there is
something left to be found by reinforcement, for greedy decoding too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from vrag.episode import Frame
from vrag.items import Hit
from vrag.retriever import AsyncRetriever
from vrag_agent.driver import roll_out, roll_out_all
from vrag_agent.scripted import ScriptedModel
from vrag_agent.template import ChatTemplate
from vrag_agent.tiny.task import TinyTask
from vrag_agent.tiny.words import ANIMALS, COLOURS
from vrag_agent.tiny.world import Card, World
from vrag_agent.trajectory import Trajectory


@dataclass(frozen=True)
class Habits:
    """Probabilities."""

    guess: float = 0.3
    """To answer at once, with any digit."""
    right_query: float = 0.35
    colour_only: float = 0.45
    """The rest of the queries has one wrong word."""
    search_again: float = 0.5
    """After a wrong page."""
    crop: float = 0.8
    right_corner: float = 0.8
    read: float = 0.85
    """To read a large digit right."""
    read_crop: float = 0.95
    read_small: float = 0.4


#: A VimRAG context names the question twice among twice as many tokens: copying both of its words into a query takes more
#: examples of it.
HABITS = {"vrag": Habits(), "vimrag": Habits(guess=0.2, right_query=0.45, colour_only=0.5)}


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
        seen = _Seeing(retriever, world)
        expert = _Expert(task, world, card, seen.cards, rng, habits or HABITS[task.agent])
        model = ScriptedModel(template, expert.turns())
        return await roll_out(task.episode(card.question), model, seen, template, task.limits, uid=str(stream))

    streams = random.Random(seed)
    jobs = [partial(one, streams.getrandbits(40)) for _ in range(number)]
    return await roll_out_all(jobs, 64)


class _Seeing:
    """A retriever that remembers which pages were looked at."""

    def __init__(self, retriever: AsyncRetriever, world: World) -> None:
        self.cards: list[Card] = []
        self._retriever, self._world = retriever, world

    async def search(self, queries: Sequence[str], top_k: int, corpus: str | None = None) -> list[list[Hit]]:
        return await self._retriever.search(queries, top_k, corpus)

    async def image(self, item_id: str) -> bytes:
        self.cards.append(self._world.by_id[item_id])
        return await self._retriever.image(item_id)

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
            if self.seen[-1:] == [self.card] or rng.random() > habits.search_again:
                break
        page = self.seen[-1]
        sure = habits.read
        if self.task.crop:
            sure = habits.read_small
            if rng.random() < habits.crop:
                corner = page.corner if rng.random() < habits.right_corner else rng.randint(0, 3)
                sure = habits.read_crop if corner == page.corner else 0.1
                yield f"<think> zoom</think><bbox>{self._corner(corner)}</bbox>"
        yield f"<think> read</think><answer> {self._read(page, sure)}</answer>"

    def _vimrag(self) -> Iterator[str]:
        habits, rng = self.habits, self.rng
        if rng.random() < habits.guess:
            yield _call("guess", "add_answer_node", parent_ids=["root"], answer=str(rng.randint(0, 9)))
            return
        for node in ("a", "b"):
            looked = len(self.seen)
            yield _call("find", "add_search_node", id=node, parent_ids=["root"], query=self._query())
            last = self.seen[-1:] == [self.card] or rng.random() > habits.search_again or node == "b"
            digit = self._read(self.seen[-1], habits.read)
            if len(self.seen) > looked:  # else there was nothing new, and there is nothing to judge
                kept = {
                    "information_id": "Picture 1",
                    "is_useful": last,
                    "key_timestamp": [],
                    "priority_score": 5 if last else 1,
                }
                summary = str(digit) if last else "nothing here"
                yield _call("keep" if last else "drop", "summarize_and_memorize", summarize=summary, memorize=[kept])
            if last:
                yield _call("read", "add_answer_node", parent_ids=[node], answer=str(digit))
                return

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
