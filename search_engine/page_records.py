"""What a page image remembers of the PDF that it was rendered from: the page, and the text layer in its pixels.

The record lies beside the image (:func:`search_engine.companions.record_path`) and holds only for an image of exactly these
bytes. So a folder of page images has the text of its PDFs without OCR, and a picture that only happens to have such a name
gets none.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from search_engine.companions import record_path
from search_engine.documents import Line
from vrag.geometry import Box

_Corners = tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat]
#: A record is the text of one page; more than this is something else.
MAX_RECORD_BYTES = 16 * 2**20


class PageRecord(BaseModel):
    """``lines`` are text, box and the boxes of the words; ``hidden``: the layer is invisible, a scanner's own OCR.

    ``id``, ``key``, ``path``, ``pdf_sha256`` and ``rendering`` say what was rendered, from where and how.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    image_sha256: str
    image_bytes: int
    document: str
    page: int = Field(ge=1)
    width: int
    height: int
    hidden: bool = False
    lines: tuple[tuple[str, _Corners, tuple[_Corners, ...]], ...] = ()
    id: str
    key: str
    path: str
    pdf_sha256: str
    rendering: str

    @property
    def layer(self) -> tuple[Line, ...]:
        return tuple(Line(text, Box(*box), tuple(Box(*word) for word in words)) for text, box, words in self.lines)


def read_record(path: Path) -> PageRecord | None:
    """The record at ``path``; None where there is none, or one that cannot be used."""
    try:
        if path.stat().st_size > MAX_RECORD_BYTES:
            return None
        return PageRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def record_of(image: Path, data: bytes) -> PageRecord | None:
    """The record of the page image ``image``, whose bytes are ``data``."""
    path = record_path(image)
    record = None if path is None else read_record(path)
    if record is None or record.image_bytes != len(data):
        return None
    return record if record.image_sha256 == hashlib.sha256(data).hexdigest() else None


def stored_lines(lines: tuple[Line, ...]) -> tuple[tuple[str, _Corners, tuple[_Corners, ...]], ...]:
    """Lines as a record holds them."""
    return tuple((line.text, _corners(line.box), tuple(map(_corners, line.words))) for line in lines)


def _corners(box: Box) -> _Corners:
    x1, y1, x2, y2 = (round(value, 1) for value in box.as_list())
    return x1, y1, x2, y2
