"""The rows of JSON, JSON Lines and Parquet files. A row that cannot be used is a reason, never the end of the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vrag.errors import ConfigError
from vrag.messages import well_formed

Row = dict[str, Any]


@dataclass(frozen=True)
class Dropped:
    """A row that is left out: where it stands, the reason it is counted under, and what is particular to it."""

    place: str
    reason: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.place}: dropped, {self.reason}" + (f" ({self.detail})" if self.detail else "")


class Unusable(Exception):
    """Why a row cannot be used: the reason it is counted under, and what is particular to it."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason, self.detail = reason, detail

    def at(self, place: str) -> Dropped:
        return Dropped(place, self.reason, self.detail)


def read_rows(path: Path) -> Iterator[tuple[str, Row | Unusable]]:
    """(place, row) of a ``.json``, ``.jsonl`` or ``.parquet`` file in their order, or (place, why there is no row).

    A ``.json`` file holds a list or ``{"examples": [...]}``. A place is written ``test.jsonl, line 7``. All text of a row
    can be written as UTF-8 again. Raises ConfigError for a file that cannot be read at all.
    """
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        yield from read_lines(path)
    elif suffix == ".parquet":
        yield from _parquet_rows(path)
    else:
        yield from _list_rows(path)


def read_lines(path: Path) -> Iterator[tuple[str, Row | Unusable]]:
    """As :func:`read_rows`, for JSON Lines whatever the file is called."""
    # Each line is decoded by itself, so that a broken one is one row. Only a line feed ends it: U+2028 may stand in a text.
    for number, line in enumerate(_bytes(path).split(b"\n"), 1):
        if line.strip():
            yield _place(path, "line", number), _parsed(line)


def _parsed(line: bytes) -> Row | Unusable:
    try:
        return _mended(json.loads(line.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        return Unusable("not UTF-8", str(error))
    except (ValueError, RecursionError) as error:
        return Unusable("not JSON", str(error))


def _list_rows(path: Path) -> Iterator[tuple[str, Row | Unusable]]:
    try:
        whole = json.loads(_bytes(path).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read as text: {error}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}). One object a line belongs into a .jsonl file.") from None
    rows = whole.get("examples") if isinstance(whole, dict) else whole
    if not isinstance(rows, list):
        raise ConfigError(f'{path}: expected a list of objects, or {{"examples": [...]}}.')
    for number, row in enumerate(rows, 1):
        yield _place(path, "example", number), _mended(row)


def _parquet_rows(path: Path) -> Iterator[tuple[str, Row | Unusable]]:
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
                yield _place(path, "row", number), row
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}.") from None


def _holds_bytes(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_struct(kind):
        return any(_holds_bytes(field.type) for field in kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return _holds_bytes(kind.value_type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _mended(row: Any) -> Row | Unusable:
    """A row as it can be written again: JSON's escapes can smuggle in lone surrogates, which no UTF-8 file can hold."""
    if not isinstance(row, dict):
        return Unusable("not an object")
    try:
        text = json.dumps(row, ensure_ascii=False)
        mended = well_formed(text)
        return row if mended == text else dict(json.loads(mended))
    except (ValueError, RecursionError) as error:
        return Unusable("not JSON", str(error))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}).") from None


def _place(path: Path, kind: str, number: int) -> str:
    return f"{well_formed(path.name)}, {kind} {number}"
