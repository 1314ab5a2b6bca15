"""The tiny world, step by step: ``python -m vrag_agent.tiny prepare|sft|grpo|validate ...``

    python -m vrag_agent.tiny prepare RUN              pages, index, questions, a model with random weights
    python -m vrag_agent.tiny sft RUN                  demonstrations over HTTP, then supervised fine-tuning -> RUN/sft
    python -m vrag_agent.tiny grpo RUN [--ggpo]        plain-PyTorch GRPO from RUN/sft -> RUN/grpo
    python -m vrag_agent.tiny validate RUN MODEL       held-out questions, greedy and sampled; and with the pictures blacked out

All four take ``--agent vrag|vimrag``, ``--family qwen2_5_vl|qwen3_vl`` and ``--no-crop``; use the same for one RUN. Figures
go to RUN/*.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from vrag.errors import VragError
from vrag.judge import RuleJudge
from vrag.retriever import AsyncHttpRetriever
from vrag_agent.driver import Sampled, TokenModel
from vrag_agent.page_cache import PageCache
from vrag_agent.tiny.task import TinyTask, tasks_of
from vrag_agent.tiny.world import World, serve, write_questions, write_world
from vrag_agent.trajectory import Trajectory

log = logging.getLogger("vrag_agent.tiny")


class Blindfolded:
    """A policy that sees black pictures of the same sizes: what it still gets right it did not read."""

    def __init__(self, policy: TokenModel) -> None:
        self._policy = policy

    async def generate(self, prompt_ids: list[int], images: list[Image.Image], **options: Any) -> Sampled:
        return await self._policy.generate(prompt_ids, [Image.new("RGB", one.size) for one in images], **options)


def prepare(run: Path, task: TinyTask, seed: int) -> World:
    from vrag_agent.tiny.checkpoint import make_checkpoint

    world = write_world(run / "world", task.corners)
    write_questions(world, run / "train.json", world.training)
    write_questions(world, run / "val.json", world.held_out)
    make_checkpoint(task.family, run / "base", seed)
    return world


async def sft(run: Path, task: TinyTask, url: str, number: int, seed: int) -> None:
    from vrag_agent.tiny.demonstrator import FAULTLESS, demonstrate
    from vrag_agent.tiny.sft import SftSettings, fine_tune

    model, processor, template = load(run / "base")
    world = World(run / "world", task.corners)
    async with AsyncHttpRetriever(url) as retriever:
        pages = PageCache(retriever)
        trajectories = await demonstrate(task, world, pages, template, number, seed + 99)
        faultless = await demonstrate(task, world, pages, template, 128, seed + 98, FAULTLESS)
    faulty = [one for one in (*trajectories, *faultless) if one.faulty]
    if faulty:
        raise VragError(f"{len(faulty)} demonstrations failed. One of them: {faulty[0].error}")
    samples, probes = ([sample for one in some for sample in one.samples] for some in (trajectories, faultless))
    log.info("%d demonstrations: %s", len(trajectories), await _quality(trajectories, task, world))
    figures = fine_tune(model, processor, samples, probes, SftSettings(seed=seed))
    save(model, processor, run / "sft")
    note(run / "sft.jsonl", {"demonstrations": number, "samples": len(samples), **figures})


async def _quality(trajectories: Sequence[Trajectory], task: TinyTask, world: World) -> dict[str, Any]:
    """What the demonstrations are worth themselves."""
    from vrag_agent.plain_grpo import Rollout, figures
    from vrag_agent.scoring import score

    by_question = {one.question: one for one in tasks_of(world.training)}
    judge = RuleJudge("exact")
    asked = [(by_question[one.question], one) for one in trajectories]
    return figures([Rollout(of, one, await score(one, of, judge, task.weights)) for of, one in asked])


async def grpo(run: Path, task: TinyTask, url: str, options: argparse.Namespace) -> None:
    from vrag_agent.hf_model import HfModel
    from vrag_agent.loss import LossSettings
    from vrag_agent.plain_grpo import GrpoSettings, train, validate

    model, processor, template = load(run / "sft")
    world = World(run / "world", task.corners)
    loss = LossSettings("sequence", "segment-mean") if options.ggpo else LossSettings()
    settings = GrpoSettings(
        steps=options.steps,
        questions=options.questions,
        group=options.group,
        lr=options.lr or task.lr,
        ggpo=options.ggpo,
        loss=loss,
        seed=options.seed,
    )
    name = options.name or ("ggpo" if options.ggpo else "grpo")
    path = run / f"{name}.jsonl"
    path.unlink(missing_ok=True)
    tasks, held_out = tasks_of(world.training), tasks_of(world.held_out)
    async with AsyncHttpRetriever(url) as retriever, HfModel(model, processor) as policy:
        around = task.surroundings(PageCache(retriever), template)
        note(path, {"step": 0, "validation": await validate(policy, held_out, around)})
        async for figures in train(policy, tasks, around, settings):
            if figures["step"] % options.validate_every == 0 or figures["step"] == settings.steps:
                figures["validation"] = await validate(policy, held_out, around)
            note(path, figures)
    save(model, processor, run / name)


async def look(run: Path, task: TinyTask, url: str, checkpoint: Path) -> None:
    from vrag_agent.hf_model import HfModel
    from vrag_agent.plain_grpo import validate

    model, processor, template = load(checkpoint)
    held_out = tasks_of(World(run / "world", task.corners).held_out)
    async with AsyncHttpRetriever(url) as retriever, HfModel(model, processor) as policy:
        around = task.surroundings(PageCache(retriever), template)
        seeing = await validate(policy, held_out, around)
        blind = await validate(Blindfolded(policy), held_out, around, sampled=0)
    note(run / "validate.jsonl", {"checkpoint": checkpoint.name, "validation": seeing, "blindfolded": blind})


def load(checkpoint: Path) -> tuple[Any, Any, Any]:
    """Model, processor and template of a checkpoint."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from vrag_agent.template import ChatTemplate

    processor = AutoProcessor.from_pretrained(checkpoint)
    return AutoModelForImageTextToText.from_pretrained(checkpoint), processor, ChatTemplate(processor)


