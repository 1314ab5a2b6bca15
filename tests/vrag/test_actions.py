"""The tag grammar: what a reply means, whatever it is."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vrag.actions import (
    MAX_ANSWER_CHARS,
    MAX_QUERY_CHARS,
    MAX_THOUGHT_CHARS,
    Action,
    Answer,
    Crop,
    Invalid,
    Search,
    clean,
    parse_tags,
    plain_text,
)
from vrag.geometry import Box


@pytest.mark.parametrize(
    ("reply", "thought", "action"),
    [
        ("<think>a</think>\n<search>pie charts</search>", "a", Search("pie charts")),
        ("<think>\nb\n</think>\n<bbox>[1, 2.5, 30, 40]</bbox>", "b", Crop(Box(1, 2.5, 30, 40))),
        ("<think>c</think><answer> Beijing </answer>", "c", Answer("Beijing")),
        # Another hand: no thought, capitals, the paper's tag, lines, words around it.
        ("<search>q</search>", "", Search("q")),
        ("Let me look.\n<Search>q</SEARCH> and wait", "Let me look.", Search("q")),
        ("<region>[1,2,3,4]</region>", "", Crop(Box(1, 2, 3, 4))),
        ("<answer>two\nlines</answer>", "", Answer("two\nlines")),
        ("the thought</think><answer>x</answer>", "the thought", Answer("x")),
        # Two actions: the first complete one.
        ("<search>a</search><answer>b</answer>", "", Search("a")),
        ("<search>a <answer>b</answer>", "<search>a".replace("<search>", ""), Answer("b")),
        ("<search>a<answer>b</answer></search>", "", Search("a b")),
        ("<answer><answer>x</answer></answer>", "", Answer("x")),
        # A thought weighs actions; what comes after it counts.
        ("<think>not <answer>7</answer> yet</think><search>q</search>", "not  7  yet", Search("q")),
        ("<think>not <answer>7</answer> yet</think><search>q", "not  7  yet", Search("q")),
        ("<think>so <search>q</search></think>", "so  q", Search("q")),
        # Unclosed.
        ("<think>a</think>\n<answer>42", "a", Answer("42")),
        ("<think>a\n<search>q", "a", Search("q")),
        ("<bbox>[1, 2, 3, 4]", "", Crop(Box(1, 2, 3, 4))),
        ("<answer>one\n<answer>two", "one", Answer("two")),
        # Chinese, and brackets as other models write them.
        ("<think>想</think><search>销售额 2023</search>", "想", Search("销售额 2023")),
        ("<bbox>10 20 30 40</bbox>", "", Crop(Box(10, 20, 30, 40))),
        ("<bbox>(10, 20), (30, 40)</bbox>", "", Crop(Box(10, 20, 30, 40))),
        ('<bbox>["10", "20", "30", "40"]</bbox>', "", Crop(Box(10, 20, 30, 40))),
        ("<bbox>[10, 20, 30, 40,]</bbox>", "", Crop(Box(10, 20, 30, 40))),
        ("<bbox>[30, 40, 10, -20]</bbox>", "", Crop(Box(30, 40, 10, -20))),
    ],
)
def test_what_a_reply_means(reply: str, thought: str, action: Action) -> None:
    assert parse_tags(reply) == (thought, action)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "empty"),
        (" \n ", "empty"),
        ("I do not know.", "no action"),
        ("<think>only this</think>", "no action"),
        ("I am not ready for an <answer> yet.", "no action"),
        ("</search></answer>", "no action"),
        ("<search> \n</search>", "no words"),
        ("<answer></answer>", "answer is empty"),
        ("<answer><|im_end|></answer>", "answer is empty"),
        ("<bbox></bbox>", "four numbers"),
        ("<bbox>[1, 2, 3]</bbox>", "There are 3"),
        ("<bbox>[1, 2, 3, 4, 5]</bbox>", "There are 5"),
        ("<bbox>[NaN, 2, 3, 4]</bbox>", "finite"),
        ("<bbox>[1, 2, 3, Infinity]</bbox>", "finite"),
        ("<bbox>[1, 2, 3, 1e999]</bbox>", "finite"),
        ("<bbox>the table on the left</bbox>", "four numbers"),
        ("<bbox>[a, b, c, d]</bbox>", "four numbers"),
        ('<bbox>{"x1": 1, "y1": 2, "x2": 3, "y2": 4}</bbox>', "four numbers"),
        ("<bbox>" + "9" * 1_000_000 + "</bbox>", "four numbers"),
    ],
)
def test_what_cannot_be_used_says_why(reply: str, reason: str) -> None:
    action = parse_tags(reply)[1]
    assert isinstance(action, Invalid)
    assert reason in action.reason


@pytest.mark.parametrize(
    "marker",
    ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|endoftext|>", "<|eot_id|>", "</s>", "[INST]", "<｜User｜>"],
)
def test_chat_markers_never_leave_the_parser(marker: str) -> None:
    for forged in (marker, marker.upper(), marker[:3] + marker + marker[3:]):
        _, search = parse_tags(f"<search>a {forged}user b</search>")
        thought, answer = parse_tags(f"<think>x{forged}</think><answer>42{forged}system</answer>")
        assert isinstance(search, Search)
        assert isinstance(answer, Answer)
        for text in (search.query, thought, answer.text):
            assert marker.lower() not in text.lower()


def test_control_characters_and_surrogates_are_dropped() -> None:
    action = parse_tags("<answer>a\x00b\x1b[31mc \ud800 d\te\nf</answer>")[1]
    assert action == Answer("a b [31mc \ufffd d\te\nf")
    assert parse_tags("<search>a\n\t b\r\n c</search>")[1] == Search("a b c")


def test_lengths_are_bounded() -> None:
    long = "word " * 200_000
    assert len(parse_tags(f"<search>{long}</search>")[1].query) <= MAX_QUERY_CHARS  # type: ignore[union-attr]
    assert len(parse_tags(f"<answer>{long}</answer>")[1].text) <= MAX_ANSWER_CHARS  # type: ignore[union-attr]
    assert len(parse_tags(f"<think>{long}</think>")[0]) <= MAX_THOUGHT_CHARS


@pytest.mark.parametrize(
    "piece",
    ["<answer>", "</answer>", "<think>", "<search>x</answer>", "<", "<|", "<|a", "[/", "<bbox>[", "\n<search>", " "],
)
def test_a_megabyte_of_anything_has_an_action(piece: str) -> None:
    # A pattern that backtracks would take hours over these, not the second that they take.
    reply = piece * (1_000_000 // len(piece))
    _, action = parse_tags(reply)
    assert isinstance(action, Search | Crop | Answer | Invalid)
    plain_text(reply)


_PIECES = ["<think>", "</think>", "<search>", "</search>", "<bbox>", "</bbox>", "<answer>", "</answer>", "<region>"]
_PIECES += ["[1,2,3,4]", "[", "nan", "<|im_start|>", "\x00", "\n", " word ", "{question}", "</", "<", "字", "\ud83d"]
soup = st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=8)), max_size=30).map("".join)


@settings(max_examples=300, deadline=None)
@given(soup)
@example("<think><search></think></search>")
def test_any_string_has_a_thought_and_an_action(reply: str) -> None:
    thought, action = parse_tags(reply)
    texts = [thought, plain_text(reply)]
    match action:
        case Search(query):
            assert query == query.strip() != ""
            assert "\n" not in query
            texts.append(query)
        case Answer(text):
            assert text == text.strip() != ""
            assert plain_text(reply) == text
            texts.append(text)
        case Crop(box):
            assert all(map(math.isfinite, box.as_list()))
        case Invalid(reason):
            assert reason
    for text in texts:
        text.encode("utf-8")
        assert "<|im_start|>" not in text
        assert not any(tag in text for tag in _PIECES[:9])


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="<>[]|｜"), min_size=1, max_size=80))
def test_a_well_formed_reply_is_read_back_exactly(text: str) -> None:
    words = " ".join(text.split())
    if words:
        assert parse_tags(f"<think>t</think>\n<search>{text}</search>") == ("t", Search(words))
    if text.strip():
        assert parse_tags(f"<think>t</think>\n<answer>{text}</answer>") == ("t", Answer(text.strip()))


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("It is 42.", "It is 42."),
        ("<think>sums</think>\nIt is 42.", "It is 42."),
        ("<think>sums</think> <answer>42</answer> then more", "42"),
        ("<search>more</search>", ""),
        ("It is 42. <search>more</search> Yes.", "It is 42.   Yes."),
        ("It is 42. <bbox>[1, 2", "It is 42."),
        ("<think>only a thought</think>", ""),
        ("<think>never closed", "never closed"),
    ],
)
def test_plain_text_is_what_is_left(reply: str, text: str) -> None:
    assert plain_text(reply) == text


def test_cleaning_twice_changes_nothing() -> None:
    generator = random.Random(7)
    for _ in range(300):
        text = "".join(generator.choices(["<|", "|>", "im_start", "<|a|>", " ", "[", "INST]", "</s", ">", "x"], k=12))
        assert clean(clean(text)) == clean(text)
