from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.servers import Fault, Json, Scripted, ScriptedModel, serve
from vrag.errors import ConfigError, ModelError
from vrag.evaluation import evaluate, graded, judge, read_results, summary
from vrag.events import Answered, Citation, Event, Failed, Usage, ViewRef, ViewShown
from vrag.geometry import Box
from vrag.items import Item
from vrag.judge import JudgeSettings, ModelJudge, RuleJudge
from vrag.questions import Question, read_questions

PAGE = Item(id="report_3", kind="image", document="report.pdf", page=3, width=100, height=200)


def question(uid: str, answer: str | None = "42", pages: tuple[int, ...] = (3,)) -> Question:
    return Question.model_validate(
        {
            "uid": uid,
            "query": f"What of {uid}?",
            "reference_answer": answer,
            "meta_info": {"file_name": "report.pdf", "reference_page": list(pages)},
        }
    )


def events(text: str) -> list[Event]:
    view = ViewRef(item=PAGE, box=Box(0, 0, 100, 200), size=(100, 200))
    return [
        Usage(step=1, prompt_tokens=10, completion_tokens=2, images=0),
        ViewShown(step=1, view=view, source="search"),
        Usage(step=2, prompt_tokens=20, completion_tokens=2, images=1, image_pixels=20_000, image_bytes=900),
        Answered(step=2, text=text, reason="answer", citations=(Citation(item=PAGE, box=Box(1, 2, 3, 4)),)),
    ]


def test_judge_reads_answer_citation_and_cost() -> None:
    result = judge(question("a"), events("It is 42."), 1.5)
    assert result.scores == {"exact": 0.0, "contains": 1.0, "numeric": 1.0, "anls": 0.0}
    assert result.cited is True
    assert result.seen == 1.0
    assert (result.calls, result.images, result.image_pixels, result.image_bytes) == (2, 1, 20_000, 900)
    assert result.prompt_tokens == 30


def test_judge_of_other_pages_and_of_no_reference() -> None:
    other = judge(question("a", pages=(7,)), events("7"), 0.1)
    assert (other.cited, other.seen) == (False, 0.0)
    unknown = judge(question("b", answer=None, pages=()), events("nothing"), 0.1)
    assert (unknown.cited, unknown.seen, unknown.scores) == (None, None, {})


def test_evaluate_resumes_and_asks_broken_runs_again(tmp_path: Path) -> None:
    questions = [question(str(number)) for number in range(6)]
    asked: list[str] = []
    broken = {"4"}

    async def ask(one: Question) -> AsyncIterator[Event]:
        asked.append(one.uid)
        if one.uid == "5" and "5" in broken:
            raise ModelError("the model is not there")
        if one.uid in broken:
            yield Failed(text="down", reason="error")
            return
        for event in events("42" if one.uid != "1" else "7"):
            await asyncio.sleep(0)
            yield event

    path = tmp_path / "results.jsonl"
    first = asyncio.run(evaluate(questions[:3], ask, path, concurrency=2))
    assert [result.uid for result in first] == ["0", "1", "2"]
    with path.open("a", encoding="utf-8") as file:
        file.write('{"uid": "cut of')  # a killed run
    broken.add("5")
    second = asyncio.run(evaluate(questions, ask, path))
    assert sorted(asked) == ["0", "1", "2", "3", "4", "5"]
    assert [result.reason for result in second] == ["answer"] * 4 + ["error"] * 2
    figures = summary(second)
    assert figures["finish_rate"] == pytest.approx(4 / 6)
    assert figures["contains"] == pytest.approx(3 / 6)
    broken.clear()
    third = asyncio.run(evaluate(questions, ask, path))
    assert sorted(asked[6:]) == ["4", "5"]
    assert summary(third)["contains"] == pytest.approx(5 / 6)
    assert {result.uid for result in read_results(path) if result.finished} == set("012345")


def test_cancelling_keeps_what_is_done(tmp_path: Path) -> None:
    async def ask(one: Question) -> AsyncIterator[Event]:
        if one.uid == "1":
            await asyncio.Event().wait()
        for event in events("42"):
            yield event

    path = tmp_path / "results.jsonl"

    async def scenario() -> None:
        finished = asyncio.Event()
        task = asyncio.create_task(
            evaluate([question("0"), question("1")], ask, path, progress=lambda *_: finished.set())
        )
        await finished.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert [result.uid for result in read_results(path)] == ["0"]


def test_questions_of_both_published_forms(tmp_path: Path) -> None:
    rows = [
        {"uid": "a", "query": "?", "meta_info": {"file_name": "x.pdf", "reference_page": [1], "extra": 1}, "lang": "en"}
    ]
    whole, lines = tmp_path / "a.json", tmp_path / "a.jsonl"
    whole.write_text(json.dumps({"examples": rows}))
    lines.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert read_questions(whole) == read_questions(lines)
    assert read_questions(whole)[0].pages == {("x.pdf", 1)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"uid": "a", "query": "?"}\n{"uid": "b"}', "line 2: query"),
        ('{"uid": "a", "query": "?"}\n{"uid": "a", "query": "?"}', "line 2: the uid 'a' was given before"),
        ("{nonsense", "line 1: not JSON"),
        ('{"uid": "a", "query": ""}', "line 1: query"),
    ],
)
def test_bad_questions_are_named_by_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_questions(path)


def test_a_line_separator_in_a_text_ends_no_line(tmp_path: Path) -> None:
    questions, results = tmp_path / "q.jsonl", tmp_path / "results.jsonl"
    line = json.dumps({"uid": "0", "query": "one\u2028two", "reference_answer": "x"}, ensure_ascii=False)
    questions.write_text("\ufeff" + line + "\n", encoding="utf-8")
    (asked,) = read_questions(questions)
    results.write_text(judge(asked, events("x"), 0.1).model_dump_json() + "\n", encoding="utf-8")
    assert [one.query for one in read_results(results)] == ["one\u2028two"]


def test_one_more_judge_is_named_in_the_figures() -> None:
    results = [judge(question("a"), events("It is 42."), 1.0), judge(question("b"), events("7"), 1.0)]
    unknown = judge(question("c", answer=None), events("42"), 1.0)

    def script(body: Json) -> Scripted:
        text = body["messages"][0]["content"]
        return "<judge>True</judge>" if "It is 42." in text else Fault(500, {"error": {"message": "oops"}})

    with serve(ScriptedModel(script).app) as url:
        settings = JudgeSettings(base_url=f"{url}/v1", model="judge-7b", retries=0)
        with ModelJudge(settings) as model:
            some = asyncio.run(graded([*results, unknown], model))
    assert [result.scores.get("judge-7b") for result in some] == [1.0, None, None]
    figures = summary(some)
    assert (figures["judge judge-7b"], figures["judge judge-7b failed"]) == (1.0, 1)
    by_rule = asyncio.run(graded(results, RuleJudge("numeric")))
    assert summary(by_rule)["judge rule:numeric"] == 0.5
