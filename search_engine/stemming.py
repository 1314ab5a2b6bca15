"""Porter's suffix stripper for English words (M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980)."""

from __future__ import annotations

import re
from functools import lru_cache

_VOWEL_MARKS = re.compile(r"[aeiou]|(?<=[^aeiou])y")

_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "abli": "able", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize", "ion", "al",
    "er", "ic", "ou",
)  # fmt: skip


def _shape(stem: str) -> str:
    """The word as a string of ``v`` and ``c``, the vowels and consonants of Porter's definition."""
    return re.sub(r"[^V]", "c", _VOWEL_MARKS.sub("V", stem)).replace("V", "v")


def _measure(stem: str) -> int:
    """Porter's *m*: how many times a vowel run is followed by a consonant run."""
    return len(re.findall(r"v+c+", _shape(stem)))


def _ends_cvc(stem: str) -> bool:
    return _shape(stem).endswith("cvc") and stem[-1] not in "wxy"


def _replace_longest(word: str, rules: dict[str, str], minimum: int) -> str:
    for length in range(min(7, len(word) - 1), 1, -1):
        suffix = word[-length:]
        if suffix in rules:
            stem = word[:-length]
            return stem + rules[suffix] if _measure(stem) > minimum else word
    return word


def _plural(word: str) -> str:
    if word.endswith("sses") or word.endswith("ies"):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _past_and_gerund(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        stem = word[: -len(suffix)]
        if word.endswith(suffix) and "v" in _shape(stem):
            if stem.endswith(("at", "bl", "iz")):
                return stem + "e"
            if len(stem) > 1 and stem[-1] == stem[-2] and _shape(stem)[-1] == "c" and stem[-1] not in "lsz":
                return stem[:-1]
            if _measure(stem) == 1 and _ends_cvc(stem):
                return stem + "e"
            return stem
    return word


@lru_cache(maxsize=1 << 17)
def stem(word: str) -> str:
    """The stem of a lower-case English word; words of one or two letters stay as they are."""
    if len(word) <= 2:
        return word
    word = _past_and_gerund(_plural(word))
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    word = _replace_longest(word, _STEP_2, 0)
    word = _replace_longest(word, _STEP_3, 0)
    for suffix in _STEP_4:
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            if _measure(base) > 1 and (suffix != "ion" or base.endswith(("s", "t"))):
                word = base
            break
    if word.endswith("e"):
        base = word[:-1]
        if _measure(base) > 1 or (_measure(base) == 1 and not _ends_cvc(base)):
            word = base
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word