def save(model: Any, processor: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def note(path: Path, figures: dict[str, Any]) -> None:
    """Append a line of figures, and show the ones that matter."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(figures) + "\n")
    shown: dict[str, Any] = {name: figures[name] for name in figures if name not in ("validation", "ended")}
    for name in ("validation", "blindfolded"):
        for way, found in figures.get(name, {}).items():
            shown[f"{name} {way}"] = {one: round(found[one], 3) for one in ("reward", "accuracy", "ndcg")}
    text = {name: round(value, 3) if isinstance(value, float) else value for name, value in shown.items()}
    sys.stdout.write(f"{path.stem}: {json.dumps(text)}\n")
    sys.stdout.flush()


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m vrag_agent.tiny", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("command", choices=("prepare", "sft", "grpo", "validate"))
    out.add_argument("run", type=Path, help="folder of this run")
    out.add_argument("model", type=Path, nargs="?", help="for validate: the checkpoint")
    out.add_argument("--agent", choices=("vrag", "vimrag"), default="vrag")
    out.add_argument("--family", choices=("qwen2_5_vl", "qwen3_vl"), default="qwen2_5_vl")
    out.add_argument(
        "--crop",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="vrag: small digits, which have to be looked at closely (the default), or large ones",
    )
    out.add_argument("--seed", type=int, default=0)
    out.add_argument("--search-url", help="a service that runs (default: one is started)")
    out.add_argument("--demonstrations", type=int, default=3000)
    out.add_argument("--ggpo", action="store_true")
    out.add_argument("--steps", type=int, default=20)
    out.add_argument("--questions", type=int, default=16)
    out.add_argument("--group", type=int, default=8)
    out.add_argument("--lr", type=float, help="of grpo (default: 3e-4, for vimrag 2e-4)")
    out.add_argument("--validate-every", type=int, default=5)
    out.add_argument("--name", help="name of the result below RUN (grpo or ggpo)")
    return out


@contextmanager
def _service(run: Path, task: TinyTask, url: str | None) -> Iterator[str]:
    if url:
        yield url
        return
    with serve(World(run / "world", task.corners)) as started:
        yield started


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Ended from outside, it must not leave its search service behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    task = TinyTask(options.agent, options.family, options.crop)
    run: Path = options.run
    try:
        if options.command == "prepare":
            prepare(run, task, options.seed)
            return 0
        with _service(run, task, options.search_url) as url:
            if options.command == "sft":
                asyncio.run(sft(run, task, url, options.demonstrations, options.seed))
            elif options.command == "grpo":
                asyncio.run(grpo(run, task, url, options))
            else:
                asyncio.run(look(run, task, url, options.model or run / "sft"))
    except VragError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
