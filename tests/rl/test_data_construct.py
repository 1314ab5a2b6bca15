"""Demonstrations by experts over real connections: what is kept, what is dropped for which reason, how a run goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import resource
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
from vrag.errors import ConfigError, JudgeError, VragError
from vrag.geometry import Box
from vrag.judge import JudgeSettings, ModelJudge, RuleJudge
from vrag.records import read_record
from vrag.settings import ChatSettings, Settings
from vrag_agent.data.balance import balanced
from vrag_agent.data.construct import ATTEMPTS, DEMONSTRATIONS, REPORT, Construction, Plan, main
from vrag_agent.data.demonstration import Attempt, read_attempts
from vrag_agent.data.experts import Units, keep
from vrag_agent.data.formats import Example
from vrag_agent.data.rows import Dropped

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


def attempts(path: Path) -> list[Attempt]:
    """The attempts in a file without damage."""
    found = list(read_attempts(path))
    assert not [one for one in found if isinstance(one, Dropped)]
    return [one for one in found if isinstance(one, Attempt)]


def kept(output: Path) -> dict[str, Attempt]:
    return {attempt.id: attempt for attempt in attempts(output / DEMONSTRATIONS)}


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
    why = {attempt.id: attempt.reason for attempt in attempts(tmp_path / ATTEMPTS)}
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
    assert [(one.attempt, one.status) for one in attempts(tmp_path / ATTEMPTS)] == [(0, "dropped"), (1, "correct")]


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
    (failed,) = [one for one in attempts(tmp_path / ATTEMPTS) if one.status == "error"]
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
        assert (report["failed"], report["left"]) == ({"the judge failed": 1}, 1)
        (failed,) = attempts(tmp_path / ATTEMPTS)
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


HUGE = "<bbox>[10, 20, 1e308, 1e308]</bbox>"


@pytest.mark.parametrize("units", ["pixels", "thousandths"])
@pytest.mark.parametrize("guess", [CROP, f"<think>Small print.</think>{HUGE}"])
def test_any_number_of_a_model_is_a_region_in_the_picture(tmp_path: Path, units: Units, guess: str) -> None:
    grounder = ScriptedModel([HUGE])
    report, _ = run(tmp_path, {"a": [SEARCH, guess, ANSWER]}, grounder=grounder, plan=Plan(units=units))
    assert report["correct"] == 1
    asked = grounder.requests[0]["messages"][0]["content"][-1]["text"]
    box = kept(tmp_path)["a"].turns[1].displayed
    assert box is not None
    assert max(box.as_list()) <= 1000
    assert not re.search(r"\d{5}", asked)


def test_corners_in_another_order_are_sorted(tmp_path: Path) -> None:
    run(tmp_path, {"a": [SEARCH, CROP, ANSWER]}, grounder=ScriptedModel(["<bbox>[300, 200, 100, 100]</bbox>"]))
    assert kept(tmp_path)["a"].turns[1].displayed == Box(100, 100, 300, 200)


def test_a_page_with_a_long_name_is_kept(tmp_path: Path) -> None:
    name = keep(tmp_path, "\u62a5" * 90 + "_1", b"x")
    assert (tmp_path / name).read_bytes() == b"x"


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
        assert len(list(attempts(output / ATTEMPTS))) == 3
        with (output / ATTEMPTS).open("a") as file:
            file.write('{"id": "q3", "att')  # as a kill in the middle of a line leaves it
        slow.clear()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["correct"] == 6
    assert [one.id for one in attempts(output / ATTEMPTS)] == [f"q{n}" for n in range(6)]
    assert json.loads((output / REPORT).read_text())["chosen"] == 6


def test_a_damaged_attempt_is_counted_and_asked_again(tmp_path: Path) -> None:
    plays: Plays = {name: [SEARCH, ANSWER] for name in ("a", "b", "c")}
    run(tmp_path, plays, plan=Plan(concurrency=1))
    first, _, last = (tmp_path / ATTEMPTS).read_bytes().splitlines()
    (tmp_path / ATTEMPTS).write_bytes(first + b'\n{"id": "caf\xe9\n{}\n' + last + b"\n")
    report, model = run(tmp_path, plays)
    assert (report["damaged_attempts"], report["correct"], report["left"]) == (2, 3, 0)
    assert len(model.requests) == 2
    assert [one.place for one in read_attempts(tmp_path / ATTEMPTS) if isinstance(one, Dropped)] == [
        "attempts.jsonl, line 2",
        "attempts.jsonl, line 3",
    ]


def test_an_answer_belongs_to_its_question_and_not_to_its_id(tmp_path: Path) -> None:
    run(tmp_path, {"a": [SEARCH, ANSWER]})
    other = dataclasses.replace(example("b"), id="a")
    report, model = run(tmp_path, {"b": [SEARCH, CROP, ANSWER]}, examples=[other])
    assert (report["attempts"], len(model.requests)) == (1, 3)
    assert kept(tmp_path)["a"].question == "Question b?"
    corrected = dataclasses.replace(other, answer="7")
    report, model = run(tmp_path, {"b": [SEARCH, ANSWER]}, examples=[corrected])
    assert (report["dropped"], len(model.requests)) == ({"wrong answer": 1}, 2)
    assert not kept(tmp_path)


def write_questions(path: Path, *names: str) -> Path:
    rows = [
        {"id": name, "question": f"Question {name}?", "answer": "42", "file_name": "solar.pdf", "reference_page": [1]}
        for name in names
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(questions: Path, output: Path, url: str, search: str) -> list[str]:
    return [
        str(questions), "--output", str(output), "--base-url", f"{url}/v1", "--model", "m",
        "--search-url", f"{search}/search", "--judge", "contains", "--concurrency", "1",
    ]  # fmt: skip


def test_every_loss_is_in_the_report_and_in_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAG_RETRIES", "0")
    questions = write_questions(tmp_path / "train.jsonl", "good", "down", "good", "half")
    with questions.open("a") as file:
        file.write('{"id": "broken\n{"id": "x", "question": "Question x?", "answer": ""}\n')
    text = questions.read_text().replace("Question half?", "Question half? \\ud83d")
    questions.write_text(text)
    plays: Plays = {
        "good": [SEARCH, ANSWER],
        "half": [SEARCH, ANSWER],
        "down": [Fault(500, {"error": {"message": "x"}})],
    }
    with serve(ScriptedModel(player(plays)).app) as url, serve(pages().app) as search:
        assert main(command(questions, tmp_path / "out", url, search)) == 1
        said = capsys.readouterr()
        report = json.loads((tmp_path / "out" / REPORT).read_text())
        assert json.loads(said.out) == report
        assert "Questions left: 1" in said.err
        assert (report["questions"], report["correct"], report["left"]) == (3, 2, 1)
        assert report["failed"] == {"a service failed": 1}
        assert report["unusable"] == {"id used before": 1, "not JSON": 1, "no reference answer": 1}
        plays["down"] = [SEARCH, ANSWER]
        assert main(command(questions, tmp_path / "out", url, search)) == 0
    report = json.loads((tmp_path / "out" / REPORT).read_text())
    assert (report["failed"], report["left"], report["correct"]) == ({}, 0, 3)


def test_a_dead_endpoint_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAG_RETRIES", "0")
    questions = write_questions(tmp_path / "train.jsonl", *[f"n{number}" for number in range(12)])
    assert main(command(questions, tmp_path / "out", dead_url(), dead_url())) == 1
    report = json.loads((tmp_path / "out" / REPORT).read_text())
    assert (report["failed"], report["left"]) == ({"a service failed": 10}, 12)


def test_a_question_with_an_attempt_to_go_is_left(tmp_path: Path) -> None:
    plays: Plays = {"a": [SEARCH, "<think>x</think><answer>7</answer>"]}
    assert run(tmp_path, plays)[0]["left"] == 0
    down: Plays = {"a": [Fault(500, {"error": {"message": "x"}})]}
    assert run(tmp_path, down, plan=Plan(samples=2))[0]["left"] == 1


def test_a_full_disk_is_a_sentence_and_costs_nothing_that_was_written(tmp_path: Path) -> None:
    plays: Plays = {name: [SEARCH, ANSWER] for name in ("a", "b")}
    output = tmp_path / "out"
    with serve(ScriptedModel(player(plays)).app) as url, serve(pages().app) as search:
        assert main(command(write_questions(tmp_path / "one.jsonl", "a"), output, url, search)) == 0
        before = (output / ATTEMPTS).read_bytes()
        both = command(write_questions(tmp_path / "two.jsonl", "a", "b"), output, url, search)
        limit = len(before) + 100
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *both],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert f"{ATTEMPTS} cannot be written (File too large)" in done.stderr
        assert (output / ATTEMPTS).read_bytes() == before
        assert list(kept(output)) == ["a"]
        assert main(both) == 0
    assert list(kept(output)) == ["a", "b"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"concurrency": 0}, "concurrency has to be 1 or more, not 0"),
        ({"concurrency": -1}, "concurrency"),
        ({"samples": 0}, "samples"),
        ({"questions_limit": -1}, "questions_limit"),
        ({"limit": -1}, "limit"),
        ({"per_cell": 0}, "per_cell"),
        ({"guided": -1}, "guided"),
        ({"steps": (6, 2)}, "6-2"),
        ({"steps": (0, 2)}, "0-2"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Plan(**values)


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
