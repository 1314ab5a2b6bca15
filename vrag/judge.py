"""Whether an answer says what a reference says, decided by a model at any OpenAI-compatible endpoint, or by a rule.

    with ModelJudge(JudgeSettings(base_url=..., model="qwen2.5-7b-instruct", cache=Path("judge_cache"))) as judge:
        judgement = judge.judge("Who ...?", reference="Ada", answer="It was Ada.")        # or: await judge.ajudge(...)
        judgement.score if isinstance(judgement, Verdict) else judgement.reason

A judgement is a :class:`Verdict`, with the judge's name in it, or a :class:`JudgeFailed`: an endpoint that is down, slow
or talks nonsense says nothing about the answer, so the sample has to be left out, never scored 0. Failures are counted; when
their share among the latest judgements passes ``failure_limit`` the next one raises :class:`vrag.errors.JudgeError`,
which ends the run with a sentence instead of training on what little is left.

What the model under judgement wrote is hostile. The texts are escaped and delimited, so they can forge neither a
delimiter nor a verdict nor a chat marker, and a verdict counts only as the last thing that the judge says. A missing
answer is wrong without asking anybody.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import logging
import os
import re
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from anyio.from_thread import start_blocking_portal
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from vrag import prompts
from vrag.actions import clean
from vrag.chat import AsyncChatModel
from vrag.episode import Generate
from vrag.errors import ConfigError, JudgeError, ModelError
from vrag.matching import RULE_JUDGES
from vrag.matching import RuleJudge as Rule
from vrag.messages import Message, message
from vrag.settings import ChatSettings

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

#: Longer texts are cut in the judge's prompt: an answer may not bury the question under its length.
MAX_TEXT_CHARS = 8_000
#: The latest judgements that the share of failures is taken of, and how many there have to be before it counts.
WINDOW, LEAST = 100, 10

_VERDICT = re.compile(r"<judge>\s*(true|false)\s*</judge>", re.IGNORECASE)
_REMINDER = (
    "That was no verdict. Reply with one line and nothing else: <judge>True</judge> if the system's answer is right, "
    "<judge>False</judge> if it is wrong."
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's opinion. ``score`` is in [0, 1]; ``judge`` names who gave it: a model's id, or ``rule:contains``."""

    score: float
    judge: str
    prompt: str = ""
    """Version of the prompt that was used; empty for a rule, and where nobody had to be asked."""
    cached: bool = False
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return self.score >= 0.5


@dataclass(frozen=True, slots=True)
class JudgeFailed:
    """There is no verdict; ``reason`` is a sentence. The sample has to be left out."""

    judge: str
    reason: str


Judgement = Verdict | JudgeFailed


@dataclass(frozen=True, slots=True)
class JudgeCounts:
    """What a judge has done so far: verdicts for and against, failures; of the verdicts, from the cache or unasked."""

    right: int = 0
    wrong: int = 0
    failed: int = 0
    cached: int = 0
    unasked: int = 0

    @property
    def failed_share(self) -> float:
        total = self.right + self.wrong + self.failed
        return self.failed / total if total else 0.0


class Judge(Protocol):
    """What rewards and evaluation need. ``reference`` is the right answer, ``answer`` what the model said, if anything."""

    @property
    def name(self) -> str:
        """The judge's id, for every figure that rests on it."""

    @property
    def counts(self) -> JudgeCounts: ...

    def judge(self, question: str, reference: str, answer: str | None) -> Judgement: ...

    async def ajudge(self, question: str, reference: str, answer: str | None) -> Judgement: ...

    def close(self) -> None: ...


