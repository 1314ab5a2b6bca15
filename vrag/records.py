"""The trace of a run on disk: JSON Lines, one entry per line, readable up to the moment at which the run was killed.

    {"type": "run", ...}         the question, the settings (never a key), versions, the start: always the first line
    {"type": "generate", ...}    a request to the model and its reply; pictures by reference (item, box, size)
    {"type": "retrieve", ...}    a search: the query, ids and scores, seconds
    {"type": "fetch", ...}       an image, or the frames of a clip, that were loaded: the id, the size, the seconds
    {"type": "event", ...}       what a watcher saw (without the streamed pieces)
    {"type": "end", ...}         the outcome; missing when the run was killed or closed

Consecutive requests of an episode share most of their messages, so an entry holds only what follows the first ``keep``
messages of the request before it; :meth:`Record.contexts` puts them together again. ``at`` counts seconds from the
start.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from vrag import __version__
from vrag.episode import Fetch, FetchFrames, Frame, Generate, Generation, Outcome, Reply, Request, Retrieve
from vrag.errors import RecordError
from vrag.events import AnyEvent, Citation, Delta, EndReason, Event, ViewRef
from vrag.items import Hit
from vrag.messages import Message, Role, well_formed

log = logging.getLogger(__name__)

#: Raised when the lines change in a way that an older reader would misread.
FORMAT = 1

_DATA_URL = re.compile(r"data:[\w.+/;=-]{0,100};base64,[A-Za-z0-9+/=_-]*")
#: How much of the end of a file is looked at for its last entry.
_TAIL_BYTES = 2**20


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True)


class RunHeader(_Entry):
    type: Literal["run"] = "run"
    format: int = FORMAT
    id: str
    agent: str
    question: str
    settings: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    started: datetime


class RecordedMessage(_Entry):
    """A message with its pictures by reference."""

    role: Role
    content: tuple[str | ViewRef, ...]
    tool_calls: tuple[dict[str, Any], ...] = ()
    tool_call_id: str | None = None


class RecordedReply(_Entry):
    text: str
    reasoning: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Timed(_Entry):
    at: float
    seconds: float = 0.0
    step: int = 0
    error: str = Field(default="", description="class and message of what went wrong, where there was no reply")


class GenerateEntry(_Timed):
    type: Literal["generate"] = "generate"
    purpose: str
    keep: int = Field(description="how many messages of the request before it this one begins with")
    messages: tuple[RecordedMessage, ...]
    tools: tuple[dict[str, Any], ...] = ()
    reply: RecordedReply | None = None


class RetrieveEntry(_Timed):
    type: Literal["retrieve"] = "retrieve"
    query: str
    top_k: int
    hits: tuple[tuple[str, float], ...] = Field(default=(), description="(item id, score), best first")


class FetchEntry(_Timed):
    type: Literal["fetch"] = "fetch"
    item_id: str
    bytes: int = 0
    frames: tuple[float, ...] = Field(default=(), description="for a clip: when its frames are shown, in seconds")


class EventEntry(_Entry):
    type: Literal["event"] = "event"
    at: float
    event: AnyEvent


class EndEntry(_Entry):
    type: Literal["end"] = "end"
    at: float
    answer: str | None
    reason: EndReason
    steps: int
    citations: tuple[Citation, ...] = ()
    shown: tuple[str, ...] = ()


Entry = GenerateEntry | RetrieveEntry | FetchEntry | EventEntry | EndEntry
_ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="type")])


class RecordWriter:
    """Writes one run, a whole line at a time.

    Opening raises RecordError when the folder cannot be written to. A disk that fills up later costs the record, not
    the answer: it is logged, and the lines so far stay.
    """

    def __init__(
        self,
        directory: Path | str,
        question: str,
        *,
        agent: str = "vrag",
        settings: Mapping[str, Any] | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        now = datetime.now(timezone.utc)
        self.id = f"{now:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
        self.path = Path(directory).expanduser() / f"{self.id}.jsonl"
        self._secrets = [secret for secret in secrets if len(secret) >= 4]
        self._started = time.monotonic()
        self._messages: tuple[Message, ...] = ()
        self._file: int | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise RecordError(
                f"No run can be recorded in {self.path.parent} ({error.strerror}). Choose another record_dir."
            ) from error
        self._write(
            RunHeader(
                id=self.id,
                agent=agent,
                question=well_formed(question),
                settings=dict(settings or {}),
                versions=_versions(),
                started=now,
            )
        )

    def event(self, event: Event) -> None:
        """Keep an event; streamed pieces are left out (the reply has them)."""
        if not isinstance(event, Delta):
            self._write(EventEntry.model_construct(type="event", at=self._now(), event=event))

    def request(
        self, request: Request, reply: Reply, *, step: int = 0, seconds: float = 0.0, error: BaseException | None = None
    ) -> None:
        """Keep a request with its reply, or with the error that took its place."""
        timing: dict[str, Any] = {"at": self._now(), "seconds": round(seconds, 4), "step": step}
        if error is not None:
            timing["error"] = well_formed(f"{type(error).__name__}: {error}")
        if isinstance(request, Generate):
            self._write(self._generate(request, reply if isinstance(reply, Generation) else None, timing))
        elif isinstance(request, Retrieve):
            found = reply if isinstance(reply, list) else []
            hits = tuple((hit.item.id, hit.score) for hit in found if isinstance(hit, Hit))
            self._write(RetrieveEntry(query=request.query, top_k=request.top_k, hits=hits, **timing))
        elif isinstance(request, Fetch):
            size = len(reply) if isinstance(reply, bytes) else 0
            self._write(FetchEntry(item_id=request.item_id, bytes=size, **timing))
        elif isinstance(request, FetchFrames):
            frames = [frame for frame in reply if isinstance(frame, Frame)] if isinstance(reply, list) else []
            size = sum(len(frame.image) for frame in frames)
            times = tuple(frame.seconds for frame in frames)
            self._write(FetchEntry(item_id=request.item_id, bytes=size, frames=times, **timing))

    def end(self, outcome: Outcome) -> None:
        """Keep the outcome and close the file for good."""
        self._write(
            EndEntry(
                at=self._now(),
                answer=outcome.answer,
                reason=outcome.reason,
                steps=outcome.steps,
                citations=outcome.citations,
                shown=outcome.shown,
            )
        )
        if self._file is not None:
            try:
                os.fsync(self._file)
            except OSError as error:
                log.warning("the record %s may be lost with the machine: %s", self.path, error)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _generate(self, request: Generate, reply: Generation | None, timing: dict[str, Any]) -> GenerateEntry:
        keep = 0
        for before, now in zip(self._messages, request.messages, strict=False):
            if before != now:
                break
            keep += 1
        self._messages = request.messages
        recorded = None
        if reply is not None:
            recorded = RecordedReply(
                text=reply.text,
                reasoning=reply.reasoning,
                tool_calls=reply.tool_calls,
                finish_reason=reply.finish_reason,
                prompt_tokens=reply.prompt_tokens,
                completion_tokens=reply.completion_tokens,
            )
        return GenerateEntry(
            purpose=request.purpose,
            keep=keep,
            messages=tuple(by_reference(message) for message in request.messages[keep:]),
            tools=request.tools,
            reply=recorded,
            **timing,
        )

    def _now(self) -> float:
        return round(time.monotonic() - self._started, 4)

    def _write(self, entry: _Entry) -> None:
        if self._file is None:
            return
        value = _clean(entry.model_dump(mode="json"), self._secrets)
        # What UTF-8 cannot carry becomes a JSON escape.
        line = (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            log.warning("the record %s ends here: %s", self.path, error)
            self.close()


@dataclass(frozen=True)
class Record:
    """A run as read from disk. ``cut``: the last line was incomplete and left out."""

    path: Path
    header: RunHeader
    entries: tuple[Entry, ...]
    cut: bool = False

    @property
    def question(self) -> str:
        return self.header.question

    @property
    def events(self) -> list[Event]:
        return [entry.event for entry in self.entries if isinstance(entry, EventEntry)]

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended; None when it was killed or closed before."""
        for entry in reversed(self.entries):
            if isinstance(entry, EndEntry):
                return Outcome(entry.answer, entry.reason, entry.steps, entry.citations, entry.shown)
        return None

    def contexts(self) -> Iterator[tuple[GenerateEntry, tuple[RecordedMessage, ...]]]:
        """Every request to the model with all its messages."""
        messages: tuple[RecordedMessage, ...] = ()
        for entry in self.entries:
            if isinstance(entry, GenerateEntry):
                messages = messages[: entry.keep] + entry.messages
                yield entry, messages


