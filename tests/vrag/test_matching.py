from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vrag.matching import RULE_JUDGES, anls, contains, exact, normalised, numbers, numeric


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  total: 1,234,567.50 USD.", "the total 1234567.50 usd"),
        ("16 %", "16%"),
        ("16 percent", "16%"),
        ("总 硬度 为 86 mg/L。", "总硬度为86 mg l"),
        ("ＡＢＣ１２", "abc12"),
        ("", ""),
    ],
)
def test_normalised(text: str, expected: str) -> None:
    assert normalised(text) == expected


@pytest.mark.parametrize(
    ("answer", "reference", "verdict"),
    [
        ("It was €63.00 in 2024.", "€63.00", True),
        ("163.00", "63.00", False),
        ("63.001", "63.00", False),
        ("about 16%", "16%", True),
        ("116%", "16%", False),
        ("水温是 98 °C", "98 °C", True),
        ("由北京市公布", "北京", True),
        ("anything", "", False),
        ("-5%", "5%", False),
        ("it fell by \u22125 %", "-5%", True),
        ("from 2019-2020 on", "2020", True),
    ],
)
def test_contains(answer: str, reference: str, verdict: bool) -> None:
    assert contains(answer, reference) is verdict


def test_numeric_wants_every_number() -> None:
    assert numeric("waited 31.02 min, target 5 min", "31.02 minutes; the target was 5.00 minutes")
    assert not numeric("waited 31.02 min", "31.02 minutes; the target was 5.00 minutes")
    assert numeric("Berlin it is", "Berlin")
    assert numbers("1,200 and 007 and 5.50") == ["1200", "7", "5.5"]
    assert numbers("-$3.50, 5-10, (-2), GPT-4") == ["-3.5", "5", "10", "-2", "4"]
    assert not numeric("-5", "5")


def test_anls_follows_its_definition() -> None:
    assert anls("hello", "hello") == 1
    assert anls("hallo", "hello") == pytest.approx(0.8)
    assert anls("xyz", "hello") == 0


@given(st.text(max_size=60), st.text(max_size=60))
def test_judges_are_total_and_agree(answer: str, reference: str) -> None:
    for judge in RULE_JUDGES.values():
        assert 0 <= float(judge(answer, reference)) <= 1
    if exact(answer, reference):
        assert contains(answer, reference)
        assert anls(answer, reference) == 1


@given(st.text(max_size=80))
def test_one_blank_between_words_and_none_around_them(text: str) -> None:
    said = normalised(text)
    assert said == " ".join(said.split())
    assert exact(f" {text}\n", text) is (said != "")
