"""Rule judges: whether an answer says what a reference says, without a model. Pure functions on strings.

They are strict in different ways, and a figure made with one names it:

    exact      the same text, after normalisation
    contains   the reference stands in the answer
    numeric    every number of the reference stands in the answer (references without a number: ``contains``)
    anls       average normalised Levenshtein similarity, 0 below 0.5 (Biten et al. 2019), the document-QA measure
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_THOUSANDS = re.compile(r"(?<=\d)[,\u00a0\u2009' ](?=\d{3}(?!\d))")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_CJK = re.compile(r"(?<=[\u3040-\u30ff\u3400-\u9fff])\s+|\s+(?=[\u3040-\u30ff\u3400-\u9fff])")
#: But not the minus of a number; a dash between two words or numbers is no minus.
_PUNCTUATION = re.compile(r"(?:(?!(?<![\w.%)])-\d)[^\w.%\u3040-\u30ff\u3400-\u9fff])+")


def normalised(text: str) -> str:
    """Lower case, full-width forms folded, thousands separators and punctuation gone, one blank between words.

    A point inside a number, its minus and the percent sign stay; blanks around Chinese and Japanese characters go.
    """
    text = unicodedata.normalize("NFKC", text).lower().replace("percent", "%").replace("per cent", "%")
    text = _THOUSANDS.sub("", text.replace("\u2212", "-"))
    text = re.sub(r"(?<=-)[$\u20ac\u00a3\u00a5](?=\d)", "", text)
    text = _PUNCTUATION.sub(" ", text)
    text = re.sub(r"(?<!\d)\.|\.(?!\d)", " ", text)
    text = re.sub(r"\s+%", "%", text)
    return _CJK.sub("", " ".join(text.split()))


def numbers(text: str) -> list[str]:
    """The numbers of a text in order, without thousands separators and without trailing zeros behind the point."""
    found = _NUMBER.findall(normalised(text))
    return [number.rstrip("0").rstrip(".") if "." in number else number.lstrip("0") or "0" for number in found]


def exact(answer: str, reference: str) -> bool:
    return normalised(answer) == normalised(reference) != ""


def contains(answer: str, reference: str) -> bool:
    """Whether the reference stands in the answer as whole words (Chinese: as characters)."""
    wanted, said = normalised(reference), normalised(answer)
    if not wanted:
        return False
    before = r"(?<![a-z0-9.-])" if wanted[0].isascii() else ""
    after = r"(?![a-z0-9]|\.\d)" if wanted[-1].isascii() and wanted[-1] != "%" else ""
    return re.search(before + re.escape(wanted) + after, said) is not None


def numeric(answer: str, reference: str) -> bool:
    """Whether every number of the reference stands in the answer; without numbers, :func:`contains`."""
    wanted = numbers(reference)
    if not wanted:
        return contains(answer, reference)
    said = numbers(answer)
    return all(number in said for number in wanted)


def anls(answer: str, reference: str, threshold: float = 0.5) -> float:
    """``1 - edit distance / longer length`` of the normalised texts; 0 where that is below ``threshold``."""
    a, b = normalised(answer), normalised(reference)
    if not a or not b:
        return 0.0
    similarity = 1 - _edit_distance(a, b) / max(len(a), len(b))
    return similarity if similarity >= threshold else 0.0


def _edit_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


RuleJudge = Callable[[str, str], float]

RULE_JUDGES: dict[str, RuleJudge] = {"exact": exact, "contains": contains, "numeric": numeric, "anls": anls}
