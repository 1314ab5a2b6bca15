"""Question files of public datasets, read as one kind of :class:`Example`.

    vidoseek    {"uid", "query", "reference_answer", "meta_info": {"file_name", "reference_page", "source_type", "query_type"}}
                one object a line, or {"examples": [...]}: ViDoSeek, and the SlideVQA and MMLongBench-Doc files of its release
    slidevqa    {"qa_id", "question", "answer", "deck_name", "evidence_pages", "reasoning_type", "answer_type"}: the authors' files
    mmlongdoc   {"doc_id", "question", "answer", "evidence_pages": "[5, 7]", "evidence_sources": "['Chart']", "doc_type"}
    plain       {"question" or "query", "answer" or "reference_answer", "file_name", "reference_page"}, and what else there is

A row that cannot be used is a :class:`Dropped` that names the line and the reason; it never stops or shifts the others.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vrag.actions import clean
from vrag.errors import ConfigError
from vrag.rewards import relevant_ids

Row = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """A question with what rewards need. ``reference_page`` counts from 1; ``source`` is the row as it was."""

    id: str
    question: str
    answer: str
    file_name: str
    reference_page: tuple[int, ...]
    relevant_ids: tuple[str, ...]
    """Ids of the reference pages, those of further files included."""
    content_type: str
    reason_type: str
    split: str
    data_source: str
    place: str
    """Where it stands: ``test.jsonl, line 7``."""
    source: Row = field(repr=False)


@dataclass(frozen=True)
class Dropped:
    """A row that is left out: where it stands, the reason it is counted under, and what is particular to it."""

    place: str
    reason: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.place}: dropped, {self.reason}" + (f" ({self.detail})" if self.detail else "")


class _Unusable(Exception):
    """Why a row cannot be used: the reason, and what is particular to it."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def read_examples(
    path: Path, data_source: str = "", split: str = "", form: str = "auto", default_split: str = ""
) -> Iterator[Example | Dropped]:
    """The rows of a ``.json``, ``.jsonl`` or ``.parquet`` file in their order.

    ``data_source`` is by default the file's form or, for ``plain``, its stem. The split is the row's own ``split``, else
    ``split``, else what the file's name says (``train``, ``dev``, ``validation``, ``test``), else ``default_split``.
    Raises ConfigError for a file that cannot be read, for an unknown form, and where no split is known.
    """
    if form not in ("auto", *_READERS):
        raise ConfigError(f"There is no format {form!r}; there are {', '.join(_READERS)}, and auto.")
    named = split or _split_of(path.stem) or default_split
    for place, row in _rows(path):
        where = f"{path.name}, {place}"
        if isinstance(row, _Unusable):
            yield Dropped(where, row.reason, row.detail)
            continue
        try:
            yield _example(row, where, form, data_source, named, path)
        except _Unusable as error:
            yield Dropped(where, error.reason, error.detail)


def _example(row: Any, where: str, form: str, data_source: str, split: str, path: Path) -> Example:
    if not isinstance(row, dict):
        raise _Unusable("not an object")
    form = _form_of(row) if form == "auto" else form
    fields = _READERS[form](row)
    question = clean(_text(fields.question))
    if not question:
        raise _Unusable("no question")
    answer = clean(_text(fields.answer))
    if not answer:
        raise _Unusable("no reference answer")
    pages = _pages(fields.pages)
    split = str(row.get("split") or "").strip() or split
    if not split:
        raise ConfigError(f"{where}: neither the row nor the file's name says which split it is; name it.")
    file_name = _text(fields.file_name)
    if not data_source:
        data_source = {"slidevqa": f"slidevqa_{split}", "plain": path.stem}.get(form, form)
    reason, content = _types(data_source, fields)
    ids = set(relevant_ids(file_name, pages)) | _evidence_ids(row)
    return Example(
        id=_text(fields.id) or f"{path.stem}-{where.rsplit(' ', 1)[-1]}",
        question=question,
        answer=answer,
        file_name=file_name,
        reference_page=pages,
        relevant_ids=tuple(sorted(ids)),
        content_type=content,
        reason_type=reason,
        split=split,
        data_source=data_source,
        place=where,
        source=row,
    )