class _Counting:
    """Counts judgements, and ends a run in which too many of them fail. Shared between threads."""

    def __init__(self, failure_limit: float) -> None:
        self._failure_limit = failure_limit
        self._latest: deque[bool] = deque(maxlen=WINDOW)
        self._counts = JudgeCounts()
        self._lock = threading.Lock()

    @property
    def counts(self) -> JudgeCounts:
        with self._lock:
            return self._counts

    def _count(self, judgement: Judgement) -> Judgement:
        """Raises JudgeError when this failure is one too many."""
        with self._lock:
            now = self._counts
            if isinstance(judgement, JudgeFailed):
                self._counts = replace(now, failed=now.failed + 1)
                self._latest.append(True)
                failed, asked = sum(self._latest), len(self._latest)
                if asked >= LEAST and failed > self._failure_limit * asked:
                    raise JudgeError(
                        f"{failed} of the latest {asked} judgements failed, more than the limit of "
                        f"{self._failure_limit:.0%}. {judgement.reason} Repair the judge, or raise failure_limit."
                    )
                return judgement
            unasked = not judgement.cached and not judgement.seconds
            self._counts = replace(
                now,
                right=now.right + judgement.right,
                wrong=now.wrong + (not judgement.right),
                cached=now.cached + judgement.cached,
                unasked=now.unasked + unasked,
            )
            if not unasked and not judgement.cached:
                self._latest.append(False)
            return judgement


class JudgeSettings(ChatSettings):
    """How to reach and use a model as judge: arguments > environment ``VRAG_JUDGE_*`` > these defaults."""

    model_config = SettingsConfigDict(env_prefix="VRAG_JUDGE_")

    max_tokens: int = Field(default=1024, ge=1, description="tokens of one reply")
    read_timeout: float = Field(default=60.0, gt=0, description="seconds without a sign from the server")
    reply_timeout: float = Field(default=120.0, gt=0, description="seconds for one whole reply")
    retries: int = Field(default=3, ge=0, le=10, description="further attempts at a request that was refused")
    attempts: int = Field(default=2, ge=1, le=10, description="questions at most until there is a readable verdict")
    concurrency: int = Field(default=16, ge=1, le=1024, description="requests at the same time")
    cache: Path | None = Field(default=None, description="a folder that keeps verdicts; processes may share it")
    failure_limit: float = Field(
        default=0.2, ge=0, le=1, description="share of failures among the latest judgements that ends the run"
    )


