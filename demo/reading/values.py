"""Numbers, dates and names inside a text: what can be an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from demo.reading.question import Kind, Question
from demo.reading.words import CJK, STOPWORDS, normalise, stem

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:t(?:ember)?)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)"
)
_DATE = re.compile(
    rf"\b{_MONTH}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s*\d{{4}})?\b"
    rf"|\b\d{{1,2}}(?:st|nd|rd|th)?\s+{_MONTH}\.?(?:,?\s+\d{{4}})?\b|\b{_MONTH}\.?,?\s+\d{{4}}\b"
    r"|\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}\b|\b\d{1,2}/\d{1,2}/\d{2,4}\b"
    r"|(?:\d{4}\s*年\s*)?\d{1,2}\s*月(?:\s*\d{1,2}\s*[日号])?|\d{4}\s*年",
    re.I,
)
_UNITS = "|".join(
    (
        r"%|‰|percent(?:age points)?|per cent|pp|°\s?[CF]?|℃|℉",
        r"[kKMGTP]i?[Bb](?:ps|/s)?|[kMG]Wh?|[kMG]?Hz|[KMBTVxsmgLWAh](?![A-Za-z])|ms|[µu]s",
        r"thousand|million|billion|trillion|mn|bn|USD|EUR|GBP|RMB|CNY|km²?|kg|mg|cm|mm",
        r"(?:milli)?seconds?|min(?:utes?)?|hours?|days?|weeks?|months?|years?",
        r"个?百分点|[毫微]?秒|分钟|小时|个月|[天年月日岁倍次]|万[亿元人台家]?|亿(?:[人台欧]|美?元|欧元)?|千[克米瓦]?|美?元",
        r"[人名家个项种条台件级吨米度页克斤升亩户座辆艘层]|毫[升米克]|公[里斤顷]",
    )
)
_ONE = r"[-+−–]?\s?[$€£¥￥]?\s?\d+(?:,\d{3})*(?:\.\d+)?"
_NUMBER = re.compile(
    rf"(?<![0-9_.])(?<!\d,)(?:[~≈≤≥<>＜＞约]\s?)?{_ONE}(?:\s?(?:{_UNITS}))*(?:\s?(?:[–—\-~～/至到]|to)\s?\d+(?:,\d{{3}})*(?:\.\d+)?(?:\s?(?:{_UNITS}))*)?(?![.,]?\d)",
)  # fmt: skip
_CELL = re.compile(
    rf"[零一二两三四五六七八九十百千万]+[个次遍倍人名家天年月秒分]?|[(\[]?(?:{_NUMBER.pattern})[)\]*†‡]*"
    r"|[(\[]?[-+]?[\d.,:/%–—~ -]*\d[\d.,:/%–—~ -]*[)\]*†‡]*"
)
_CLOCK = re.compile(
    r"(?<![\d:])(?:[01]?\d|2[0-4])[:：][0-5]\d(?![\d:])(?:\s?[ap]\.?m\.?)?|\b1?\d\s?[ap]\.?m\b\.?|[零〇一二三四五六七八九十\d]+点(?:半|[一二三四五六七八九十\d]+分)?",
    re.I,
)
#: Numbers that are written in words, with what they count.
_SPELLED = re.compile(
    r"\b(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)(?:-(?:one|two|three|four|five|six|seven|eight|nine))?\b"
    r"|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
    r"|dozen|hundred|thousand)\b(?:\s(?:seconds|minutes|hours|days|weeks|months|years))?"
    r"|[一二两三四五六七八九十百千]+(?:个百分点|分钟|小时|个月|[秒天年月周人名家倍次元米度])",
    re.I,
)
_LONG_DURATION = re.compile(
    r"\d+\s?(?:小时|hours?|hrs?|h)\s?(?:and\s)?\d+\s?(?:分钟?|min(?:utes?)?|m)(?![A-Za-z])", re.I
)
_YEAR = re.compile(r"(?<!\d)(?:1[5-9]|20)\d\d(?!\d)")
_NAME = re.compile(
    r"(?:\b(?:Dr|Mr|Mrs|Ms|Prof|Sir)\.?\s+)?\b[A-Z][\w’'&-]*(?:\.?\s+(?:of |the |and |for |de |van |von )?[A-Z][\w’'&.-]*)+"
)
_DURATION_UNIT = re.compile(
    r"(?:ms|[µu]s|s|min(?:ute)?s?|hours?|days?|weeks?|months?|years?|(?:milli)?seconds?|毫秒|微秒|秒|分钟|小时|个?月|天|年)$"
)
_PHONE = re.compile(r"(?:\+\d{1,3}[\s-])?\(?0\d{2,4}\)?[\s-]\d{3,}")
_GLUED = re.compile(r"[A-Za-z]+$")
_MEASURED = re.compile(r"\s([A-Za-z]+)\b")
_CURRENCY = re.compile(r"(?:US )?dollars?|euros?|pounds?|yuan|yen|francs?|crowns?|rupees?", re.I)
_DURATIONS = ("millisecond", "second", "minute", "hour", "day", "week", "month", "year")
_NO_NAME = re.compile(
    r"(?:(?:Since|Table|Figure|Chart|In|On|By|The|For|With|From|Until|Annual|Report)\b|" + _MONTH + r"\b)\.?\s*"
)
_MONEY_SIGN = re.compile(r"[$€£¥￥]|dollar|euro|pound|yuan|USD|EUR|GBP|RMB|CNY|元|million|billion|万|亿", re.I)


@dataclass(frozen=True, slots=True)
class Value:
    """A span of a text that could be the answer: ``text[start:end]``; ``fit`` (0 to 1) says how well its form fits."""

    start: int
    end: int
    fit: float


def values(text: str, question: Question) -> list[Value]:
    """The spans of ``text`` whose form fits what the question asks for; what the question itself says is left out."""
    if question.kind == "date":
        found = [Value(*match.span(), 1.0) for match in _DATE.finditer(text)]
        found += [Value(*match.span(), 0.8) for match in _CLOCK.finditer(text) if not _inside(match.span(), found)]
        found += [Value(*match.span(), 0.7) for match in _YEAR.finditer(text) if not _inside(match.span(), found)]
    elif question.kind == "year":
        found = [Value(*match.span(), 1.0) for match in _YEAR.finditer(text)]
    elif question.kind == "time":
        found = [Value(*match.span(), 1.0) for match in _CLOCK.finditer(text)]
    elif question.numeric:
        found = list(_numbers(text, question))
    elif question.kind == "person":
        found = [Value(*match.span(), 1.0) for match in _NAME.finditer(text) if not _NO_NAME.match(match.group())]
    else:
        return []
    asked = normalise(question.text)
    return [value for value in found if not _said(normalise(text[value.start : value.end]), asked)]


def number(text: str) -> float | None:
    """The first number in ``text``, for comparing; None where there is none."""
    clock = re.match(r"\s*(\d{1,2})[:：](\d\d)", text)
    if clock:
        return int(clock[1]) + int(clock[2]) / 60
    match = re.search(r"[-−]?\d+(?:\.\d+)?", normalise(text))
    return float(match.group().replace("−", "-")) if match else None


def is_number(text: str) -> bool:
    """Whether a text is nothing but a number with its sign and unit: a value of a chart or a table, not a label."""
    return bool(_CELL.fullmatch(text.strip()))


def fit(text: str, kind: Kind, after: str = "", unit: str = "", measure: str = "") -> float:
    """How well the written form of a number fits the kind of answer; ``after`` is the text that follows it."""
    percent = bool(re.search(r"%|‰|percent|per cent|百分", text + after[:9]))
    if kind == "percent":
        return 1.0 if percent else 0.35 if _YEAR.fullmatch(text.strip()) is None else 0.1
    if kind == "duration":
        if not _DURATION_UNIT.search(text.strip()):
            return 0.65
        # "how many months": minutes are another matter
        return 1.0 if not unit or unit in text.casefold() or not text.isascii() or unit not in _DURATIONS else 0.45
    if kind == "money":
        return 1.0 if _MONEY_SIGN.search(text) else 0.5
    if measure:
        if _YEAR.fullmatch(text.strip()) or (percent and "%" not in measure):
            return 0.3
        return (
            1.0
            if re.search(measure, text + after[:12], re.I)
            else 0.5
            if re.search(r"[^\d.,\s]$", text.strip())
            else 0.7
        )
    base = (0.3 if unit else 0.75) if percent else 0.45 if _YEAR.fullmatch(text.strip()) else 0.9
    if unit and unit in {stem(word) for word in re.findall(r"[a-z]+", after[:60].casefold())[:4]}:
        base = min(1.0, base + 0.25)
    return base


def _numbers(text: str, question: Question) -> Iterator[Value]:
    if question.kind in ("number", "duration"):
        for match in _SPELLED.finditer(text):
            yield Value(
                *match.span(), 0.8 if question.kind == "duration" and _DURATION_UNIT.search(match.group()) else 0.5
            )
    long = [match.span() for match in _LONG_DURATION.finditer(text)] if question.kind == "duration" else []
    yield from (Value(start, end, 1.0) for start, end in long)
    for match in _NUMBER.finditer(text):
        start, end = match.span()
        if any(start < stop and end > begin for begin, stop in long):
            continue
        span = text[start:end]
        start += len(span) - len(span.lstrip())
        end -= len(span) - len(span.rstrip())
        if _PHONE.match(text, start):
            continue
        glued = _GLUED.search(text, 0, start)
        if glued and text[start].isdigit() and (len(glued.group()) < 3 or not glued.group().islower()):
            continue  # A03, FY2019, Q13; but OCR also loses blanks: removed1,250
        if start and text[start] in "-–−" and text[start - 1].isalnum():
            start += 1
        measured = _MEASURED.match(text, end)
        if measured and (stem(measured[1].casefold()) == question.unit or _CURRENCY.fullmatch(measured[1])):
            yield Value(
                start,
                measured.end(),
                min(1.0, fit(text[start:end], question.kind, text[end:], question.unit, question.measure) + 0.1),
            )
            continue
        yield Value(start, end, fit(text[start:end], question.kind, text[end:], question.unit, question.measure))


def _inside(span: tuple[int, int], others: list[Value]) -> bool:
    return any(span[0] < other.end and span[1] > other.start for other in others)


def _said(text: str, asked: str) -> bool:
    """Whether the question itself says ``text``: then it cannot be the answer."""
    words = [word for word in re.findall(rf"[\d.]+|[{CJK}]+|[a-z]+", text) if word not in STOPWORDS]
    return bool(words) and all(_has(asked, word) for word in words)


def _has(text: str, word: str) -> bool:
    return word in text if not word.isascii() else bool(re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", text))
