"""The memory graph: energies, budget, prompt and pictures of one step, in milliseconds, by the number of nodes.

Every step of a VimRAG run weighs the whole graph (eqs. 6 to 8), writes it into the prompt and draws the kept pictures at
their new sizes. Compared with a plain recomputation: the same equations word for word, with the children of a node looked
for by a walk over all nodes, as in the published agent, and every picture drawn again from the whole page.

``graph_ms`` is energy, budget and prompt; ``pictures_ms`` draws the pictures after one more search has changed their sizes,
``again_ms`` when nothing has changed; ``ratio`` is that of the whole step. The figures are medians of processor time, which
other programs on the machine change little.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from vrag.errors import VragError
from vrag.graph_energy import PAPER, EnergyModel, energies, shares
from vrag.items import Item
from vrag.library import Library, Source
from vrag.memory_graph import ROOT, Evidence, MemoryGraph, Weighed, parse
from vrag.pages import open_page

PAGE = (1654, 2339)
"""Pixels of a stored page: A4 at 200 dpi."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 50, 200], help="sizes of the graph (10 50 200)")
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each kind; the median counts (15)")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> dict[str, Any]:
    page = drawn_page(args.seed)
    rows = [measure(nodes, page, args.rounds, args.seed) for nodes in args.nodes]
    return {"rows": rows, "page": list(PAGE), "budget": PAPER.pixels, "top_k": PAPER.top_k}


def drawn_page(seed: int) -> bytes:
    """A page of fine detail as JPEG: as slow to decode as a scan."""
    noise = np.random.default_rng(seed).integers(0, 256, (PAGE[1] // 4, PAGE[0] // 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize(PAGE, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def grown(nodes: int, seed: int) -> MemoryGraph:
    """A graph as runs grow it: one or two parents among the last few nodes, none to three pages kept."""
    choose = random.Random(seed)
    graph = MemoryGraph("How did the sales of the northern region develop between 2019 and 2023?")
    for number in range(nodes):
        near = [ROOT, *graph.nodes][-6:]
        parents = choose.sample(near, min(len(near), choose.choice([1, 1, 2])))
        node, _ = graph.add(f"search {number}", parents, f"sales of the northern region, part {number}")
        kept = [
            Evidence(f"page_{number}_{k}", "image", choose.randint(1, 5)) for k in range(choose.choice([0, 1, 2, 3]))
        ]
        graph.memorise(node.id, f"The table of part {number} gives 4.2 million for the year {2000 + number}.", kept)
    return graph


def measure(nodes: int, page: bytes, rounds: int, seed: int) -> dict[str, Any]:
    graph = grown(nodes, seed)
    parents = graph.parents()
    rated = {name: [kept.priority for kept in node.memory] for name, node in graph.nodes.items() if node.memory}
    found = energies(parents, rated, PAPER)
    weights = [energy for name in graph.nodes for energy in found[name]]
    (expected, _), taken = plain(graph, PAPER), graph.weigh(PAPER)
    if any(not math.isclose(expected[one.evidence.item_id], one.energy) for one in taken):
        raise VragError("The plain recomputation and the graph disagree about the energies.")
    if parse(graph.linearise()) != (graph, ()):
        raise VragError("The linearised graph is not read back as it was.")
    often = 20 * rounds
    figures = {
        "energy_ms": median(often, lambda: energies(parents, rated, PAPER)),
        "budget_ms": median(often, lambda: shares(weights, [1] * len(weights), PAPER)),
        "prompt_ms": median(often, graph.linearise),
        "graph_ms": median(often, lambda: (graph.weigh(PAPER), graph.linearise())),
        "plain_ms": median(often, lambda: (plain(graph, PAPER), plain_prompt(graph))),
    }
    figures.update(pictures(graph, page, max(3, rounds // 3)))
    ours = figures["graph_ms"] + figures["pictures_ms"]
    return {"nodes": nodes, **figures, "ratio": (figures["plain_ms"] + figures["plain_pictures_ms"]) / ours}


def pictures(graph: MemoryGraph, page: bytes, rounds: int) -> dict[str, float]:
    """Drawing the kept pictures: after one more search, when nothing changed, and plainly."""
    library = Library(1_003_520, 401_408)
    sources = {}
    for node in graph.nodes.values():
        for kept in node.memory:
            item = Item(id=kept.item_id, kind="image", document=f"{kept.item_id}.jpg")
            sources[kept.item_id] = Source(item, open_page(page, item))
    before = graph.weigh(PAPER)
    for one in before:
        if one.pictures:
            library.add(sources[one.evidence.item_id])
    shown = [one for one in before if one.pictures]
    # One more search makes every share a little smaller.
    smaller = [
        Weighed(one.node, one.evidence, one.energy, one.pictures, one.pixels - 1_000 - round_number)
        for round_number in range(rounds)
        for one in shown
    ]
    changed = [smaller[start : start + len(shown)] for start in range(0, len(smaller), len(shown) or 1)]
    drawn = iter(changed)
    times = {"pictures_ms": median(rounds, lambda: library.remembered(next(drawn), 0), warm=False)}
    library.remembered(shown, 0)
    times["again_ms"] = median(rounds, lambda: library.remembered(shown, 0))
    times["plain_pictures_ms"] = median(rounds, lambda: [plain_picture(page, one.pixels) for one in shown])
    return times


def median(rounds: int, work: Callable[[], object], warm: bool = True) -> float:
    """Milliseconds of this thread's processor time."""
    if warm:
        work()
    taken = []
    for _ in range(rounds):
        begun = time.thread_time()
        work()
        taken.append(1000 * (time.thread_time() - begun))
    return statistics.median(taken)


# --- the plain recomputation


def plain(graph: MemoryGraph, model: EnergyModel) -> tuple[dict[str, float], dict[str, int]]:
    """Eqs. 6 to 8 over the nodes in reverse, each looking for its children among all nodes."""
    order = [ROOT, *graph.nodes]
    energy: dict[str, float] = {}
    mean: dict[str, float] = {}
    for name in reversed(order):
        children = [other for other in graph.nodes.values() if name in other.parents]
        back = model.feedback * math.fsum(mean[child.id] for child in children)
        age = len(order) - 1 - order.index(name)
        kept = graph.nodes[name].memory if name != ROOT else ()
        for one in kept:
            energy[one.item_id] = one.priority / 5 * (1 + len(children)) * math.exp(-model.decay * age) + back
        mean[name] = math.fsum(energy[one.item_id] for one in kept) / len(kept) if kept else back
    best = sorted(energy.items(), key=lambda pair: -pair[1])[: model.top_k]
    total = sum(value for _, value in best)
    budget = {item: math.floor(model.pixels * value / total) for item, value in best}
    return energy, budget


def plain_prompt(graph: MemoryGraph) -> str:
    nodes = [
        {
            "id": node.id,
            "parent_ids": list(node.parents),
            "query": node.query,
            "summary": node.summary,
            "memory": [{"id": one.item_id, "kind": one.kind, "priority_score": one.priority} for one in node.memory],
        }
        for node in graph.nodes.values()
    ]
    return json.dumps([{"id": ROOT, "name": "Initial Node", "content": graph.question}, *nodes], ensure_ascii=False)


def plain_picture(page: bytes, pixels: int) -> bytes:
    image = Image.open(io.BytesIO(page)).convert("RGB")
    scale = math.sqrt(pixels / (image.width * image.height))
    if scale < 1:
        image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=75)
    return buffer.getvalue()