@dataclass(frozen=True)
class RunSummary:
    """A line of the list of runs. ``reason`` is None for a run that has not ended (it runs, or was killed)."""

    path: Path
    id: str
    agent: str
    question: str
    started: datetime
    model: str
    reason: EndReason | None
    answer: str | None
    steps: int
    seconds: float


def read_record(path: Path | str) -> Record:
    """Read a run. An incomplete last line is left out; anything else that is wrong is a RecordError naming the line."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"The record {path} cannot be read ({error.strerror}).") from error
    lines = data.split(b"\n")
    rest = lines.pop()  # empty when the last line is complete
    header = _header(path, lines[0] if lines else b"")
    entries = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            entries.append(_ENTRY.validate_python(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{path}, line {number}: not an entry of a run record ({_brief(error)}).") from error
    return Record(path, header, tuple(entries), cut=bool(rest.strip()))


def list_runs(directory: Path | str) -> list[RunSummary]:
    """The runs recorded in a folder, newest first; only the ends of the files are read. Other files are left out."""
    found = [summary for path in Path(directory).glob("*.jsonl") if (summary := _summary(path)) is not None]
    return sorted(found, key=lambda run: (run.started, run.id), reverse=True)


def _summary(path: Path) -> RunSummary | None:
    try:
        with path.open("rb") as file:
            header = _header(path, file.readline(_TAIL_BYTES).rstrip(b"\n"))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            last = file.read().rstrip(b"\n").rsplit(b"\n", 1)[-1]
    except (RecordError, OSError) as error:
        log.warning("left out of the list of runs: %s", error)
        return None
    try:
        entry = _ENTRY.validate_python(json.loads(last))
    except (ValueError, RecursionError):
        entry = None
    end = entry if isinstance(entry, EndEntry) else None
    return RunSummary(
        path=path,
        id=header.id,
        agent=header.agent,
        question=header.question,
        started=header.started,
        model=str(header.settings.get("model") or ""),
        reason=end.reason if end else None,
        answer=end.answer if end else None,
        steps=end.steps if end else 0,
        seconds=end.at if end else 0.0,
    )


def _header(path: Path, line: bytes) -> RunHeader:
    try:
        value = json.loads(line)
        written = value.get("format") if isinstance(value, dict) and value.get("type") == "run" else None
    except (ValueError, RecursionError):
        written = None
    if not isinstance(written, int):
        raise RecordError(f"{path} is not a run record: its first line is no run header.")
    if written > FORMAT:
        raise RecordError(f"{path} was written by a newer version (format {written}, this one reads up to {FORMAT}).")
    try:
        return RunHeader.model_validate(value)
    except ValidationError as error:
        raise RecordError(f"{path}, line 1: not a run header ({_brief(error)}).") from error


def _brief(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {error}"


def by_reference(message: Message) -> RecordedMessage:
    """The message without the bytes of its pictures."""
    return RecordedMessage(
        role=message.role,
        content=tuple(part if isinstance(part, str) else part.ref() for part in message.content),
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
    )


def _clean(value: Any, secrets: Sequence[str]) -> Any:
    """The value without keys and embedded files, wherever in its strings they stand."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "***")
        return _DATA_URL.sub("data:(left out)", value) if ";base64," in value else value
    if isinstance(value, list):
        return [_clean(part, secrets) for part in value]
    if isinstance(value, dict):
        return {name: _clean(part, secrets) for name, part in value.items()}
    return value


def _versions() -> dict[str, str]:
    return {
        "vrag": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("openai", "pillow")},
    }
