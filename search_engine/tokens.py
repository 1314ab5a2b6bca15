"""Text to index terms: stemmed English words, normalised numbers, CJK bigrams. Pure and deterministic.

The same analysis serves documents and queries, so that both sides meet:

* Unicode is folded (NFKC, lower case, accents removed); a word broken by a hyphen at the end of a line is joined.
* A compound gives its parts and the whole: ``long-term`` → ``long``, ``term``, ``longterm``; ``FY2022`` → ``fy2022``,
  ``fy``, ``2022``.
* Numbers lose their thousands separators and trailing zeros: ``1,200.50`` → ``1200.5``. A per cent sign becomes the
  word.
* A run of Chinese, Japanese or Korean characters gives its bigrams; blanks inside a run (a line break, OCR) do not
  split it. Single characters are terms too, so that a query of one character finds something, but bear a mark and are
  used only then.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from hashlib import blake2b

from search_engine.stemming import stem

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
#: Marks the term of a single CJK character; see :func:`document_terms`.
UNIGRAM = "\u00b7"

_CJK_GAP = re.compile(rf"(?<=[{CJK}])\s+(?=[{CJK}])")
_LINE_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u00ad\u2010]\s*\n\s*(?=[^\W\d_])")
# A letter or digit that is written in words rather than in a run of its own.
_ALNUM = rf"(?:(?![{CJK}])[^\W_])"
_TOKEN = re.compile(
    rf"(?P<cjk>[{CJK}]+)"
    rf"|(?P<number>(?:\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d+(?:\.\d+)*)(?!{_ALNUM}))"
    rf"|(?P<word>{_ALNUM}+(?:(?:[-\u2010\u2011'’&](?=[^\W_])|(?<=\d)\.(?=\d)){_ALNUM}+)*)"
    r"|(?P<percent>[%‰])"
)
_WORD = re.compile(r"[a-z]+")
_PART = re.compile(r"\d+|[^\W\d_]+")

# Function words and the words that ask; they say nothing about what a page is about.
ENGLISH_STOPWORDS = frozenset(
    _WORD.findall(
        """
        a about above after again against all also am an and any are as at be because been before being below between
        both but by can could did do does doing down during each either few for from further had has have having he her
        here hers him his how i if in into is it its itself just me might more most must my no nor not of off on once
        only or other our out over own per same shall she should so some such than that the their them then there these
        they this those through to too under until up upon very was we were what when where whether which while who
        whom whose why will with within without would you your
        """
    )
)
# Chinese words that ask or only bind; they are cut out of a *query* before it is split into bigrams.
_CHINESE_FUNCTION_WORDS = re.compile(
    "请问|是什么|有什么|为什么|什么|多少|哪一个|哪一年|哪一天|哪一家|哪一项|哪一|哪些|哪个|哪家|哪种|哪里|哪年|哪|如何|怎么样|怎样|怎么|"
    "是否|有没有|能否|可以|分别|对应的|以及|根据|依据|按照|关于|其中|之间|的时候|多大|多长|多久|几个|几|谁|吗|呢|吧|了|的|是|在|和|与|及|或|"
    "把|被|从|到|由|对|为|中"
)
_ENGLISH_QUESTION = re.compile(r"\bhow (?:many|much|long|often|far)\b")
# Spelled numbers meet their digits; "one" is mostly a pronoun.
_NUMBER_WORDS = {
    word: str(number)
    for number, word in enumerate(
        _WORD.findall(
            "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
            "eighteen nineteen twenty"
        ),
        start=2,
    )
}


def fold(text: str) -> str:
    """Lower case, compatibility forms and accents folded, line hyphens and blanks between CJK characters removed."""
    text = unicodedata.normalize("NFKC", text).lower()
    if not text.isascii():
        decomposed = unicodedata.normalize("NFD", text)
        # Only Latin, Greek and Cyrillic accents go: the marks of kana and Hangul carry meaning.
        text = unicodedata.normalize("NFC", "".join(c for c in decomposed if not "\u0300" <= c <= "\u036f"))
        text = _CJK_GAP.sub("", text)
    return _LINE_HYPHEN.sub("", text)


def _number(text: str) -> str:
    text = text.replace(",", "")
    if text.count(".") == 1:
        text = text.rstrip("0").rstrip(".")
    return text


def _word_terms(token: str) -> Iterator[str]:
    token = re.sub(r"['’]s?$|['’]s(?=[-&])", "", token).replace("’", "'").replace("'", "")
    parts = [part for piece in re.split(r"[-\u2010\u2011&]", token) for part in _PART.findall(piece)]
    if len(parts) > 1:
        yield re.sub(r"[-\u2010\u2011&.]", "", token)
    for part in parts:
        if part not in ENGLISH_STOPWORDS:
            yield _number(part) if part.isdigit() else _NUMBER_WORDS.get(part) or stem(part)


def _terms(folded: str, unigrams: bool) -> Iterator[str]:
    for match in _TOKEN.finditer(folded):
        kind, token = match.lastgroup, match.group()
        if kind == "cjk":
            yield from (token[i : i + 2] for i in range(len(token) - 1))
            if unigrams or len(token) == 1:
                yield from (UNIGRAM + character for character in token)
        elif kind == "number":
            yield _number(token)
        elif kind == "percent":
            yield "percent"
        else:
            yield from _word_terms(token)


def document_terms(text: str) -> list[str]:
    """The terms of a page in order, single CJK characters (marked with :data:`UNIGRAM`) included."""
    return list(_terms(fold(text), unigrams=True))


def query_terms(text: str) -> list[str]:
    """The terms of a question, without the words that only ask; if nothing else is left, with them."""
    folded = fold(text)
    asked = _ENGLISH_QUESTION.sub(" ", _CHINESE_FUNCTION_WORDS.sub(" ", folded))
    terms = list(_terms(asked, unigrams=False))
    # What is left of a phrase when its function words are cut out is worth something only if there is nothing else.
    longer = [term for term in terms if not term.startswith(UNIGRAM)]
    return longer or terms or list(_terms(folded, unigrams=False))


def hash64(term: str) -> int:
    """A stable 64-bit hash of a term: the same in every process and on every machine, unlike :func:`hash`."""
    return int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