class ModelJudge(_Counting):
    """A model as judge. Safe to share between threads and event loops; close it, or use it as a context manager.

    The same question asked again while it is under way, as the members of a group do, is asked once. All requests live in one event
    loop, in a thread of its own: so each of them can be given up in time, whatever the endpoint sends meanwhile. Raises
    ConfigError when the cache's folder cannot be made.
    """

    def __init__(self, settings: JudgeSettings | None = None, prompt: str | None = None) -> None:
        self.settings = settings or JudgeSettings()
        super().__init__(self.settings.failure_limit)
        self._prompt = prompt or prompts.load("judge")
        self.prompt_version = hashlib.sha256((self._prompt + _REMINDER).encode()).hexdigest()[:12]
        self._cache = VerdictCache(self.settings.cache) if self.settings.cache is not None else None
        self._open = ExitStack()
        self._loop = self._open.enter_context(start_blocking_portal())
        self._chat = AsyncChatModel(self.settings)
        self._gate = asyncio.Semaphore(self.settings.concurrency)
        self._model = self.settings.model
        self._asking: dict[str, Future[Judgement]] = {}
        self._shut = False

    @property
    def name(self) -> str:
        """The model's id; where none was set and the endpoint was not asked yet, its URL."""
        return self._model or self.settings.base_url

    def judge(self, question: str, reference: str, answer: str | None) -> Judgement:
        """Judge one answer, blocking. Raises JudgeError when too many judgements fail."""
        judgement = self._known(reference, answer)
        if judgement is None:
            asked = self._ask_once(question, reference, answer or "")
            try:
                judgement = asked.result()
            except CancelledError:
                judgement = self._closed()
        return self._count(judgement)

    async def ajudge(self, question: str, reference: str, answer: str | None) -> Judgement:
        """As :meth:`judge`, awaitable."""
        judgement = self._known(reference, answer)
        if judgement is None:
            asked = self._ask_once(question, reference, answer or "")
            try:
                # Shielded: who stops waiting must not take the verdict from others that wait for it.
                judgement = await asyncio.shield(asyncio.wrap_future(asked))
            except asyncio.CancelledError:
                if not asked.cancelled():
                    raise
                judgement = self._closed()
        return self._count(judgement)

    def probe(self) -> str:
        """Ask one trivial question and return the model's id. Raises JudgeError when that brings no verdict."""
        judgement = self._loop.call(self._ask, "Which number follows 1?", "2", "It is 2.", False)
        if isinstance(judgement, JudgeFailed):
            raise JudgeError(judgement.reason)
        return judgement.judge

    def close(self) -> None:
        """Close the connections; what still waits for a verdict gets a failure. Doing it again is harmless."""
        if self._shut:
            return
        self._shut = True
        with self._lock:
            running = list(self._asking.values())
        for asked in running:
            asked.cancel()
        self._loop.call(self._chat.close)
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _known(self, reference: str, answer: str | None) -> Judgement | None:
        """What needs no model."""
        if not (reference and reference.strip()):
            return JudgeFailed(self.name, "The question has no reference answer to judge by.")
        if not (answer and answer.strip()):
            return Verdict(0.0, self.name)
        return None

    def _ask_once(self, question: str, reference: str, answer: str) -> Future[Judgement]:
        key = json.dumps([question, reference, answer])
        with self._lock:
            running = self._asking.get(key)
            if running is None:
                running = self._asking[key] = self._loop.start_task_soon(self._ask, question, reference, answer)
                running.add_done_callback(lambda _: self._forget(key))
        return running

    def _forget(self, key: str) -> None:
        self._asking.pop(key, None)

    async def _ask(self, question: str, reference: str, answer: str, keep: bool = True) -> Judgement:
        async with self._gate:
            return await self._asked(question, reference, answer, keep)

    async def _asked(self, question: str, reference: str, answer: str, keep: bool) -> Judgement:
        started = time.monotonic()
        try:
            self._model = self._model or await self._only_model()
            cache = self._cache if keep else None
            key = cache_key(self._model, self.prompt_version, question, reference, answer)
            if cache is not None and (score := cache.get(key)) is not None:
                return Verdict(score, self._model, self.prompt_version, cached=True)
            right = await self._verdict(question, reference, answer)
        except ModelError as error:
            return JudgeFailed(self.name, f"The judge gave no verdict. {error}")
        except Exception as error:  # whatever it was, it says nothing about the answer, and others may wait for this
            log.exception("a judgement ended with an unexpected error")
            return JudgeFailed(self.name, f"The judge gave no verdict ({type(error).__name__}: {error}).")
        if cache is not None:
            cache.put(key, float(right), self._model, self.prompt_version)
        return Verdict(float(right), self._model, self.prompt_version, seconds=max(time.monotonic() - started, 1e-6))

    def _closed(self) -> JudgeFailed:
        return JudgeFailed(self.name, "The judge was closed before it gave a verdict.")

    async def _verdict(self, question: str, reference: str, answer: str) -> bool:
        """Ask, and remind a judge that rambles. Raises ModelError."""
        conversation: list[Message] = [message("user", judge_prompt(self._prompt, question, reference, answer))]
        said = ""
        for _ in range(self.settings.attempts):
            reply = await self._chat.generate(Generate(tuple(conversation), "judge"))
            said = reply.text
            verdict = read_verdict(said)
            if verdict is not None:
                return verdict
            conversation[1:] = [message("assistant", clean(said, 2_000) or "(empty)"), message("user", _REMINDER)]
        raise ModelError(
            f"{self.name} was asked {self.settings.attempts} times and never ended its reply with "
            f"<judge>True</judge> or <judge>False</judge>; the last reply ends with {said[-120:]!r}."
        )

    async def _only_model(self) -> str:
        served = await self._chat.served_models()
        if len(served) != 1:
            raise ModelError(
                f"{self.settings.base_url} serves {len(served)} models; name the judge: model=... or VRAG_JUDGE_MODEL."
            )
        return served[0]


