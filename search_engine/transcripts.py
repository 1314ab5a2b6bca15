"""Transcripts beside clips: SubRip (``.srt``), WebVTT (``.vtt``) and plain text. Pure functions on their text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from search_engine.documents import Line
from vrag.geometry import Box

#: A clip with more cues than a talk of a whole day has is cut here.
MAX_CUES = 100_000
# 00:01:02,500 --> 00:01:04.000, the hours optional, the fraction after a comma (SubRip) or a point (WebVTT).
_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2}(?:[.,]\d{1,9})?)"
_TIMING = re.compile(rf"^\s*{_TIME}[ \t]*-->[ \t]*{_TIME}", re.MULTILINE)
# <i>, <c.loud>, <v Anna>, <00:00:01.000>, and {\an8} of SubRip.
_MARKUP = re.compile(r"</?[A-Za-z][^<>]{0,200}>|<[\d:.]{1,20}>|\{\\[^{}]{0,100}\}")
_NOWHERE = Box(0, 0, 0, 0)


def timed_lines(text: str) -> tuple[Line, ...]:
    """The cues of a SubRip or WebVTT file in the order of time, one line each, with the seconds in ``span``.

    Markup is taken out; what captions that roll say again is said once. What is no cue (numbers, notes, styles) is left out.
    """
    cues = sorted(_cues(text.replace("\r\n", "\n").replace("\r", "\n")), key=lambda cue: (cue[0], cue[1]))
    lines: list[Line] = []
    shown: list[str] = []
    for start, end, rows in cues:
        fresh = [row for row in rows if row not in shown]
        shown = rows
        if fresh:
            lines.append(Line(" ".join(fresh), _NOWHERE, span=(start, end)))
        elif lines and lines[-1].span is not None:
            lines[-1] = Line(lines[-1].text, _NOWHERE, span=(lines[-1].span[0], max(lines[-1].span[1], end)))
    return tuple(lines)


def plain_lines(text: str) -> tuple[Line, ...]:
    """The lines of a transcript that does not say when."""
    return tuple(Line(line.strip(), _NOWHERE) for line in text.splitlines() if line.strip())


def _cues(text: str) -> Iterator[tuple[float, float, list[str]]]:
    found = list(_TIMING.finditer(text))[:MAX_CUES]
    for match, following in zip(found, [*found[1:], None], strict=False):
        start, end = _seconds(*match.groups()[:3]), _seconds(*match.groups()[3:])
        body = text[match.end() : following.start() if following else len(text)]
        # After the settings on the line of the times, the rows of the cue up to a blank line.
        rows = body.partition("\n")[2].split("\n\n", 1)[0].split("\n")
        spoken = [html.unescape(_MARKUP.sub("", row)).strip() for row in rows]
        if end >= start:
            yield start, end, [" ".join(row.split()) for row in spoken if row]


def _seconds(hours: str | None, minutes: str, seconds: str) -> float:
    return round(int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds.replace(",", ".")), 3)
