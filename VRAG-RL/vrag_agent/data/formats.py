"""Question files of public datasets, read as one kind of :class:`Example`.

    vidoseek    {"uid", "query", "reference_answer", "meta_info": {"file_name", "reference_page", "source_type", "query_type"}}
                one object a line, or {"examples": [...]}: ViDoSeek, and the SlideVQA and MMLongBench-Doc files of its release
    slidevqa    {"qa_id", "question", "answer", "deck_name", "evidence_pages", "reasoning_type", "answer_type"}: the authors' files
    mmlongdoc   {"doc_id", "question", "answer", "evidence_pages": "[5, 7]", "evidence_sources": "['Chart']", "doc_type"}
    plain       {"question" or "query", "answer" or "reference_answer", "file_name", "reference_page"}, and what else there is

A row that cannot be used is a Dropped that names the line and the reason; it never stops or shifts the others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vrag.actions import clean
from vrag.errors import ConfigError
from vrag.messages import well_formed
from vrag.rewards import relevant_ids
from vrag_agent.data.rows import Dropped, Row, Unusable, read_rows

_SPLIT = re.compile(r"[A-Za-z0-9_-]{1,40}")
_SPLIT_FORM = "letters, digits, _ and -, at most 40 of them"


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


def read_examples(
    path: Path, data_source: str = "", split: str = "", form: str = "auto", default_split: str = ""
) -> Iterator[Example | Dropped]:
    """The rows of a ``.json``, ``.jsonl`` or ``.parquet`` file in their order.

    ``data_source`` is by default the file's form or, for ``plain``, its stem. The split is the row's own ``split``, else
    ``split``, else what the file's name says (``train``, ``dev``, ``validation``, ``test``), else ``default_split``.
    Raises ConfigError for a file that cannot be read, for an unknown form, and where not one row has a split.
    """
    if form not in FORMATS:
        raise ConfigError(f"There is no format {form!r}; there are {', '.join(_READERS)}, and auto.")
    if split and not is_split(split):
        raise ConfigError(f"{split!r} cannot be a split: it is written with {_SPLIT_FORM}.")
    named = split or _split_of(path.stem) or default_split
    rows = list(read_rows(path))
    if not named and rows and not any(isinstance(row, dict) and row.get("split") for _, row in rows):
        raise ConfigError(f"{path}: neither a row nor the file's name says which split it is; name it.")
    stem = well_formed(path.stem)
    for place, row in rows:
        if isinstance(row, Unusable):
            yield row.at(place)
            continue
        try:
            yield _example(row, place, form, data_source, named, stem)
        except Unusable as error:
            yield error.at(place)
        except RecursionError:
            yield Dropped(place, "nested too deeply")


def is_split(text: str) -> bool:
    """Whether ``text`` can be the name of a split. It becomes a part of a file's name, and rows are not to be trusted."""
    return _SPLIT.fullmatch(text) is not None


def _example(row: Row, place: str, form: str, data_source: str, split: str, stem: str) -> Example:
    form = _form_of(row) if form == "auto" else form
    fields = _READERS[form](row)
    question = clean(_text(fields.question))
    if not question:
        raise Unusable("no question")
    answer = clean(_answer(fields.answer))
    if not answer:
        raise Unusable("no reference answer")
    pages = _pages(fields.pages)
    split = _split(row.get("split"), split)
    file_name = _file_name(fields.file_name)
    data_source = data_source or {"slidevqa": f"slidevqa_{split}", "plain": stem}.get(form, form)
    reason, content = _types(form, data_source, fields)
    ids = set(relevant_ids(file_name, pages)) | _evidence_ids(row)
    return Example(
        id=_text(fields.id) or f"{stem}-{place.rsplit(' ', 1)[-1]}",
        question=question,
        answer=answer,
        file_name=file_name,
        reference_page=pages,
        relevant_ids=tuple(sorted(ids)),
        content_type=content,
        reason_type=reason,
        split=split,
        data_source=data_source,
        place=place,
        source=row,
    )


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


