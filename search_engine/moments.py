"""Where in a clip something is said that matches a query: the best stretch of its transcript. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search_engine.documents import Line
from search_engine.tokens import document_terms, query_terms

#: A stretch of neighbouring cues lasts at most this long, in seconds, unless one cue does.
LONGEST = 15.0


@dataclass(frozen=True, slots=True)
class Moment:
    """From ``start`` to ``end`` seconds of a clip, ``text`` is said."""

    start: float
    end: float
    text: str

    def as_dict(self) -> dict[str, float | str]:
        return {"start": self.start, "end": self.end, "text": self.text}


def best_moment(lines: Sequence[Line], query: str) -> Moment | None:
    """The stretch with the most of the query's words, a rarer word counting more; of equals the shortest, then the first.

    None where nothing of the query is said, or the transcript says no times.
    """
    wanted = set(query_terms(query))
    cues = [(line, line.span, wanted.intersection(document_terms(line.text))) for line in lines if line.span]
    counts = {term: sum(term in found for _, _, found in cues) for term in wanted}
    best: tuple[float, float] | None = None
    moment = None
    for first, (_, span, found) in enumerate(cues):
        if not found:
            continue
        heard: set[str] = set()
        for last in range(first, len(cues)):
            end = cues[last][1][1]
            if last > first and end - span[0] > LONGEST:
                break
            if not cues[last][2] - heard and last > first:
                continue
            heard |= cues[last][2]
            rank = (sum(1 / counts[term] for term in heard), -(end - span[0]))
            if best is None or rank > best:
                best = rank
                moment = Moment(span[0], end, " ".join(line.text for line, _, _ in cues[first : last + 1]))
    return moment
