"""Which scripts a text is written in, and which ones a tokenizer has learned to read.

A model trained on English has single letters of other alphabets and some common Chinese characters in its vocabulary. It
knows a script only if it has many pieces of it: words and syllables of an alphabet, thousands of characters of Chinese.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import groupby
from typing import Any

#: Written without spaces: every character is counted as a word.
_UNSPACED = frozenset({"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"})
#: Pieces of more than one letter that a vocabulary has of an alphabet that it reads.
_PIECES = 300
#: Different characters of Chinese: the commonest thousand make up nine tenths of a text.
_CHARACTERS = 1_000


class _All(Collection[str]):
    """Every script: of a tokenizer that falls back to bytes nothing can be told from its vocabulary."""

    def __contains__(self, script: object) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


ALL = _All()


#: Letters that no vocabulary lists: runic, cuneiform, Linear B.
_RARE = "\u16a0\U00012000\U00010000"


@lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str | None:
    """The first word of a letter's name in Unicode (``LATIN``, ``CJK``, ``CYRILLIC``); None for what is no letter."""
    if not character.isalpha():
        return None
    return unicodedata.name(character, "UNKNOWN").split(" ", 1)[0].split("-", 1)[0]


def words_by_script(text: str) -> Counter[str]:
    """How many words of each script: runs of letters, or single characters where there are no spaces."""
    words: Counter[str] = Counter()
    for script, run in groupby(unicodedata.normalize("NFKC", text), script_of):
        if script is not None:
            words[script] += len(list(run)) if script in _UNSPACED else 1
    return words


def readable_scripts(tokenizer: Any) -> Collection[str]:
    """The scripts that a tokenizer of the transformers library has pieces of."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is None or unknown not in tokenizer(_RARE, add_special_tokens=False)["input_ids"]:
        return ALL
    return scripts_of_vocabulary(tokenizer.get_vocab())


def scripts_of_vocabulary(pieces: Iterable[str]) -> frozenset[str]:
    """The scripts that there are enough pieces of to read them."""
    longer: Counter[str] = Counter()
    single: dict[str, set[str]] = {}
    for piece in pieces:
        letters = [character for character in piece if character.isalpha()]
        for character in letters:
            script = script_of(character)
            if script in _UNSPACED:
                single.setdefault(script, set()).add(character)
        if len(letters) > 1 and len({script_of(character) for character in letters}) == 1:
            longer[script_of(letters[0]) or ""] += 1
    # Kana and the like have no thousand characters; they are read in pieces as an alphabet is.
    known = {script for script, count in longer.items() if script != "CJK" and count >= _PIECES}
    if len(single.get("CJK", ())) >= _CHARACTERS:
        known.add("CJK")
    return frozenset(known)