# --- files


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, row), or (place, what is wrong) for a line that is no JSON."""
    if path.suffix.lower() == ".parquet":
        yield from _parquet_rows(path)
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}.") from None
    if path.suffix.lower() == ".jsonl":
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    yield f"line {number}", json.loads(line)
                except (ValueError, RecursionError) as error:
                    yield f"line {number}", _Unusable("not JSON", str(error))
        return
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}). One object a line belongs into a .jsonl file.") from None
    rows = whole.get("examples") if isinstance(whole, dict) else whole
    if not isinstance(rows, list):
        raise ConfigError(f'{path}: expected {{"examples": [...]}} or a list of questions.')
    for number, row in enumerate(rows, 1):
        yield f"example {number}", row


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        # Datasets of slides carry all their pictures in every row.
        names = [field.name for field in file.schema_arrow if not _holds_bytes(field.type)]
        number = 0
        for batch in file.iter_batches(columns=names):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}.") from None


def _holds_bytes(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_struct(kind):
        return any(_holds_bytes(field.type) for field in kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return _holds_bytes(kind.value_type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


# --- forms


@dataclass(frozen=True)
class _Fields:
    """The parts of a row, as they are."""

    id: Any
    question: Any
    answer: Any
    file_name: Any = None
    pages: Any = None
    content: Any = None
    reason: Any = None


def _form_of(row: Row) -> str:
    if isinstance(row.get("meta_info"), dict) or "reference_answer" in row:
        return "vidoseek"
    if "deck_name" in row:
        return "slidevqa"
    return "mmlongdoc" if "doc_id" in row and "evidence_pages" in row else "plain"


def _vidoseek(row: Row) -> _Fields:
    meta = row.get("meta_info") or {}
    if not isinstance(meta, dict):
        raise _Unusable("meta_info is not an object")
    return _Fields(
        row.get("uid"),
        row.get("query"),
        row.get("reference_answer"),
        meta.get("file_name"),
        meta.get("reference_page"),
        meta.get("source_type"),
        meta.get("query_type") or meta.get("doc_type"),
    )


def _slidevqa(row: Row) -> _Fields:
    return _Fields(
        row.get("qa_id"),
        row.get("question"),
        row.get("answer"),
        row.get("deck_name"),
        row.get("evidence_pages"),
        row.get("answer_type"),
        row.get("reasoning_type"),
    )


def _mmlongdoc(row: Row) -> _Fields:
    return _Fields(
        row.get("uid") or row.get("qa_id"),
        row.get("question"),
        row.get("answer"),
        row.get("doc_id"),
        row.get("evidence_pages"),
        row.get("evidence_sources"),
        row.get("doc_type"),
    )


def _plain(row: Row) -> _Fields:
    def first(*names: str) -> Any:
        return next((row[name] for name in names if row.get(name) not in (None, "", [])), None)

    return _Fields(
        first("id", "uid", "qid", "qa_id", "question_id"),
        first("question", "query"),
        first("answer", "reference_answer", "ground_truth", "golden_answers", "answers"),
        first("file_name", "document", "doc_id"),
        first("reference_page", "reference_pages", "evidence_pages", "pages", "page"),
        first("content_type", "source_type"),
        first("reason_type", "query_type", "reasoning_type"),
    )


_READERS: dict[str, Callable[[Row], _Fields]] = {
    "vidoseek": _vidoseek,
    "slidevqa": _slidevqa,
    "mmlongdoc": _mmlongdoc,
    "plain": _plain,
}

FORMATS = ("auto", *_READERS)


# --- values


def _text(value: Any) -> str:
    """A value as text: numbers as written, several answers with semicolons between."""
    if value is None or isinstance(value, bool | dict):
        return ""
    if isinstance(value, list | tuple):
        return "; ".join(filter(None, map(_text, value)))
    return str(value).strip()


def _list(value: Any) -> list[Any]:
    """A list that may have been written as text, as MMLongBench-Doc does: ``"[5, 7]"``, ``"['Chart']"``."""
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise _Unusable("not a list", repr(value[:60])) from None
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _pages(value: Any) -> tuple[int, ...]:
    pages = []
    for page in _list(value):
        try:
            number = int(page)
        except (ValueError, TypeError, OverflowError):
            number = 0
        if isinstance(page, bool) or number < 1 or number != float(page):
            raise _Unusable("not a page number, which count from 1", f"{page!r:.40}")
        pages.append(number)
    return tuple(dict.fromkeys(pages))


def _evidence_ids(row: Row) -> set[str]:
    """The pages of further files, where a question names several: ``evidence: [{"file_name", "pages"}]``."""
    ids: set[str] = set()
    evidence = row.get("evidence")
    for one in evidence if isinstance(evidence, list) else ():
        if isinstance(one, dict) and isinstance(one.get("file_name"), str):
            ids |= relevant_ids(one["file_name"], _pages(one.get("pages")))
    return ids


def _types(data_source: str, fields: _Fields) -> tuple[str, str]:
    """(reason type, content type) as the published tables have them."""
    reason, content = _text(fields.reason), _text(fields.content)
    if data_source.startswith("slidevqa"):
        # The refined release puts both into one: "Multi-Hop_Non-Span".
        for text in (reason, content):
            reason = next((hop for hop in ("Multi-Hop", "Single-Hop") if hop.lower() in text.lower()), reason)
            content = next((s for s in ("Non-Span", "Multi-Span", "Single-Span") if s.lower() in text.lower()), content)
    elif data_source == "mmlongdoc":
        content = "####".join(map(_text, _list(fields.content)))
    return reason, content


def _split_of(stem: str) -> str:
    words = stem.lower().replace("-", "_").replace(".", "_").split("_")
    return next((word for word in words if word in ("train", "validation", "valid", "val", "dev", "test")), "")
