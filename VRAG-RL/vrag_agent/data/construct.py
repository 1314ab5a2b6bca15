"""Questions -> correct demonstrations: ``python VRAG-RL/scripts/data_construct_pipeline.py --help``.

    OUT/attempts.jsonl          every attempt at every question, a line each, as it ended; what a second run goes on from
    OUT/demonstrations.jsonl    the correct ones, balanced over lengths and kinds of action
    OUT/pages/                  the pages that were looked at, as the search service gave them
    OUT/records/                the record of every run, which the demo replays
    OUT/construct_report.json   counts: attempts, drops and failures by reason, what was chosen by length and kind

The expert works through the product's own :class:`vrag.vrag_episode.VragEpisode`, so what it shows can be done in
training. An attempt that ended because a service failed is no attempt: its question is left over (exit status 1), the
next run asks again, and ten in a row end this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vrag.chat import AsyncChatModel
from vrag.errors import ConfigError, JudgeError, VragError
from vrag.events import Event, Failed
from vrag.judge import JUDGES, Judge, JudgeFailed, JudgeSettings, open_judge
from vrag.records import RecordWriter
from vrag.retriever import AsyncHttpRetriever
from vrag.rewards import retrieval_ndcg
from vrag.runner import arun
from vrag.settings import ChatSettings, Settings
from vrag.vrag_episode import VragEpisode
from vrag_agent.data import show_progress
from vrag_agent.data.balance import balanced
from vrag_agent.data.demonstration import Asked, Attempt, Turn, read_attempts, turns_of
from vrag_agent.data.experts import Archive, Experts, Units
from vrag_agent.data.files import Journal, write_whole
from vrag_agent.data.formats import Example, read_examples
from vrag_agent.data.rows import Dropped

log = logging.getLogger("vrag_agent.construct")

ATTEMPTS, DEMONSTRATIONS, REPORT = "attempts.jsonl", "demonstrations.jsonl", "construct_report.json"
ERRORS_IN_A_ROW = 10


@dataclass(frozen=True)
class Plan:
    """How demonstrations are made and chosen. ``steps`` is the least and the largest number of turns (paper: 2 to 6).

    Raises ConfigError for values that make no sense.
    """

    questions_limit: int | None = None
    """Only the first so many."""
    samples: int = 1
    """Attempts at a question at most; the first correct one ends it."""
    steps: tuple[int, int] = (2, 6)
    limit: int | None = None
    per_cell: int | None = None
    guided: int = 0
    """Hits that are searched for reference pages; 0: retrieval as it is."""
    need_evidence: bool = True
    """Whether a right answer counts only when a reference page was seen, where the data names one."""
    concurrency: int = 4
    units: Units = "pixels"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("questions_limit", "samples", "limit", "per_cell", "concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} has to be 1 or more, not {value}.")
        if self.guided < 0:
            raise ConfigError(f"guided has to be 0 or more, not {self.guided}.")
        least, most = self.steps
        if not 1 <= least <= most:
            raise ConfigError(f"steps are the least and the largest number of turns, from 1; {least}-{most} is none.")


@dataclass
class Construction:
    """One run of the pipeline over ``examples`` into ``output``. ``unusable``: rows that are no example, by reason."""

    examples: Sequence[Example]
    output: Path
    settings: Settings
    judge: Judge
    plan: Plan = field(default_factory=Plan)
    grounding: ChatSettings | None = None
    unusable: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.examples = self.examples[: self.plan.questions_limit]
        self._done: dict[tuple[Asked, int], Attempt] = {}
        self._failed: Counter[str] = Counter()
        self._damaged = 0
        self._errors = 0
        self._finished = 0

    async def run(self) -> dict[str, Any]:
        """Make what is missing, choose, write; returns the report. Raises VragError when the services keep failing."""
        journal = Journal(self.output / ATTEMPTS)
        try:
            self._read_done(journal.path)
            await self._make(journal)
        finally:
            journal.close()
            report = self._choose()
        return report

    def _read_done(self, path: Path) -> None:
        for attempt in read_attempts(path):
            if isinstance(attempt, Dropped):
                log.warning("%s", attempt)
                self._damaged += 1
            elif attempt.status != "error":
                self._done[attempt.key] = attempt

    async def _make(self, journal: Journal) -> None:
        room = asyncio.Semaphore(self.plan.concurrency)
        async with AsyncChatModel(self.settings) as decider, AsyncHttpRetriever(self.settings) as retriever:
            grounder = AsyncChatModel(self.grounding) if self.grounding is not None else None
            work = [self._question(example, room, journal, decider, grounder, retriever) for example in self.examples]
            tasks = [asyncio.ensure_future(one) for one in work]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                if grounder is not None:
                    await grounder.close()

    async def _question(
        self,
        example: Example,
        room: asyncio.Semaphore,
        journal: Journal,
        decider: AsyncChatModel,
        grounder: AsyncChatModel | None,
        retriever: AsyncHttpRetriever,
    ) -> None:
        for number in range(self.plan.samples):
            attempt = self._done.get((_asked(example), number))
            if attempt is None:
                async with room:
                    attempt = await self._attempt(example, number, decider, grounder, retriever)
                journal.add(attempt.model_dump_json())
                self._note(attempt)
            if attempt.status != "dropped":
                return

    def _note(self, attempt: Attempt) -> None:
        self._finished += 1
        why = f": {attempt.reason}" + (f" ({attempt.detail})" if attempt.detail else "") if attempt.reason else ""
        log.info("[%d] %s #%d %s%s", self._finished, attempt.id, attempt.attempt, attempt.status, why)
        if attempt.status != "error":
            self._done[attempt.key] = attempt
            self._errors = 0
            return
        self._failed[attempt.reason] += 1
        self._errors += 1
        if self._errors >= ERRORS_IN_A_ROW:
            raise VragError(
                f"{self._errors} attempts in a row failed, the last with: {attempt.detail} "
                "What was finished is kept; run the same command again when the services work."
            )

    async def _attempt(
        self,
        example: Example,
        number: int,
        decider: AsyncChatModel,
        grounder: AsyncChatModel | None,
        retriever: AsyncHttpRetriever,
    ) -> Attempt:
        started = time.monotonic()
        experts = Experts(decider, grounder, self.plan.units)
        archive = Archive(retriever, self.output, example.relevant_ids, self.plan.guided)
        record = RecordWriter(
            self.output / "records", example.question, settings=self.settings.public(), secrets=self.settings.secrets()
        )
        course = arun(VragEpisode(example.question, self.settings.vrag_options()), experts, archive, record=record)
        events: list[Event] = [event async for event in course]
        outcome = course.outcome
        turns = turns_of(events, experts.relocated)
        shown = outcome.shown if outcome is not None else ()
        attempt = Attempt(
            id=example.id,
            attempt=number,
            status="dropped",
            question=example.question,
            reference=example.answer,
            answer=outcome.answer if outcome is not None else None,
            file_name=example.file_name,
            reference_page=example.reference_page,
            relevant_ids=example.relevant_ids,
            split=example.split,
            data_source=example.data_source,
            turns=turns,
            pages=archive.pages,
            ndcg=retrieval_ndcg(shown, example.relevant_ids),
            experts=self._provenance(),
            record=str(record.path.relative_to(self.output)),
            seconds=round(time.monotonic() - started, 3),
        )
        if outcome is None or outcome.reason in ("error", "stopped"):
            last = events[-1] if events else None
            said = last.text if isinstance(last, Failed) else "The run was closed."
            return attempt.model_copy(update={"status": "error", "reason": "a service failed", "detail": said})
        if unfit := unfit_for_training(turns, outcome.reason, self.plan.steps):
            return attempt.model_copy(update={"reason": unfit})
        judgement = await self.judge.ajudge(example.question, example.answer, outcome.answer)
        if isinstance(judgement, JudgeFailed):
            return attempt.model_copy(
                update={
                    "status": "error",
                    "reason": "the judge failed",
                    "detail": judgement.reason,
                    "judge": judgement.judge,
                }
            )
        judged = attempt.model_copy(update={"score": judgement.score, "judge": judgement.judge})
        if not judgement.right:
            return judged.model_copy(update={"reason": "wrong answer"})
        if self.plan.need_evidence and example.relevant_ids and not judged.ndcg > 0:
            return judged.model_copy(update={"reason": "right without having seen a reference page"})
        return judged.model_copy(update={"status": "correct"})

    def _provenance(self) -> dict[str, Any]:
        kept = (
            "model",
            "base_url",
            "temperature",
            "top_p",
            "seed",
            "max_pixels",
            "min_pixels",
            "crop_padding",
            "top_k",
        )
        public = self.settings.public()
        out: dict[str, Any] = {"decides": {name: public[name] for name in kept}, "guided": self.plan.guided}
        if self.grounding is not None:
            public = self.grounding.public()
            out["grounds"] = {name: public[name] for name in kept[:5]} | {"units": self.plan.units}
        return out

    def _is_left(self, example: Example) -> bool:
        """Whether a question has neither a right answer nor all of its attempts."""
        attempts = [self._done.get((_asked(example), number)) for number in range(self.plan.samples)]
        return None in attempts and not any(one is not None and one.status == "correct" for one in attempts)

    def _choose(self) -> dict[str, Any]:
        wanted = set(map(_asked, self.examples))
        attempts = [attempt for attempt in self._done.values() if attempt.asked in wanted]
        correct = sorted((one for one in attempts if one.status == "correct"), key=lambda one: one.key)
        plan = self.plan
        chosen = balanced(correct, lambda one: one.cell, plan.limit, plan.per_cell, plan.seed)
        write_whole(self.output / DEMONSTRATIONS, "".join(attempt.model_dump_json() + "\n" for attempt in chosen))
        report = {
            "questions": len(self.examples),
            "unusable": dict(self.unusable),
            "attempts": len(attempts),
            "correct": len(correct),
            "dropped": dict(Counter(one.reason for one in attempts if one.status == "dropped")),
            "failed": dict(self._failed),
            "left": sum(map(self._is_left, self.examples)),
            "damaged_attempts": self._damaged,
            "dropped_by_balance": len(correct) - len(chosen),
            "chosen": len(chosen),
            "cells": dict(
                sorted(Counter(f"{n} turns, {'with' if c else 'no'} crop" for n, c in _cells(chosen)).items())
            ),
            "judge": self.judge.name,
        }
        write_whole(self.output / REPORT, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        return report


def _asked(example: Example) -> Asked:
    return example.id, example.question, example.answer


def _cells(attempts: Sequence[Attempt]) -> list[tuple[int, bool]]:
    return [attempt.cell for attempt in attempts]


def unfit_for_training(turns: Sequence[Turn], reason: str, steps: tuple[int, int]) -> str:
    """Why a finished run should not be imitated, before anybody judges its answer; "" where it may be."""
    if reason == "no_answer":
        return "no answer"
    if reason != "answer":
        return f"the answer had to be asked for ({reason})"
    if any(turn.action == "other" for turn in turns):
        return "an action could not be used"
    if any(turn.action == "search" and not turn.shown for turn in turns):
        return "a search brought nothing new"
    if not any(turn.action == "search" for turn in turns):
        return "no search"
    if not all(turn.thought for turn in turns):
        return "a turn without a thought"
    if not steps[0] <= len(turns) <= steps[1]:
        return f"not {steps[0]} to {steps[1]} turns long"
    return ""


# --- the command


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="data_construct_pipeline.py",
        description="Let a strong model answer questions through the agent's own episode, and keep what is right.",
        epilog="The model and the search service can also be set by VRAG_* variables, the judge by VRAG_JUDGE_*.",
    )
    out.add_argument("questions", type=Path, help="ViDoSeek, SlideVQA, MMLongBench-Doc or plain JSON, JSONL, Parquet")
    out.add_argument("--output", type=Path, required=True, help="folder; give it again to go on")
    out.add_argument("--split", help="where the rows do not say it (default: by the file's name, else train)")
    out.add_argument("--questions-limit", type=int, help="only the first N questions")
    expert = out.add_argument_group("the deciding model")
    expert.add_argument("--base-url", help="OpenAI-compatible endpoint, up to and including /v1")
    expert.add_argument("--model")
    expert.add_argument("--api-key")
    expert.add_argument("--temperature", type=float)
    expert.add_argument("--max-pixels", type=int, help="largest area of a picture that the expert is shown")
    expert.add_argument("--max-steps", type=int, default=8, help="turns in which it may act (default: %(default)s)")
    ground = out.add_argument_group("the grounding model (optional)")
    ground.add_argument("--grounding-base-url")
    ground.add_argument("--grounding-model")
    ground.add_argument("--grounding-api-key")
    ground.add_argument("--grounding-units", choices=("pixels", "thousandths"), default="pixels")
    search = out.add_argument_group("retrieval")
    search.add_argument("--search-url")
    search.add_argument("--top-k", type=int)
    search.add_argument(
        "--guided", type=int, default=0, metavar="N", help="put reference pages among the first N hits first"
    )
    choice = out.add_argument_group("what is kept")
    choice.add_argument(
        "--judge", choices=JUDGES, default="model", help="model (VRAG_JUDGE_*) or a rule (default: %(default)s)"
    )
    choice.add_argument("--samples", type=int, default=1, help="attempts at a question at most (default: %(default)s)")
    choice.add_argument("--steps", default="2-6", metavar="LEAST-MOST", help="turns (default: %(default)s)")
    choice.add_argument("--limit", type=int, help="demonstrations at most, evenly over lengths and kinds")
    choice.add_argument("--per-cell", type=int, help="demonstrations of one length and kind at most")
    choice.add_argument("--without-evidence", action="store_true", help="also keep what never saw a reference page")
    choice.add_argument("--seed", type=int, default=0)
    out.add_argument("--concurrency", type=int, default=4, help="questions at the same time (default: %(default)s)")
    return out


def construction_of(args: argparse.Namespace, judge: Judge) -> Construction:
    """What the command line asks for. Raises ConfigError."""
    least, dash, most = args.steps.partition("-")
    if not (least.isdecimal() and (most.isdecimal() or not dash)):
        raise ConfigError(f"--steps is written LEAST-MOST, such as 2-6, not {args.steps!r}.")
    settings = Settings(
        base_url=args.base_url,
        model=args.model,
        api_key=args.api_key,
        temperature=args.temperature,
        max_pixels=args.max_pixels,
        max_steps=args.max_steps,
        search_url=args.search_url,
        top_k=args.top_k,
    )
    grounding = None
    if args.grounding_base_url or args.grounding_model:
        grounding = ChatSettings(
            base_url=args.grounding_base_url or settings.base_url,
            model=args.grounding_model,
            api_key=args.grounding_api_key,
            temperature=0.0,
        )
    plan = Plan(
        questions_limit=args.questions_limit,
        samples=args.samples,
        steps=(int(least), int(most or least)),
        limit=args.limit,
        per_cell=args.per_cell,
        guided=args.guided,
        need_evidence=not args.without_evidence,
        concurrency=args.concurrency,
        units=args.grounding_units,
        seed=args.seed,
    )
    examples, unusable = questions(args.questions, args.split or "")
    if not examples:
        raise ConfigError(f"{args.questions} holds no question that can be used: {unusable or 'it is empty'}.")
    return Construction(examples, args.output, settings, judge, plan, grounding, unusable)


def questions(path: Path, split: str = "") -> tuple[list[Example], dict[str, int]]:
    """The questions in a file, and how many of its rows are none, by reason. Raises ConfigError."""
    examples: dict[str, Example] = {}
    unusable: Counter[str] = Counter()
    for row in read_examples(path, split=split, default_split="train"):
        if isinstance(row, Example) and row.id in examples:
            row = Dropped(row.place, "id used before", f"{row.id!r}, {examples[row.id].place}")
        if isinstance(row, Example):
            examples[row.id] = row
            continue
        log.warning("%s", row)
        unusable[row.reason] += 1
    return list(examples.values()), dict(unusable)


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    show_progress()
    judge: Judge | None = None
    try:
        judge = open_judge(args.judge, JudgeSettings)
        report = asyncio.run(construction_of(args, judge).run())
    except (VragError, JudgeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("Stopped. What was finished is kept; the same command goes on from there.\n")
        return 130
    finally:
        if judge is not None:
            judge.close()
    sys.stdout.write(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    if report["left"]:
        sys.stderr.write(f"Questions left: {report['left']}. Run the same command again when the services work.\n")
        return 1
    return 0