#: What a plain row may call its question, its file and its pages.
_QUESTION = ("question", "query")
_FILE = ("file_name", "document", "doc_id")
_PAGES = ("reference_page", "reference_pages", "evidence_pages", "pages", "page")


def _form_of(row: Row) -> str:
    if isinstance(row.get("meta_info"), dict):
        return "vidoseek"
    if "deck_name" in row:
        return "slidevqa"
    if "doc_id" in row and "evidence_pages" in row:
        return "mmlongdoc"
    # ViDoSeek keeps file and pages in meta_info; without it, only a row that has them nowhere else is of its form.
    plain = {"question", *_FILE, *_PAGES} & row.keys()
    return "vidoseek" if "reference_answer" in row and not plain else "plain"


def _vidoseek(row: Row) -> _Fields:
    meta = row.get("meta_info") or {}
    if not isinstance(meta, dict):
        raise Unusable("meta_info is not an object")
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
        first(*_QUESTION),
        first("answer", "reference_answer", "ground_truth", "golden_answers", "answers"),
        first(*_FILE),
        first(*_PAGES),
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
    return well_formed(str(value)).strip()


def _answer(value: Any) -> str:
    """An answer as text. A truth value is one, as written in Python: whether it stands for "yes" nobody knows."""
    values = value if isinstance(value, list | tuple) else [value]
    return _text([str(one) if isinstance(one, bool) else one for one in values])


def _file_name(value: Any) -> str:
    """The one file that the pages are of. Which pages are of which file, a list of files does not say."""
    if isinstance(value, list | tuple):
        if len(value) > 1:
            raise Unusable("several files", 'name one; others go into "evidence": [{"file_name": ..., "pages": [...]}]')
        value = value[0] if value else None
    return _text(value)


def _split(value: Any, named: str) -> str:
    """The row's own split, else ``named``."""
    own = value.strip() if isinstance(value, str) else value
    if own is None or own == "":
        own = named
    if own == "":
        raise Unusable("no split", "other rows of the file have one")
    if not isinstance(own, str) or not is_split(own):
        raise Unusable("not a split", f"{own!r:.60}; it is written with {_SPLIT_FORM}")
    return own


def _list(value: Any) -> list[Any]:
    """A list that may have been written as text, as MMLongBench-Doc does: ``"[5, 7]"``, ``"['Chart']"``."""
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise Unusable("not a list", repr(value[:60])) from None
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _pages(value: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(_page, _list(value))))


def _page(value: Any) -> int:
    try:
        number = int(value)
        if not isinstance(value, bool) and number == float(value) and 0 < number < 2**31:
            return number
    except (ValueError, TypeError, OverflowError):
        pass
    raise Unusable("not a page number, which count from 1", f"{value!r:.40}")


def _evidence_ids(row: Row) -> set[str]:
    """The pages of further files, where a question names several: ``evidence: [{"file_name", "pages"}]``."""
    ids: set[str] = set()
    evidence = row.get("evidence")
    for one in evidence if isinstance(evidence, list) else ():
        if isinstance(one, dict) and isinstance(one.get("file_name"), str):
            ids |= relevant_ids(one["file_name"], _pages(one.get("pages")))
    return ids


def _types(form: str, data_source: str, fields: _Fields) -> tuple[str, str]:
    """(reason type, content type) as the published tables have them."""
    reason, content = _text(fields.reason), _text(fields.content)
    if form == "slidevqa" or data_source.startswith("slidevqa"):
        # The refined release puts both into one: "Multi-Hop_Non-Span".
        for text in (reason, content):
            reason = next((hop for hop in ("Multi-Hop", "Single-Hop") if hop.lower() in text.lower()), reason)
            content = next((s for s in ("Non-Span", "Multi-Span", "Single-Span") if s.lower() in text.lower()), content)
    elif "mmlongdoc" in (form, data_source):
        content = "####".join(map(_text, _list(fields.content)))
    return reason, content


def _split_of(stem: str) -> str:
    words = stem.lower().replace("-", "_").replace(".", "_").split("_")
    return next((word for word in words if word in ("train", "validation", "valid", "val", "dev", "test")), "")
