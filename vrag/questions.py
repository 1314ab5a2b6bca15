"""Questions with reference answers and pages, in the published ViDoSeek form (plus a few fields that may be missing)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vrag.errors import ConfigError


class MetaInfo(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    file_name: str | None = None
    reference_page: tuple[int, ...] = ()
    source_type: str | None = None
    query_type: str | None = None


class Evidence(BaseModel):
    model_config = ConfigDict(frozen=True)

    file_name: str
    pages: tuple[int, ...]


class Question(BaseModel):
    """One question. ``reference_answer`` is None where the corpus holds no answer; pages count from 1."""

    model_config = ConfigDict(frozen=True, extra="allow")

    uid: str
    query: str = Field(min_length=1)
    reference_answer: str | None = None
    meta_info: MetaInfo = MetaInfo()
    evidence: tuple[Evidence, ...] = ()
    evidence_mode: Literal["any", "all"] = "any"
    lang: str = ""
    scope: str = "corpus"

    @property
    def pages(self) -> frozenset[tuple[str, int]]:
        """(file name, page) of everything that is listed as evidence."""
        meta = self.meta_info
        listed = self.evidence or (Evidence(file_name=meta.file_name or "", pages=meta.reference_page),)
        return frozenset((one.file_name, page) for one in listed for page in one.pages)


def read_questions(path: Path | str) -> list[Question]:
    """Read ``.jsonl`` (one object a line) or the published ``{"examples": [...]}``.

    Raises ConfigError naming the line, or the example's number, for anything that is wrong, and for a uid given twice.
    """
    path = Path(path)
    questions: list[Question] = []
    seen: dict[str, str] = {}
    for place, row in _rows(path):
        try:
            question = Question.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise ConfigError(f"{path}, {place}: {field}: {first['msg']}.") from None
        if question.uid in seen:
            raise ConfigError(f"{path}, {place}: the uid {question.uid!r} was given before ({seen[question.uid]}).")
        seen[question.uid] = place
        questions.append(question)
    return questions


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The questions {path} cannot be read: {error}.") from None
    if path.suffix.lower() == ".jsonl":
        for number, line in enumerate(text.split("\n"), 1):  # not splitlines: U+2028 may stand in a text
            if line.strip():
                yield f"line {number}", _parsed(path, f"line {number}", line)
        return
    whole = _parsed(path, "the file", text)
    examples = whole.get("examples") if isinstance(whole, dict) else whole
    if not isinstance(examples, list):
        raise ConfigError(f'{path}: expected {{"examples": [...]}} or a list of questions.')
    for number, row in enumerate(examples, 1):
        yield f"example {number}", row


def _parsed(path: Path, place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}, {place}: not JSON ({error}).") from None
