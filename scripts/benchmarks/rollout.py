"""Rollouts: many trajectories at once against turn by turn in lock-step, with the same policy, questions and search service.

Needs torch and transformers (VRAG-RL/requirements_train.txt). The policy is a tiny Qwen2.5-VL in this process; without
``--checkpoint`` one is made and fine-tuned for a minute, which is enough to search and to answer. Draws are seeded by
trajectory, so both ways roll out exactly the same trajectories; the benchmark fails if they do not.

``lock-step`` is what a batched agent loop does: all live trajectories of a batch generate together, then all of them
retrieve, and nobody goes on before everybody is there. ``concurrent`` lets each go on when its own page is there.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", type=Path, help="a tiny VRAG model (python -m vrag_agent.tiny sft)")
    parser.add_argument("--trajectories", type=int, default=256)
    parser.add_argument("--at-once", type=int, default=64, help="trajectories under way; the batch of the lock-step")
    parser.add_argument(
        "--latency",
        type=float,
        nargs="+",
        default=[0.0, 0.2],
        metavar="S",
        help="seconds added to every search, drawn from an exponential distribution of this mean: a service that is far "
        "away, or busy",
    )
    parser.add_argument("--sft-steps", type=int, default=100, help="without --checkpoint")


def run(args: argparse.Namespace) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "VRAG-RL"))
    try:
        import torch
    except ModuleNotFoundError as error:
        from vrag.errors import ConfigError

        raise ConfigError("This benchmark needs torch: see VRAG-RL/requirements_train.txt.") from error
    from vrag_agent.tiny.__main__ import load
    from vrag_agent.tiny.task import TinyTask
    from vrag_agent.tiny.world import serve, write_world

    task = TinyTask("vrag", "qwen2_5_vl", crop=False)
    with tempfile.TemporaryDirectory() as scratch:
        world = write_world(Path(scratch) / "world", task.corners)
        with serve(world) as url:
            if args.checkpoint:
                model, processor, template = load(args.checkpoint)
            else:
                model, processor, template = _made(Path(scratch), task, world, url, args.sft_steps)
            rows: list[dict[str, Any]] = []
            for latency in args.latency:
                rows += asyncio.run(_compare(model, processor, template, task, world, url, latency, args))
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}


def _made(scratch: Path, task: Any, world: Any, url: str, steps: int) -> tuple[Any, Any, Any]:
    from vrag.retriever import AsyncHttpRetriever
    from vrag_agent.tiny.__main__ import load
    from vrag_agent.tiny.checkpoint import make_checkpoint
    from vrag_agent.tiny.demonstrator import FAULTLESS, Habits, demonstrate
    from vrag_agent.tiny.sft import SftSettings, fine_tune

    model, processor, template = load(make_checkpoint(task.family, scratch / "base"))

    async def shown(number: int, seed: int, habits: Habits | None = None) -> Any:
        async with AsyncHttpRetriever(url) as retriever:
            found = await demonstrate(task, world, retriever, template, number, seed, habits)
            return [sample for one in found for sample in one.samples]

    samples, probes = asyncio.run(shown(1000, 0)), asyncio.run(shown(32, 1, FAULTLESS))
    fine_tune(model, processor, samples, probes, SftSettings(steps=steps, settling=20))
    return model, processor, template


async def _compare(
    model: Any, processor: Any, template: Any, task: Any, world: Any, url: str, latency: float, args: argparse.Namespace
) -> list[dict[str, Any]]:
    from vrag.retriever import AsyncHttpRetriever
    from vrag_agent.hf_model import HfModel
    from vrag_agent.tiny.task import tasks_of

    questions = [one.question for one in tasks_of(world.training)]
    asked = [questions[number % len(questions)] for number in range(args.trajectories)]
    rows = []
    said: list[Any] = []
    for way in ("lock-step", "concurrent"):
        async with AsyncHttpRetriever(url) as retriever, HfModel(model, processor, max_batch=args.at_once) as policy:
            await retriever.search(["warm up"], 1)
            roll = _lock_step if way == "lock-step" else _concurrent
            started = time.perf_counter()
            found = await roll(asked, policy, _Far(retriever, latency), template, task, args.at_once)
            seconds = time.perf_counter() - started
        said.append([one.turns for one in found])
        total = sum(one.seconds for one in found)
        rows.append(
            {
                "added latency": latency,
                "way": way,
                "trajectories": len(found),
                "trajectories/s": len(found) / seconds,
                "waiting for the retriever": sum(one.retriever_seconds for one in found) / total,
                "waiting for the model": sum(one.model_seconds for one in found) / total,
                "requests per batch": policy.requests / policy.batches,
                "ended": ", ".join(f"{name} {sum(one.ended == name for one in found)}" for name in _ends(found)),
            }
        )
    if said[0] != said[1]:
        raise RuntimeError("the two ways did not roll out the same trajectories")
    for row in rows:
        row["against lock-step"] = row["trajectories/s"] / rows[0]["trajectories/s"]
    return rows


def _ends(found: Sequence[Any]) -> list[str]:
    return sorted({one.ended for one in found})


async def _one(number: int, question: str, policy: Any, retriever: Any, template: Any, task: Any) -> Any:
    from vrag_agent.driver import Sampling, roll_out

    episode = task.episode(question)
    sampling = Sampling(seed=number)
    return await roll_out(episode, policy, retriever, template, task.limits, uid=str(number), sampling=sampling)


async def _concurrent(
    asked: Sequence[str], policy: Any, retriever: Any, template: Any, task: Any, at_once: int
) -> list[Any]:
    from functools import partial

    from vrag_agent.driver import roll_out_all

    jobs = [partial(_one, n, question, policy, retriever, template, task) for n, question in enumerate(asked)]
    return await roll_out_all(jobs, at_once)


async def _lock_step(
    asked: Sequence[str], policy: Any, retriever: Any, template: Any, task: Any, at_once: int
) -> list[Any]:
    found: list[Any] = []
    for start in range(0, len(asked), at_once):
        batch = list(enumerate(asked))[start : start + at_once]
        gate = _Gate(policy, len(batch))

        async def one(number: int, question: str, gate: _Gate) -> Any:
            try:
                return await _one(number, question, gate, retriever, template, task)
            finally:
                gate.leave()

        found += await asyncio.gather(*(one(number, question, gate) for number, question in batch))
    return found


class _Gate:
    """A policy that generates only when every live trajectory of the batch has asked."""

    def __init__(self, policy: Any, live: int) -> None:
        self._policy = policy
        self._live = live
        self._waiting: list[asyncio.Event] = []

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        arrived = asyncio.Event()
        self._waiting.append(arrived)
        self._open()
        await arrived.wait()
        return await self._policy.generate(*args, **kwargs)

    def leave(self) -> None:
        self._live -= 1
        self._open()

    def _open(self) -> None:
        if len(self._waiting) >= self._live:
            for one in self._waiting:
                one.set()
            self._waiting.clear()


class _Far:
    """A retriever whose searches take longer. The delays are the same in every run: they depend on how many came before."""

    def __init__(self, retriever: Any, latency: float) -> None:
        self._retriever = retriever
        self._latency = latency
        self._draws = random.Random(0)
        self.image = retriever.image
        self.frames = retriever.frames

    async def search(self, queries: Sequence[str], top_k: int, corpus: str | None = None) -> Any:
        if self._latency:
            await asyncio.sleep(self._draws.expovariate(1 / self._latency))
        return await self._retriever.search(queries, top_k, corpus)
