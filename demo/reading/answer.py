"""From findings to an answer: what is said, and the region of the image that it was read from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from demo.reading.extract import Finding, Page
from demo.reading.layout import Sheet, overlap, union
from demo.reading.question import Question, subquestions
from demo.reading.values import values
from demo.reading.words import is_cjk
from vrag.geometry import Box

#: The longest sentence that is given as an answer, in characters; longer ones are cut around their best part.
MAX_SENTENCE = 300
#: How much a finding gains in the second clause of a question when it stands beside what answered the first.
TOGETHER = 0.12
#: How much a finding gains when it stands in the part of the page that was looked at closely.
CLOSER = 0.1
#: How much it gains on top when it is what the page was looked at closely for: a crop is for reading, not for choosing.
SAME_PLACE = 0.15


@dataclass(frozen=True, slots=True)
class Reply:
    """What one image answers to a question. Boxes are in the image's pixels."""

    text: str
    support: float
    """0 to 1: how much of the question the place explains that the answer was read from, less for a form that does not fit."""
    coverage: float
    """0 to 1: how much of the question occurs anywhere on the image."""
    region: Box
    """The answer with the labels, the row or the sentence that say what it is."""
    height: float
    """The height of the lines it was read from, in pixels."""
    box: Box
    """The span itself."""
    label: str = ""
    said: bool = True
    """Whether the page names the quantity that is asked for, as far as the question says which one that is."""


def answer(sheet: Sheet, question: Question, near: Box | None = None, at: Box | None = None) -> Reply | None:
    """The best answer that one sheet gives; None when nothing on it has to do with the question.

    ``near`` is a part of the sheet that was looked at closely, ``at`` the place in it for whose sake: what stands there
    is preferred.
    """
    if not sheet.lines or not question.terms:
        return None
    page = Page(sheet, question)
    coverage = page.coverage
    if not question.clauses or question.extreme:
        found = _preferring(page.findings(), near, at)
        if not found:
            return None
        best = found[0]
        return Reply(
            _say(found, question),
            min(best.support, best.rank),
            coverage,
            best.region,
            best.height,
            best.box,
            best.label,
            page.names(question.asked),
        )
    chosen: list[tuple[Finding, str]] = []
    for part in subquestions(question):
        found = _preferring(Page(sheet, part).findings(), near, None if chosen else at)
        if chosen:
            first = chosen[0][0]
            found = sorted(found, key=lambda f: -(f.rank + (TOGETHER if _together(f, first) else 0.0)))
            found = [finding for finding in found if all(finding.box != other.box for other, _ in chosen)] or found
        if found:
            chosen.append((found[0], _say(found, part)))
    if not chosen:
        return None
    best = chosen[0][0]
    if best.sentence and all(finding.sentence == best.sentence for finding, _ in chosen):
        text = shorten(best.sentence, best.text)
    else:
        text = "; ".join(dict.fromkeys(said for _, said in chosen if said))
    beside = [finding.region for finding, _ in chosen if _together(finding, best)]
    support = sum(min(finding.support, finding.rank) for finding, _ in chosen) / len(chosen)
    return Reply(text, support, coverage, union([best.region, *beside]), best.height, best.box, best.label)


def _preferring(found: list[Finding], near: Box | None, at: Box | None) -> list[Finding]:
    if near is None:
        return found

    def rank(finding: Finding) -> float:
        closer = CLOSER if near.covers(finding.box, 0.8) else 0.0
        same = at is not None and at.intersection(finding.box) >= 0.4 * max(at.area, finding.box.area)
        return finding.rank + closer + (SAME_PLACE if same else 0.0)

    return sorted(found, key=lambda finding: -rank(finding))


def _together(finding: Finding, first: Finding) -> bool:
    """Whether two findings are of one row or one sentence."""
    if finding.sentence and finding.sentence == first.sentence:
        return True
    a, b = finding.region, first.region
    return overlap(a.y1, a.y2, b.y1, b.y2) > 0.5


def _say(found: list[Finding], question: Question) -> str:
    """How the first of the findings is said; with others like it where the question asks for several."""
    best = found[0]
    if question.parts > 1 and not question.clauses and question.numeric and not best.sentence:
        alike = [best]
        for finding in found[1:]:
            if (
                finding.rank >= 0.88 * best.rank
                and not finding.sentence
                and finding.text not in [f.text for f in alike]
            ):
                alike.append(finding)
        return "; ".join(_one(replace(finding), question) for finding in alike[:3])
    return _one(best, question)


def _one(finding: Finding, question: Question) -> str:
    """The span alone, its sentence where the span is no answer by itself, or label and value where both are asked for."""
    if finding.sentence and (not question.numeric or question.parts > 1):
        if question.kind in ("person", "date") and len(values(finding.sentence, question)) == 1:
            return finding.text
        return shorten(finding.sentence, finding.text)
    if finding.label and not finding.sentence and question.parts > 1 and finding.text not in finding.label:
        return finding.text if finding.label in finding.text else f"{finding.label}: {finding.text}"
    return finding.text


def shorten(sentence: str, around: str) -> str:
    """A sentence cut to MAX_SENTENCE characters around a part of it, at word borders."""
    if len(sentence) <= MAX_SENTENCE:
        return sentence
    middle = max(0, sentence.find(around)) + len(around) // 2
    start = max(0, min(middle - MAX_SENTENCE // 2, len(sentence) - MAX_SENTENCE))
    piece = sentence[start : start + MAX_SENTENCE]
    if not is_cjk(piece):
        piece = piece[piece.find(" ") + 1 :] if start else piece
        piece = piece[: piece.rfind(" ")] if start + MAX_SENTENCE < len(sentence) and " " in piece else piece
    return ("… " if start else "") + piece.strip() + (" …" if start + MAX_SENTENCE < len(sentence) else "")
