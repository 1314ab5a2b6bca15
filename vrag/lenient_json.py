"""JSON as models write it: read by the book where that works, else as it was meant.

Taken for granted: trailing and missing commas, single or curly quotes, bare keys and words, ``True``/``None``, comments,
line breaks and unescaped quotes inside of strings, brackets that are not closed because the reply was cut off.

The time is linear in the length of the text, and nesting is bounded.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 32
_MAX_NUMBER_CHARS = 64

_STRICT = json.JSONDecoder(strict=False)
_SKIP = re.compile(r"(?:\s+|//[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_SPACE = re.compile(r"\s*")
_COMMENT = re.compile(r"(?<=\s)(?://|/\*)")
_BARE = re.compile(r"[^,:{}\[\]\n\"]*")
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "„": "“", "`": "`"}
#: What follows the comma after a string: another value or key.
_NEXT = re.compile(r"""\s*(?:["'“‘„`{\[}\]]|\Z|-?\d|(?:true|false|null|None|True|False)\b|[A-Za-z_]\w*\s*:)""")
_WORDS = {"true": True, "false": False, "null": None, "none": None, "undefined": None, "nan": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\", "/": "/", "\n": ""}
_HEX = re.compile(r"[0-9a-fA-F]{4}")


def decode(text: str, start: int = 0) -> tuple[Any, int]:
    """The value that begins at or after ``start`` and where it ends; what follows it is ignored.

    Raises ValueError where no value can be made out, or it is nested deeper than ``MAX_DEPTH``.
    """
    start = _skip(text, start)
    if text[start : start + 1] in ("{", "[", '"'):
        try:
            value, end = _STRICT.raw_decode(text, start)
        except (ValueError, RecursionError):
            pass
        else:
            return _bounded(value), end
    return _value(text, start, MAX_DEPTH)


def _bounded(value: Any) -> Any:
    """The value, if it is not nested too deep: whoever walks it may do so by recursion."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise ValueError("nested too deep")
        level = [
            part
            for whole in level
            if isinstance(whole, dict | list)
            for part in (whole.values() if isinstance(whole, dict) else whole)
        ]
    return value


def _skip(text: str, at: int) -> int:
    found = _SKIP.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth < 0:
        raise ValueError("nested too deep")
    at = _skip(text, at)
    if at >= len(text):
        raise ValueError("no value")
    first = text[at]
    if first == "{":
        return _object(text, at + 1, depth)
    if first == "[":
        return _array(text, at + 1, depth)
    if first in _QUOTES:
        return _string(text, at)
    return _bare(text, at)


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    out: dict[str, Any] = {}
    while True:
        at = _separated(text, at)
        if at >= len(text) or text[at] == "]":  # cut off, or a bracket of what is around it
            return out, at
        if text[at] == "}":
            return out, at + 1
        key, at = _string(text, at) if text[at] in _QUOTES else _bare(text, at)
        at = _skip(text, at)
        if at >= len(text):
            return out, at
        if text[at] != ":":
            raise ValueError(f"a colon is missing after {str(key)[:40]!r}")
        at = _skip(text, at + 1)
        if at >= len(text) or text[at] in ",}":
            out[str(key)] = None
            continue
        out[str(key)], at = _value(text, at, depth - 1)


def _array(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    out: list[Any] = []
    while True:
        at = _separated(text, at)
        if at >= len(text) or text[at] == "}":
            return out, at
        if text[at] == "]":
            return out, at + 1
        value, at = _value(text, at, depth - 1)
        out.append(value)


def _separated(text: str, at: int) -> int:
    """Past white space and commas, however many."""
    at = _skip(text, at)
    while text[at : at + 1] == ",":
        at = _skip(text, at + 1)
    return at


def _string(text: str, at: int) -> tuple[str, int]:
    closing = _QUOTES[text[at]]
    special = re.compile(rf"[\\{closing}]")
    parts: list[str] = []
    at += 1
    while found := special.search(text, at):
        parts.append(text[at : found.start()])
        at = found.end()
        if found[0] == "\\":
            piece, at = _escape(text, at)
            parts.append(piece)
        elif _ends(text, at):
            return "".join(parts), at
        else:
            parts.append(found[0])
    parts.append(text[at:])
    return "".join(parts), len(text)


def _ends(text: str, at: int) -> bool:
    """Whether a quote before ``at`` ends its string; one that is followed by more of a sentence belongs to it."""
    found = _SPACE.match(text, at)
    after = found.end() if found else at
    following = text[after : after + 1]
    if following == ",":
        return _NEXT.match(text, after + 1) is not None
    return following in ("", "}", "]", ":") or (following in _QUOTES and "\n" in text[at:after])


def _escape(text: str, at: int) -> tuple[str, int]:
    """What a backslash before ``at`` stands for; an unknown one stays as it is (LaTeX, paths)."""
    letter = text[at : at + 1]
    if letter == "u" and (digits := _HEX.match(text, at + 1)):
        return chr(int(digits[0], 16)), at + 5
    return (_ESCAPES[letter] if letter in _ESCAPES else "\\" + letter), at + 1


def _bare(text: str, at: int) -> tuple[Any, int]:
    """A word or a number without quotes."""
    found = _BARE.match(text, at)
    end = found.end() if found else at
    if comment := _COMMENT.search(text, at, end):
        end = comment.start()
    word = text[at:end].strip()
    if not word:
        raise ValueError(f"a value is missing before {text[end : end + 20]!r}")
    if word.lower() in _WORDS:
        return _WORDS[word.lower()], end
    number = _number(word) if len(word) <= _MAX_NUMBER_CHARS else None
    return (word if number is None else number), end


def _number(word: str) -> int | float | None:
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        return None
