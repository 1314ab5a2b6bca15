"""The baseline without a memory: its prompts grow, its pictures stay, and it always ends."""

from __future__ import annotations

import pytest

from tests.vrag.test_vimrag_episode import Driver, answer, judge, native, page, search
from vrag.episode import Outcome
from vrag.react_episode import ReactEpisode
from vrag.vimrag_options import VimragOptions

BY_QUERY = {"sales by year": [page(1), page(2)], "costs by year": [page(2), page(3)], "rain by year": [page(1)]}


def run(*replies: object, **options: object) -> tuple[Driver, Outcome]:
    driver = Driver(list(replies), hits=BY_QUERY.__getitem__, make=ReactEpisode)  # type: ignore[arg-type]
    return driver, driver.run("What were the sales?", VimragOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("tools", [False, True])
def test_everything_stays_at_full_size(tools: bool) -> None:
    replies = [search("sales"), search("costs"), search("rain"), answer()]
    driver, outcome = run(*map(native, replies) if tools else replies, native_tools=tools)
    assert (outcome.answer, outcome.reason, outcome.steps) == ("42", "answer", 4)
    assert outcome.shown == ("report_1", "report_2", "report_3")
    pictures = [
        [(view.item.id, view.pixels) for turn in request.messages for view in turn.views] for request in driver.requests
    ]
    full = 900 * 1200 * 0.9  # less only for the limit of a picture
    assert [[name for name, _ in shown] for shown in pictures] == [
        [],
        ["report_1", "report_2"],
        ["report_1", "report_2", "report_3"],
        ["report_1", "report_2", "report_3"],
    ]
    assert all(pixels > full for shown in pictures for _, pixels in shown)
    # What was said is never taken back: every prompt begins with the one before it.
    for before, after in zip(driver.requests, driver.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
    assert "brought nothing that was not before you already: report.pdf, page 1" in driver.last_turn().text
    # It rests on what the last search brought that brought anything.
    assert [citation.item.id for citation in outcome.citations] == ["report_3"]


def test_only_its_own_tools_are_offered() -> None:
    driver, _ = run(search("sales"), answer())
    said = "".join(turn.text for turn in driver.requests[-1].messages)
    assert "summarize_and_memorize" not in said
    assert "parent_ids" not in said.replace(search("sales"), "")
    driver, _ = run(native(search("sales")), native(answer()), native_tools=True)
    assert [tool["function"]["name"] for tool in driver.requests[0].tools] == ["add_search_node", "add_answer_node"]  # type: ignore[index]


def test_a_judgement_is_corrected_and_the_limit_holds() -> None:
    driver, outcome = run(search("sales"), judge("Picture 1"), search("costs"), answer(), max_steps=3)
    assert "There is no search result to judge." in driver.notes
    assert "add_search_node or add_answer_node" in driver.requests[2].messages[-1].text
    assert (outcome.answer, outcome.reason) == ("42", "forced_answer")
    assert len(driver.requests[-1].messages) > len(driver.requests[1].messages)
