"""Episodes for a model that was never trained: whatever it says is taken for an action, chosen by what it said.

A random model writes no valid search within the life of a test. Everything else is the product's: the searches go over HTTP,
pages and crops come back as pictures in the middle of the dialogue, the memory graph grows.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from vrag.actions import Answer, Crop, Search
from vrag.episode import Episode, Generation
from vrag.geometry import Box
from vrag.graph_energy import EnergyModel
from vrag.memory_graph import ROOT
from vrag.tool_calls import AddAnswer, AddSearch, Judgement, Memorize
from vrag.turns import said
from vrag.vimrag_episode import VimragEpisode
from vrag.vimrag_options import VimragOptions
from vrag.vrag_episode import VragEpisode, VragOptions

QUERIES = ("red fox", "blue owl", "red dog", "green cow")


def _number(reply: Generation) -> int:
    return sum(map(ord, said(reply)))


class AnyVrag(VragEpisode):
    """One reply in five answers at once, so some samples have no picture."""

    def _read(self, reply: Generation) -> Generator[Any, Any, Any]:
        yield from ()
        number, turn = _number(reply), self._meter.step
        if number % 5 == 0 or turn > 3:
            return Answer(str(number % 10))
        if self._last is not None and number % 3 == 0:
            return Crop(Box(0, 0, 28, 28))
        return Search(QUERIES[(number + turn) % len(QUERIES)])


class AnyVimrag(VimragEpisode):
    def _read(self, reply: Generation) -> Generator[Any, Any, Any]:
        yield from ()
        number = _number(reply)
        if self._found is not None:
            useful = number % 2 == 0
            return Memorize("read", (Judgement(next(iter(self._found.sources)), useful, 3.0, ()),)), ""
        nodes = list(self.graph.nodes)
        if nodes and (number % 3 == 0 or len(nodes) > 2):
            return AddAnswer((nodes[number % len(nodes)],), str(number % 10)), ""
        parent = (ROOT, *nodes)[number % (len(nodes) + 1)]
        return AddSearch(f"n{len(nodes)}", (parent,), QUERIES[(number + len(nodes)) % len(QUERIES)]), ""


def vrag(question: str, options: dict[str, Any]) -> Episode:
    return AnyVrag(question, VragOptions(max_steps=4, min_pixels=784, max_pixels=3136, **options))


def vimrag(question: str, options: dict[str, Any]) -> Episode:
    memory = EnergyModel(pixels=2 * 3136, min_pixels=784)
    return AnyVimrag(question, VimragOptions(max_steps=6, top_k=1, max_pixels_image=3136, memory=memory, **options))