def judge_prompt(template: str, question: str, reference: str, answer: str) -> str:
    """The judge's prompt with the three texts in it, as data: cut, without chat markers, angle brackets escaped."""

    def data(text: str) -> str:
        text = clean(text)
        half = MAX_TEXT_CHARS // 2
        if len(text) > MAX_TEXT_CHARS:
            text = f"{text[:half]}\n[...]\n{text[-half:]}"
        return html.escape(text, quote=False)

    return prompts.fill(template, question=data(question), reference=data(reference), answer=data(answer))


def read_verdict(reply: str) -> bool | None:
    """The verdict of a reply, or None. Strict: one opinion only, as the very last thing, outside of any thought."""
    said = re.split(r"</think>", reply, flags=re.IGNORECASE)[-1].strip()
    if re.search(r"<think>", said, re.IGNORECASE):  # it never came to an end
        return None
    found = list(_VERDICT.finditer(said))
    opinions = {verdict[1].lower() for verdict in found}
    if len(opinions) != 1 or found[-1].end() != len(said):
        return None
    return opinions == {"true"}


# --- the cache


def cache_key(model: str, prompt: str, question: str, reference: str, answer: str) -> str:
    """What a verdict is kept under: everything that it depends on, hashed."""
    return hashlib.sha256(json.dumps([model, prompt, question, reference, answer]).encode()).hexdigest()


class VerdictCache:
    """Verdicts on disk, a file each, put in place by an atomic rename: safe between processes and when one is killed.

    Raises ConfigError when the folder cannot be made. A disk that fills up later costs the cache, not the verdict.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"The judge's cache {self.folder} cannot be made ({error.strerror}).") from error

    def get(self, key: str) -> float | None:
        """The score kept under ``key``; None where there is none, or no readable one."""
        try:
            kept = json.loads(self._path(key).read_bytes())
            score = float(kept["score"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("a verdict in %s cannot be read and is asked for again: %s", self.folder, error)
            return None
        return score if 0 <= score <= 1 else None

    def put(self, key: str, score: float, judge: str, prompt: str) -> None:
        path = self._path(key)
        temporary = None
        try:
            path.parent.mkdir(exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"score": score, "judge": judge, "prompt": prompt}, file)
            os.replace(temporary, path)
        except OSError as error:
            log.warning("a verdict could not be kept in %s: %s", self.folder, error)
            if temporary is not None and os.path.exists(temporary):
                os.unlink(temporary)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


# --- rules


class RuleJudge(_Counting):
    """A rule of :mod:`vrag.matching` as judge, for offline use; it is named ``rule:{rule}`` so that no figure hides it."""

    def __init__(self, rule: str) -> None:
        super().__init__(failure_limit=1.0)
        if rule not in RULE_JUDGES:
            raise ConfigError(f"There is no rule {rule!r} to judge by; there are {', '.join(RULE_JUDGES)}.")
        self._rule: Rule = RULE_JUDGES[rule]
        self.name = f"rule:{rule}"

    def judge(self, question: str, reference: str, answer: str | None) -> Judgement:
        if not (reference and reference.strip()):
            return self._count(JudgeFailed(self.name, "The question has no reference answer to judge by."))
        score = float(self._rule(answer, reference)) if answer and answer.strip() else 0.0
        return self._count(Verdict(score, self.name))

    async def ajudge(self, question: str, reference: str, answer: str | None) -> Judgement:
        return self.judge(question, reference, answer)

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_judge(spec: str, settings: Callable[[], JudgeSettings] = JudgeSettings) -> ModelJudge | RuleJudge:
    """The judge that a command line names: ``model``, or one of the rules. Raises ConfigError for another name.

    ``settings`` is called for ``model`` alone, so that a rule needs no endpoint.
    """
    if spec == "model":
        return ModelJudge(settings())
    if spec not in RULE_JUDGES:
        raise ConfigError(f"There is no judge {spec!r}; there are model, {', '.join(RULE_JUDGES)}.")
    return RuleJudge(spec)


JUDGES = ("model", *RULE_JUDGES)
