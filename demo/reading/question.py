"""What a question asks for: its terms, the kind of answer that it expects, and how many of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from demo.reading.words import CJK, HAN_FUNCTION_WORDS, is_cjk, stem, terms

Kind = Literal["percent", "year", "date", "time", "duration", "money", "number", "person", "place", "yesno", "text"]

#: Kinds whose answer is a number.
NUMERIC: frozenset[Kind] = frozenset({"percent", "year", "time", "duration", "money", "number"})


@dataclass(frozen=True, slots=True)
class Term:
    """A term of the question; ``weight`` says how much it tells one place on a page from another."""

    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    terms: tuple[Term, ...]
    kind: Kind
    unit: str = ""
    """The stem of what is counted or measured: "respond" in "how many respondents", where it is known."""
    measure: str = ""
    """A pattern of the units in which the answer is measured, "" where the question does not say."""
    parts: int = 1
    """How many things are asked for: 2 in "which ..., and what was its score"."""
    extreme: int = 0
    """1 for the highest, -1 for the lowest of a list, 0 if the question asks for neither."""
    asked: tuple[str, ...] = ()
    """The terms that name the quantity itself: "space" in "how many parking spaces"; where they are known."""
    names_item: bool = False
    """Whether the answer is the name of a row or series (which, what, who) rather than its value."""
    chinese: bool = False
    clauses: tuple[str, ...] = ()
    """The parts of a question that asks for several things, each a question of its own; else nothing."""

    @property
    def numeric(self) -> bool:
        return self.kind in NUMERIC


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_PERCENT = _any(
    r"\bpercent(?:age)?",
    r"\b(?:what|which) share|\bshare of",
    r"\bproportion|\bfraction of",
    "[%％]",
    "比例|占比|百分|比率|份额",
)
_YEAR = _any(r"\b(?:which|what)\s+(?:fiscal |calendar |financial )?year", "哪一?年|年份|何年")
_DATE = _any(
    r"(?:^|[,;]|\band|\bor)\s*when\b|\b(?:what|which) (?:day|date|month)",
    "哪一?天|什么时候|何时|日期|几月|几号|哪个?月",
)
_TIME = _any(r"\bwhat time\b|\bo'clock\b|\bwhich hour\b", "几点|何时开[门放始]|什么时间")
_DURATION = _any(
    r"\bhow long\b",
    r"\bhow many (?:\w+ )?(?:milli)?(?:seconds|minutes|hours|days|weeks|months|years)\b",
    "多久|多长时间|多少时间|(?:多少|几)个?(?:毫秒|秒|分钟|小时|天|月|年)",
)
_MONEY = _any(
    r"\bhow much (?:money|did .* (?:cost|spend|earn|pay))|\bwhat (?:price|cost)", "多少钱|多少[万亿]?[美欧日]?元"
)
_QUANTITIES = (
    "total|average|median|mean|count|score|value|correlation|price|revenue|temperatures?|amount|rate|size|capacity|length|"
    "weight|height|area|population"
)
_NUMBER = _any(
    r"\bhow (?:many|much|high|low|large|big|old|often|fast|tall|wide|deep|far)\b",
    r"\bnumber of\b|\btotal\b|\bby (?:what|which) factor",
    rf"\bwhat (?:was|is|were|are) the (?:[\w'-]+ ){{0,5}}?(?:{_QUANTITIES})\b",
    rf"\b(?:what|which) (?:[\w'-]+ ){{0,4}}?(?:{_QUANTITIES})\b",
    r"\bwhat (?:score|factor|value|amount|rank|level|version)",
    "多少|多[高重长宽远深快厚大]|几[个名家种次]|编号|数量|得分",
)
_PERSON = _any(
    r"\bwho(?:m|se)?\b",
    r"\b(?:which|what) (?:person|man|woman|doctor|author|director|minister|president|ceo|member|justice|manager)",
    "谁|哪位|何人",
)
_PLACE = _any(
    r"\bwhere\b|\b(?:which|what) (?:city|country|place|state|region|continent)",
    "哪里|何处|在哪|哪个(?:城市|国家|地区|省)",
)
_YESNO = _any(
    r"^\s*(?:is|are|was|were|do|does|did|has|have|had|can|could|should|will|would|may|must)\b.*\?",
    r"吗[？?]?\s*$|是否|是不是|有没有",
)
#: "how many government-wide respondents did": what is counted stands before the next verb or preposition.
_UNIT = _any(
    r"\bhow (?:many|much)\s+(?!(?:is|are|was|were|do|does|did|of|has|have|had)\b)"
    r"((?:[\w'-]+\s+){0,4}?[\w'-]+?)(?=[,?]|$|\s+(?:of|on|in|at|by|for|to|from|with|was|were|is|are|did|do|"
    r"does|had|have|has|can|could|will|would|should|that|who|which|share|ranked|took|take|used?|responded)\b)"
)
#: What is counted stands behind the measure word: 多少名员工; what is measured before the verb: 净利润是多少.
_COUNTED = re.compile(rf"(?:多少|几)[名个家座条艘辆种处所件项位间台]([{CJK}]{{2,6}})")
_MEASURED = re.compile(rf"([{CJK}]{{2,8}})(?:是|为|有|达到?)(?:百分之)?多少")
#: What says no more than that something is counted.
_GENERIC = re.compile("(?:数量级?|得分|分数|总数|比例|数值?|程度)$")
#: "How much is the chairman paid?"
_DONE = re.compile(r"\bhow much (?:is|are|was|were)\b.*\b([a-z]{2,}(?:ed|id))\s*\??\s*$", re.IGNORECASE)
_HIGHEST = _any(
    r"\b(?:highest|largest|biggest|greatest|most|best|longest|maximum|peak(?:ed)?|widest|strongest|fastest)\b",
    "最[高大多长快强常好]|首位",
)
_LATEST, _EARLIEST = _any(r"\b(?:last|latest)\b", "最后|最晚|末班"), _any(r"\b(?:first|earliest)\b", "最早|首班|第一班")
_LOWEST = _any(
    r"\b(?:lowest|smallest|least|fewest|worst|shortest|minimum|narrowest|weakest|slowest)\b", "最[低小少短慢弱差]"
)
_NO_EXTREME = _any(
    r"\b(?:at most|at least|most of|the most part|most recent|best describes?)\b", "至少|至多|最多可|最近|最新"
)
_ASKS = _any(
    r"\b(?:how (?:many|much|long|often)|what|which|who|when|where)\b",
    r"多少|什么|哪[^\s，。]|谁|何时|几[个名家种天秒年]",
)
_NAMES = _any(r"\b(?:which|what|who|where)\b", "哪[一个家项种款些位]|什么|谁")
#: The value itself is asked for, not the name of what has it.
_ASKS_VALUE = _any(
    r"\b(?:what|which) (?:share|percent\w*|proportion|fraction|score|number|year|fiscal year|was|is|were|are|rank)\b"
)
_ASKS_EXTREME_VALUE = _any(
    r"\b(?:what|which) (?:share|percent\w*|proportion|fraction|number)\b",
    r"\b(?:what|which) (?:is|was) the (?:highest|lowest|largest|smallest|maximum|minimum)\b",
)
_BOTH = _any(
    r"\bcompared (?:with|to)\b",
    "分别|各是|各为",
    r"\bwhich two\b|\bhigh and low\b|\brespectively\b|\b\w+ and \w+ (?:ratings|scores|values|temperatures)\b",
)
#: What a quantity is measured in.
_MEASURES = (
    (_any(r"\btemperatures?\b|\bhow (?:hot|warm|cold)\b", "温度|水温|气温|多[热冷]"), r"°|℃|℉|度|degrees?"),
    (_any(r"\bweight\b|\bweigh|\bhow heavy\b", "重量|多重|净重"), r"[kmµ]?g\b|lbs?\b|oz\b|tonn?e?s?\b|克|吨|斤"),
    (
        _any(
            r"\bhow (?:high|tall|long|wide|deep|far|thick)\b|\b(?:height|length|width|depth|distance)\b",
            "多[高宽远深厚]|高度|长度|宽度|深度|距离",
        ),
        r"[kcmµ]?m\b|(?:kilo|centi|milli)?met(?:er|re)s?\b|miles?\b|feet\b|ft\b|inch|米|公里",
    ),
    (
        _any(
            r"\bhow much\b.*\b(?:cost|pay|paid|earns?|price|fee)|\b(?:price|cost|fee)\b",
            "价格|票价|费用|多少钱|售价|卖多少",
        ),
        r"[$€£¥￥]|元|USD|EUR|euros?|dollars?",
    ),
    (_any(r"\brates?\b|\binterest\b|\bmargin\b|\bgrowth\b", "利率|增长率|涨幅"), r"%|‰|per cent|percent|per \d|/"),
    (_any(r"\bcapacity\b.*\bbattery|\bbattery\b.*\bcapacity", "电池容量"), r"m?Ah\b|k?Wh\b"),
    (_any(r"\b(?:speed|how fast)\b", "速度|多快"), r"/s\b|/h\b|mph|per (?:second|hour)"),
    (_any(r"\bhow (?:large|big)\b.*\barea|\barea\b", "面积"), r"m²|km²|hectares?|ha\b|acres?|平方"),
)
#: A leading "Some report 2025:" or "ASVS 4.0.3 中，" says which document is meant, not which line of it.
_PREFIX = re.compile(r"^\s*([^:：?？]{3,60}[:：])\s*(?=\S)|^\s*([^，,。?？]{2,40}[中里内]，)")
_CLAUSE_BREAK = _any(
    r",?\s+and\s+(?=(?:(?:in|by|at|out of|on|for|to|from|with)\s+)?(?:what|which|how|who|when|where)\b)",
    r"[，；？?](?=.*\S)",
)

#: Words that say what kind of thing is asked for; pages seldom repeat them.
_TYPES = """percent percentage share year number score name average total answer question chart table figure page report document
slide according"""
_TYPE_WORDS = frozenset(stem(word) for word in _TYPES.split())
#: Units, which pages write in their own way, and words that say little.
_UNIT_WORDS = re.compile(
    r"\b(?:milli|bi|tri)?(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?|euros?|dollars?|pounds?|yuan|millions?|billions?|"
    r"people|persons?|percent|times|points?|[kmg]?wh?|tonn?e?s|degrees|met(?:er|re)s|things|items|ones?|money|time)\b",
    re.IGNORECASE,
)
_YEARS = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")


def analyse(text: str) -> Question:
    """Read a question in English or Chinese. Total: any string gives a question, if only one without terms."""
    text = " ".join(text.split())
    prefix = _PREFIX.match(text)
    head, body = (text[: prefix.end()], text[prefix.end() :]) if prefix else ("", text)
    if not terms(body, question=True):
        head, body = "", text
    weights: dict[str, float] = {}
    for term in terms(head, question=True):
        weights[term] = 0.2 * _weight(term)
    for term in terms(body, question=True):
        weights[term] = max(weights.get(term, 0.0), _weight(term))
    kind = _kind(body)
    plain = _NO_EXTREME.sub(" ", body)
    extreme = -1 if _LOWEST.search(plain) else 1 if _HIGHEST.search(plain) else 0
    if kind == "time" and not extreme:
        extreme = 1 if _LATEST.search(body) else -1 if _EARLIEST.search(body) else 0
    clauses = _clauses(body)
    if len(clauses) < 2 and kind not in ("year", "date", "text"):
        clauses = _per_year(body) or clauses
    first = clauses[0] if clauses else body
    asks_value = _ASKS_EXTREME_VALUE if extreme else _ASKS_VALUE
    names_item = bool(_NAMES.search(first)) and not asks_value.search(first)
    return Question(
        text=text,
        terms=tuple(Term(term, weight) for term, weight in weights.items() if weight > 0),
        kind=kind,
        unit=_unit(body),
        measure=next((units for asked, units in _MEASURES if asked.search(first)), ""),
        parts=2 if _BOTH.search(body) else min(3, max(1, len(clauses))),
        extreme=extreme,
        asked=_asked(body) if kind == "number" else (),
        names_item=names_item,
        chinese=is_cjk(text),
        clauses=tuple(clauses[:3]) if len(clauses) > 1 else (),
    )


def subquestions(question: Question) -> list[Question]:
    """One question per clause; each keeps the terms of the whole, at a lower weight. The question itself if it has no clauses."""
    found = []
    for clause in question.clauses:
        part = analyse(clause)
        if part.kind == "text" and not _NAMES.search(clause):  # "and for the others?", "……呢？"
            part = replace(part, kind=question.kind)
        own = {term.text: term.weight for term in part.terms}
        inherited = [Term(t.text, 0.5 * t.weight) for t in question.terms if t.text not in own]
        found.append(replace(part, terms=part.terms + tuple(inherited), chinese=question.chinese, parts=1, clauses=()))
    return found or [question]


def _weight(term: str) -> float:
    if term.isascii() and len(term) == 1 and not term.isdigit():
        return 0.0
    if term in _TYPE_WORDS:
        return 0.25
    if term[0].isdigit():
        return 1.2
    if not term.isascii():
        return 0.6 if len(term) > 1 else 0.3
    return 1.0


def _kind(body: str) -> Kind:
    if _YEAR.search(body):
        return "year"
    if _TIME.search(body):
        return "time"
    if _PERCENT.search(body) and not re.match(r"\s*(?:where|who)\b", body, re.I):
        return "percent"
    if _DURATION.search(body):
        return "duration"
    if _MONEY.search(body):
        return "money"
    if _YESNO.search(body):
        return "yesno"
    if _DATE.search(body):
        return "date"
    if _NUMBER.search(body):
        return "number"
    if _PERSON.search(body):
        return "person"
    if _PLACE.search(body):
        return "place"
    return "text"


def _unit(body: str) -> str:
    match = _UNIT.search(body)
    if not match:
        return ""
    words = terms(match.group(1))
    return words[-1] if words and words[-1].isalpha() else ""


def _asked(body: str) -> tuple[str, ...]:
    """The terms of what is counted or measured; nothing where the question does not name it, or names a unit."""
    match = _UNIT.search(body)
    if match:
        words = [] if _UNIT_WORDS.search(match.group(1)) else [term for term in terms(match.group(1)) if term.isalpha()]
        return tuple(words[-1:])
    if done := _DONE.search(body):
        return (stem(done[1].casefold()),)
    counted = _COUNTED.search(body)
    found = counted[1] if counted else next(iter(_MEASURED.findall(body)), "")
    runs = [run for run in HAN_FUNCTION_WORDS.split(found) if run]
    named = (runs[0] if counted else runs[-1]) if runs else ""
    return () if _GENERIC.search(named) else tuple(terms(named))


def _clauses(body: str) -> list[str]:
    """The clauses that ask something of their own: "which ..., and what ..."."""
    pieces = _CLAUSE_BREAK.split(body)
    clauses: list[str] = []
    pending = ""
    for piece in pieces:
        if _ASKS.search(piece):
            clauses.append((pending + " " + piece).strip())
            pending = ""
        elif clauses:
            clauses[-1] += " " + piece
        else:
            pending = f"{pending} {piece}".strip()
    return clauses


def _per_year(body: str) -> list[str]:
    """A question about several years, as one question per year: "in 2018, 2020 and 2022"."""
    years = list(dict.fromkeys(_YEARS.findall(body)))
    return [_of_year(body, year) for year in years] if 2 <= len(years) <= 3 else []


def _of_year(body: str, year: str) -> str:
    return _YEARS.sub(lambda match: year if match.group() == year else " ", body)
