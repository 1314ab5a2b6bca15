"""Setting type: fonts, inline markup and line breaking for mixed Latin and Chinese text.

All fonts come with PyMuPDF, so the result does not depend on what a machine has installed. PyMuPDF has no bold
Chinese face; bold Chinese is drawn with a thin outline.

Markup inside a string: `**bold**`, and `[[name|span]]` to record where `span` is drawn under the mark `name`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import pymupdf

FACES = {
    "sans": "helv",
    "sans-b": "hebo",
    "sans-i": "heit",
    "serif": "tiro",
    "serif-b": "tibo",
    "serif-i": "tiit",
    "cjk": "cjk",
}
NOT_AT_START = set("，。、；：！？）》」』”’％%.,;:!?)]}·…")
NOT_AT_END = set("（《「『“‘([{")


@cache
def font(face: str) -> pymupdf.Font:
    return pymupdf.Font(FACES[face])


@cache
def advance(face: str, char: str) -> float:
    """Width of a character at size 1."""
    return float(font(face).glyph_advance(ord(char)))


def is_cjk(char: str) -> bool:
    return char >= "\u2e80"


@cache
def face_of(char: str, family: str, style: str) -> str:
    """The face that can draw `char`: the Latin family where it has the glyph, else the Chinese font."""
    latin = f"{family}{style}"
    for face in ("cjk", latin) if is_cjk(char) else (latin, "cjk"):
        if font(face).has_glyph(ord(char)):
            return face
    raise ValueError(f"no font has the character {char!r} (U+{ord(char):04X})")


@dataclass(frozen=True)
class Glyph:
    char: str
    face: str
    bold: bool
    mark: str | None

    def width(self, size: float) -> float:
        return advance(self.face, self.char) * size


@dataclass(frozen=True)
class Run:
    """Neighbouring glyphs that one drawing operation can set."""

    text: str
    face: str
    bold: bool
    mark: str | None
    x: float
    width: float


def plain(text: str) -> str:
    """`text` without its markup."""
    return "".join(char for char, _, _ in _parse(text))


def _parse(text: str) -> Iterator[tuple[str, bool, str | None]]:
    bold, mark, i = False, None, 0
    while i < len(text):
        if text.startswith("**", i):
            bold, i = not bold, i + 2
        elif text.startswith("[[", i):
            end = text.index("|", i)
            mark, i = text[i + 2 : end], end + 1
        elif mark is not None and text.startswith("]]", i):
            mark, i = None, i + 2
        else:
            yield text[i], bold, mark
            i += 1


def glyphs(text: str, family: str = "sans", bold: bool = False, italic: bool = False) -> list[Glyph]:
    out = []
    for char, inline_bold, mark in _parse(text):
        heavy = bold or inline_bold
        style = "-b" if heavy else "-i" if italic else ""
        out.append(Glyph(char, face_of(" " if char == "\n" else char, family, style), heavy, mark))
    return out


def measure(line: Sequence[Glyph], size: float) -> float:
    return sum(g.width(size) for g in line)


def runs(line: Sequence[Glyph], size: float) -> list[Run]:
    out, x = [], 0.0
    for (face, bold, mark), group in groupby(line, key=lambda g: (g.face, g.bold, g.mark)):
        members = list(group)
        width = measure(members, size)
        out.append(Run("".join(g.char for g in members), face, bold, mark, x, width))
        x += width
    return out


def _can_break(before: Glyph, after: Glyph) -> bool:
    if after.char in NOT_AT_START or before.char in NOT_AT_END or after.char == " ":
        return False
    return before.char == " " or is_cjk(before.char) or is_cjk(after.char)


def break_lines(text: Sequence[Glyph], size: float, width: float) -> list[list[Glyph]]:
    """Greedy line breaking at spaces and between Chinese characters, with the usual rules for punctuation."""
    lines: list[list[Glyph]] = []
    line: list[Glyph] = []
    used, last_break = 0.0, 0
    for glyph in text:
        if glyph.char == "\n":
            lines.append(line)
            line, used, last_break = [], 0.0, 0
            continue
        if line and _can_break(line[-1], glyph):
            last_break = len(line)
        line.append(glyph)
        used += glyph.width(size)
        if used > width and glyph.char != " " and last_break:
            lines.append(line[:last_break])
            line = line[last_break:]
            used, last_break = measure(line, size), 0
    if line:
        lines.append(line)
    return [_stripped(each) for each in lines]


def _stripped(line: list[Glyph]) -> list[Glyph]:
    end = len(line)
    while end and line[end - 1].char == " ":
        end -= 1
    return line[:end]
