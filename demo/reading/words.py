"""Text as terms: what can be compared between a question and a page that was read by OCR.

A term is a stemmed English word, a number without its thousands separators, or a bigram of Chinese characters. Matching is
graded, because a page says "European" where a question says "Europe" and OCR drops a letter now and then.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HAN_RUN = re.compile(f"[{CJK}]+")
_TOKEN = re.compile(rf"[{CJK}]+|\d+(?:[.,]\d+)*|[^\W\d_{CJK}]+(?:[&'’][^\W\d_{CJK}]+)*")
_WORD_NUMBER = re.compile(rf"(?<![\w])([^\W\d_{CJK}]{{1,4}}-?\d+)(?![\w])")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")

_STOPWORDS = """
a about after all also among an and any are as at be because been being between both but by can compared could did do does during
each either for from get give given had has have having he her his how i if in into is it its itself may me might more most much
must named names of on only or other our out over own per please s same shall she should show shown so some such tell than that
the their them then there these they this those through to toward under up upon us was we were what when where which while who
whom whose why will with would you your according many long far often
"""
STOPWORDS = frozenset(_STOPWORDS.split())
#: Chinese function words and question words; a bigram across one of them means nothing.
HAN_FUNCTION_WORDS = re.compile(
    "多少|多大|多久|多长|哪一[年天个项家种]?|哪[个些里家年]?|什么时候|什么|为什么|如何|怎么|怎样|是否|谁|几个?"
    "|请问|分别|以及|或者|还是|对应|大约|其中|根据|按照|关于|使用|进行|可以|通过"
    "|[的是在了和与及有吗呢为中从到被把该这那各约]"
)
#: Words of the same meaning in questions and on pages, mapped to one stem.
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_SAME = {
    **dict.fromkeys(("percentage", "pct"), "percent"),
    **dict.fromkeys(("proportion", "fraction"), "share"),
    **dict.fromkeys(("organisation", "company", "companie"), "organization"),
    **{word: str(value) for value, word in enumerate(_NUMBERS, start=1)},
    **{"first": "1st", "second": "2nd", "third": "3rd", "sept": "sep"},
    **{month: month[:3] for month in _MONTHS},
}


def normalise(text: str) -> str:
    """Compatibility forms folded, case folded, thousands separators dropped, blanks collapsed."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    return " ".join(_THOUSANDS.sub("", text).split())


def has_han(text: str) -> bool:
    return _HAN_RUN.search(text) is not None


def is_cjk(text: str) -> bool:
    """Whether a text is mainly Chinese: at least a fifth of its letters are Han characters."""
    han = sum(len(run) for run in _HAN_RUN.findall(text))
    return han > 0 and han >= 0.2 * sum(char.isalnum() for char in text)


def stem(word: str) -> str:
    """A light English stem: plural, -ing, -ed and -ly endings are taken off; short words stay as they are."""
    if not word.isascii() or not word.isalpha():
        return word
    if word.endswith("'s"):
        word = word[:-2]
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed", "ly"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            word = word[: -len(ending)]
            if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "ls":
                word = word[:-1]
            break
    if len(word) > 4 and word.endswith("e"):
        word = word[:-1]
    return word


def terms(text: str, *, question: bool = False) -> list[str]:
    """The terms of ``text`` in order, repeats kept. ``question`` also splits Chinese at its question and function words."""
    text = normalise(text)
    found: list[str] = []
    for token in _TOKEN.findall(text):
        if _HAN_RUN.match(token):
            for run in HAN_FUNCTION_WORDS.split(token) if question else (token,):
                found += [run] if len(run) == 1 else [run[i : i + 2] for i in range(len(run) - 1)]
        elif token[0].isdigit():
            found.append(token.rstrip(".,"))
        elif token not in STOPWORDS:
            token = _SAME.get(token, token)
            found.append(_SAME.get(stem(token), stem(token)))
    found += _WORD_NUMBER.findall(text)
    return [term for term in found if term]


def content(text: str) -> set[str]:
    """The distinct terms of ``text`` that carry meaning: single letters are left out."""
    return {term for term in terms(text) if len(term) > 1 or not term.isascii() or term.isdigit()}


@lru_cache(maxsize=200_000)
def similarity(a: str, b: str) -> float:
    """How well two terms match, 0 to 1: the same term, a word of the same family, or one misread by OCR."""
    if a == b:
        return 1.0
    if len(a) < 4 or len(b) < 4 or not (a.isalpha() and b.isalpha()):
        return 0.0
    short, long = (a, b) if len(a) < len(b) else (b, a)
    if len(short) >= 5 and len(long) >= len(short) + 6 and short.isascii() and short in long:
        return 0.8  # OCR lost the blanks between words
    if a[0] != b[0]:
        return 0.0
    longer = max(len(a), len(b))
    shared = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        shared += 1
    if shared >= 4 and shared >= 0.6 * longer:
        return 0.85 if shared >= 0.75 * longer else 0.7
    if min(len(a), len(b)) >= 6 and abs(len(a) - len(b)) <= 1 and _one_edit(a, b):
        return 0.85
    return 0.0


def _one_edit(a: str, b: str) -> bool:
    if len(a) == len(b):
        return sum(x != y for x, y in zip(a, b, strict=True)) == 1
    short, long = sorted((a, b), key=len)
    return any(long[:i] + long[i + 1 :] == short for i in range(len(long)))


def best_match(term: str, others: Iterable[str]) -> float:
    """The best similarity of ``term`` to any of ``others``."""
    others = others if isinstance(others, set | frozenset) else set(others)
    if term in others:
        return 1.0
    return max((similarity(term, other) for other in others), default=0.0)
