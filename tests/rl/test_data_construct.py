"""Demonstrations by experts over real connections: what is kept, what is dropped for which reason, how a run goes on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers import Fault, Json, Scripted, ScriptedModel, TinyRetriever, dead_url, page, serve
from vrag.errors import JudgeError, RecordError, VragError
from vrag.geometry import Box
from vrag.judge import JudgeSettings, ModelJudge, RuleJudge
from vrag.records import read_record
from vrag.settings import ChatSettings, Settings
from vrag_agent.data.balance import balanced
from vrag_agent.data.construct import ATTEMPTS, DEMONSTRATIONS, REPORT, Construction, Plan, main
from vrag_agent.data.demonstration import Attempt, read_attempts
from vrag_agent.data.formats import Example

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "VRAG-RL" / "scripts" / "data_construct_pipeline.py"

SEARCH = "<think>Where is it?</think><search>solar power</search>"
AGAIN = "<think>Another page.</think><search>wind power</search>"
CROP = "<think>Small print.</think><bbox>[10, 20, 200, 120]</bbox>"
ANSWER = "<think>I read it.</think><answer>42 MW</answer>"

Plays = dict[str, Sequence[Scripted]]


def example(name: str, answer: str = "42", page_number: int = 1) -> Example:
    return Example(
        id=name,
        question=f"Question {name}?",
        answer=answer,
        file_name="solar.pdf",
        reference_page=(page_number,),
        relevant_ids=(f"solar_{page_number}",),
        content_type="",
        reason_type="",
        split="train",
        data_source="mine",
        place=f"line {name}",
        source={},
    )


def player(plays: Plays) -> Callable[[Json], Scripted]:
    """A model that plays, for each question, its own list of replies, whichever comes first."""

    def script(body: Json) -> Scripted:
        content = body["messages"][0]["content"]
        first = content if isinstance(content, str) else content[-1]["text"]
        name = re.findall(r"Question: Question (\w+)\?", first)[-1]
        done = sum(turn["role"] == "assistant" for turn in body["messages"])
        return plays[name][min(done, len(plays[name]) - 1)]

    return script


def pages() -> TinyRetriever:
    return TinyRetriever([page("solar_1", "solar power"), page("wind_1", "wind power"), page("solar_2", "solar roof")])


def run(
    output: Path,
    plays: Plays,
    retriever: TinyRetriever | None = None,
    plan: Plan | None = None,
    examples: Sequence[Example] = (),
    judge: Any = None,
    grounder: ScriptedModel | None = None,
) -> tuple[dict[str, Any], ScriptedModel]:
    model = ScriptedModel(player(plays))
    with serve(model.app) as url, serve((retriever or pages()).app) as search:
        values: dict[str, Any] = {"base_url": f"{url}/v1", "model": "scripted", "retries": 0, "max_steps": 5}
        made = Settings(**values, search_url=f"{search}/search", search_retries=0)
        rows = list(examples) or [example(name) for name in plays]
        judge = judge or RuleJudge("contains")
        if grounder is None:
            report = asyncio.run(Construction(rows, output, made, judge, plan or Plan()).run())
        else:
            with serve(grounder.app) as where:
                other = ChatSettings(base_url=f"{where}/v1", model="grounder", retries=0)
                report = asyncio.run(Construction(rows, output, made, judge, plan or Plan(), other).run())
    return report, model


def kept(output: Path) -> dict[str, Attempt]:
    return {attempt.id: attempt for attempt in read_attempts(output / DEMONSTRATIONS)}


def test_a_correct_run_is_kept_with_where_it_comes_from(tmp_path: Path) -> None:
    report, _ = run(tmp_path, {"a": [SEARCH, CROP, ANSWER]})
    assert (report["correct"], report["chosen"], report["cells"]) == (1, 1, {"3 turns, with crop": 1})
    attempt = kept(tmp_path)["a"]
    search, crop, answer = attempt.turns
    assert (search.action, search.query, [item.id for item in search.shown]) == ("search", "solar power", ["solar_1"])
    assert (crop.action, crop.item_id, crop.thought) == ("crop", "solar_1", "Small print.")
    assert crop.displayed == Box(10, 20, 200, 120)
    assert crop.page_box is not None
    assert crop.page_box.x2 == pytest.approx(200 * 800 / 566, rel=0.01)
    assert (answer.action, answer.text) == ("answer", "42 MW")
    assert (attempt.score, attempt.judge, attempt.ndcg) == (1.0, "rule:contains", 1.0)
    assert attempt.experts["decides"]["model"] == "scripted"
    assert (tmp_path / attempt.pages["solar_1"]).read_bytes().startswith(b"\xff\xd8")
    record = read_record(tmp_path / attempt.record)
    assert record.question == "Question a?"
    assert record.outcome is not None
    assert record.outcome.answer == "42 MW"


def test_every_drop_has_its_reason(tmp_path: Path) -> None:
    nonsense = "I do not know."
    plays: Plays = {
        "wrong": [SEARCH, "<think>x</think><answer>7</answer>"],
        "direct": ["<think>I know.</think><answer>42</answer>"],
        "invalid": [nonsense, SEARCH, ANSWER],
        "nothing": [SEARCH, SEARCH, SEARCH, SEARCH, ANSWER],
        "forced": [SEARCH, CROP, CROP, CROP, CROP, ANSWER],
        "never": [SEARCH, *["<search></search>"] * 8],
        "thoughtless": [SEARCH, "<answer>42</answer>"],
        "unseen": [AGAIN, ANSWER],
        "good": [SEARCH, ANSWER],
    }
    retriever = TinyRetriever([page("solar_1", "solar power"), page("wind_1", "wind power")])
    retriever.entries["wind_1"].words = "wind wind power"
    report, _ = run(tmp_path, plays, retriever)
    why = {attempt.id: attempt.reason for attempt in read_attempts(tmp_path / ATTEMPTS)}
    assert why == {
        "wrong": "wrong answer",
        "direct": "no search",
        "invalid": "an action could not be used",
        "nothing": "a search brought nothing new",
        "forced": "the answer had to be asked for (forced_answer)",
        "never": why["never"],
        "thoughtless": "a turn without a thought",
        "unseen": "right without having seen a reference page",
        "good": "",
    }
    assert why["never"].startswith(("no answer", "the answer had to be asked for"))
    assert report["dropped"]["wrong answer"] == 1
    assert sum(report["dropped"].values()) == 8
    assert list(kept(tmp_path)) == ["good"]


def test_lengths_are_limited(tmp_path: Path) -> None:
    report, _ = run(tmp_path, {"long": [SEARCH, CROP, CROP, ANSWER], "ok": [SEARCH, ANSWER]}, plan=Plan(steps=(2, 3)))
    assert report["dropped"] == {"not 2 to 3 turns long": 1}


def test_a_wrong_answer_is_tried_again_and_a_right_one_is_not(tmp_path: Path) -> None:
    tries: dict[str, int] = {}

    def script(body: Json) -> Scripted:
        done = sum(turn["role"] == "assistant" for turn in body["messages"])
        if done == 0:
            tries["a"] = tries.get("a", 0) + 1
            return SEARCH
        return ANSWER if tries["a"] == 2 else "<think>x</think><answer>7</answer>"

    model = ScriptedModel(script)
    with serve(model.app) as url, serve(pages().app) as search:
        made = Settings(base_url=f"{url}/v1", model="m", search_url=f"{search}/search")
        plan = Plan(samples=5)
        asyncio.run(Construction([example("a")], tmp_path, made, RuleJudge("contains"), plan).run())
    assert [(one.attempt, one.status) for one in read_attempts(tmp_path / ATTEMPTS)] == [(0, "dropped"), (1, "correct")]


def test_a_second_run_asks_only_what_is_missing(tmp_path: Path) -> None:
    first, model = run(tmp_path, {"a": [SEARCH, ANSWER], "b": [SEARCH, "<think>x</think><answer>7</answer>"]})
    asked = len(model.requests)
    plays: Plays = {"a": [SEARCH, ANSWER], "b": [SEARCH, ANSWER], "c": [SEARCH, CROP, ANSWER]}
    second, model = run(tmp_path, plays)
    assert asked == 4
    assert len(model.requests) == 3  # c alone: b was wrong, and that stands
    assert (first["correct"], second["correct"], second["attempts"]) == (1, 2, 3)


def test_a_service_that_fails_makes_no_attempt(tmp_path: Path) -> None:
    fault = Fault(500, {"error": {"message": "out of memory"}})
    report, _ = run(tmp_path, {"a": [SEARCH, fault], "b": [SEARCH, ANSWER]})
    assert (report["attempts"], report["correct"]) == (1, 1)
    (failed,) = [one for one in read_attempts(tmp_path / ATTEMPTS) if one.status == "error"]
    assert "out of memory" in failed.detail
    report, _ = run(tmp_path, {"a": [SEARCH, ANSWER], "b": [SEARCH, ANSWER]})
    assert (report["attempts"], report["correct"]) == (2, 2)


def test_ten_failures_in_a_row_end_the_run_and_keep_what_is_done(tmp_path: Path) -> None:
    run(tmp_path, {"good": [SEARCH, ANSWER]})
    examples = [example("good"), *[example(f"n{number}") for number in range(20)]]
    made = Settings(base_url=f"{dead_url()}/v1", model="m", retries=0, search_url=f"{dead_url()}/search")
    construction = Construction(examples, tmp_path, made, RuleJudge("contains"))
    with pytest.raises(VragError, match=r"10 attempts in a row failed.*Nothing answers.*same command again"):
        asyncio.run(construction.run())
    assert list(kept(tmp_path)) == ["good"]


def test_a_judge_that_fails_makes_no_attempt_and_ends_the_run_in_the_end(tmp_path: Path) -> None:
    down = JudgeSettings(base_url=f"{dead_url()}/v1", model="j", retries=0, failure_limit=0.5)
    with ModelJudge(down) as judge:
        report, _ = run(tmp_path, {"a": [SEARCH, ANSWER]}, judge=judge)
        assert report == {}
        (failed,) = read_attempts(tmp_path / ATTEMPTS)
        assert (failed.status, failed.reason) == ("error", "the judge failed")
        names = [f"n{number}" for number in range(12)]
        with pytest.raises((JudgeError, VragError), match=r"failed|Nothing answers"):
            run(tmp_path, {name: [SEARCH, ANSWER] for name in names}, judge=judge)


def test_the_grounding_model_says_where(tmp_path: Path) -> None:
    grounder = ScriptedModel(["<bbox>[100, 100, 300, 200]</bbox>"])
    run(tmp_path, {"a": [SEARCH, CROP, ANSWER]}, grounder=grounder)
    crop = kept(tmp_path)["a"].turns[1]
    assert crop.displayed == Box(100, 100, 300, 200)
    assert crop.relocated_from == Box(10, 20, 200, 120)
    (asked,) = grounder.requests
    assert "Small print." in asked["messages"][0]["content"][-1]["text"]
    assert kept(tmp_path)["a"].experts["grounds"]["model"] == "grounder"


def test_a_grounding_model_may_count_in_thousandths(tmp_path: Path) -> None:
    grounder = ScriptedModel(["<bbox>[0, 0, 500, 500]</bbox>"])
    run(tmp_path, {"a": [SEARCH, CROP, ANSWER]}, grounder=grounder, plan=Plan(units="thousandths"))
    box = kept(tmp_path)["a"].turns[1].page_box
    assert box is not None
    assert (box.x2, box.y2) == (pytest.approx(400, abs=2), pytest.approx(500, abs=2))


@pytest.mark.parametrize("nonsense", ["somewhere", "<bbox>[900, 900, 2000, 2000]</bbox>", "<search>x</search>"])
def test_a_grounding_model_that_talks_nonsense_changes_nothing(tmp_path: Path, nonsense: str) -> None:
    run(tmp_path, {"a": [SEARCH, CROP, ANSWER]}, grounder=ScriptedModel([nonsense]))
    crop = kept(tmp_path)["a"].turns[1]
    assert (crop.displayed, crop.relocated_from) == (Box(10, 20, 200, 120), None)


def test_guided_retrieval_shows_reference_pages_first(tmp_path: Path) -> None:
    plays: Plays = {"a": [AGAIN, ANSWER]}
    retriever = TinyRetriever([page("wind_1", "wind power"), page("solar_1", "power"), page("solar_2", "x")])
    run(tmp_path, plays, retriever, Plan(guided=10))
    attempt = kept(tmp_path)["a"]
    assert [item.id for item in attempt.turns[0].shown] == ["solar_1"]
    assert attempt.experts["guided"] == 10


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """A real SIGKILL in the middle, then the same command again."""
    questions = tmp_path / "train.jsonl"
    rows = [
        {"id": f"q{n}", "question": f"Question q{n}?", "answer": "42", "file_name": "solar.pdf", "reference_page": [1]}
        for n in range(6)
    ]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plays: Plays = {f"q{n}": [SEARCH, ANSWER] for n in range(6)}
    slow: set[str] = {"q3", "q4", "q5"}

    def script(body: Json) -> Scripted:
        said = player(plays)(body)
        text = json.dumps(body["messages"][0])
        return Fault(delay=60) if any(f"Question {name}?" in text for name in slow) else said

    output = tmp_path / "out"
    with serve(ScriptedModel(script).app) as url, serve(pages().app) as search:
        command = [sys.executable, str(SCRIPT), str(questions), "--output", str(output), "--base-url", f"{url}/v1"]
        command += ["--model", "m", "--search-url", f"{search}/search", "--judge", "contains", "--concurrency", "1"]
        child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ)
        try:
            for _ in range(600):
                if (output / ATTEMPTS).exists() and len((output / ATTEMPTS).read_bytes().splitlines()) >= 3:
                    break
                assert child.poll() is None, child.stderr and child.stderr.read()
                time.sleep(0.05)
        finally:
            child.send_signal(signal.SIGKILL)
            child.communicate()
        assert len(list(read_attempts(output / ATTEMPTS))) == 3
        with (output / ATTEMPTS).open("a") as file:
            file.write('{"id": "q3", "att')  # as a kill in the middle of a line leaves it
        slow.clear()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["correct"] == 6
    assert [one.id for one in read_attempts(output / ATTEMPTS)] == [f"q{n}" for n in range(6)]
    assert json.loads((output / REPORT).read_text())["chosen"] == 6


def test_damage_in_the_middle_of_the_attempts_is_named(tmp_path: Path) -> None:
    (tmp_path / ATTEMPTS).write_text("{}\n")
    with pytest.raises(RecordError, match="line 1"):
        list(read_attempts(tmp_path / ATTEMPTS))


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": ""}\n')
    assert main([str(questions), "--output", str(tmp_path / "o"), "--judge", "exact"]) == 1
    assert "holds no question that can be used" in capsys.readouterr().err
    assert main([str(questions), "--output", str(tmp_path / "o"), "--judge", "exact", "--steps", "many"]) == 1
    assert "LEAST-MOST" in capsys.readouterr().err


@settings(max_examples=80, deadline=None)
@given(
    cells=st.lists(st.integers(0, 4), max_size=40),
    limit=st.none() | st.integers(0, 30),
    per_cell=st.none() | st.integers(1, 6),
    seed=st.integers(0, 5),
)
def test_balance(cells: list[int], limit: int | None, per_cell: int | None, seed: int) -> None:
    items = list(enumerate(cells))
    chosen = balanced(items, lambda item: item[1], limit, per_cell, seed)
    assert chosen == sorted(set(chosen))
    counts = {cell: sum(item[1] == cell for item in chosen) for cell in set(cells)}
    room = {cell: min(cells.count(cell), per_cell or len(cells)) for cell in counts}
    assert len(chosen) == min(sum(room.values()), limit if limit is not None else len(cells))
    # As even as can be: a cell that could give more has at most one less than the fullest.
    most = max(counts.values(), default=0)
    assert all(counts[cell] >= most - 1 for cell in counts if counts[cell] < room[cell])
    assert chosen == balanced(items, lambda item: item[1], limit, per_cell, seed)
