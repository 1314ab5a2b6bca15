"""The VimRAG agent that people import: the published calls and events, and DashScope with everything that can go wrong."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from demo.vimrag_agent import VimRAG, main
from tests.dashscope_server import INSPECTED, KEY, LIMITED, MODEL, TOO_LONG, DashScope, Line, Refuses, Thinks
from tests.servers import (
    Fault,
    Say,
    Scripted,
    ScriptedModel,
    TinyRetriever,
    clip,
    dead_url,
    page,
    passage,
    pictures,
    serve,
)
from vrag.errors import ConfigError
from vrag.events import Answered, Delta, Event, Failed, GraphChanged, Memorized, Usage
from vrag.memory_graph import from_json
from vrag.records import FetchEntry, list_runs, read_record

ROOT = Path(__file__).resolve().parents[2]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SEARCH = call("add_search_node", id="wind", parent_ids=["root"], query="wind power")
KEEP = call(
    "summarize_and_memorize",
    summarize="Page 2 has it.",
    memorize=[
        {"information_id": "Picture 1", "is_useful": True, "key_timestamp": [], "priority_score": 5},
        {"information_id": "Picture 2", "is_useful": False, "key_timestamp": [], "priority_score": 1},
    ],
)
ANSWER = call("add_answer_node", parent_ids=["wind"], answer="42 MW")
SCRIPT = (SEARCH, KEEP, ANSWER)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("VRAG_", "DASHSCOPE_"))]:
        monkeypatch.delenv(name)


def corpus() -> TinyRetriever:
    return TinyRetriever([page("report_1", "solar power"), page("report_2", "wind power")])


@contextmanager
def services(*script: Scripted) -> Iterator[tuple[dict[str, str], ScriptedModel, TinyRetriever]]:
    model, retriever = ScriptedModel(script), corpus()
    with serve(model.app) as model_url, serve(retriever.app) as search_url:
        yield {"base_url": f"{model_url}/v1", "search_url": f"{search_url}/search"}, model, retriever


@contextmanager
def dashscope(*script: Line, retries: int = 0, **more: Any) -> Iterator[tuple[VimRAG, DashScope]]:
    """An agent that speaks to the server which plays DashScope. On loopback, the switch has to be named."""
    model = DashScope(script)
    with serve(model.app) as model_url, serve(corpus().app) as search_url:
        agent = VimRAG(
            base_url=f"{model_url}/compatible-mode/v1",
            search_url=f"{search_url}/search",
            **{"model_name": MODEL, "api_key": KEY, "thinking_switch": "dashscope", "retries": retries, **more},
        )
        yield agent, model


def both(agent: VimRAG, question: str = "How much wind power?") -> tuple[list[Event], list[Event]]:
    """The events of a blocking and of an async run."""

    async def awaited() -> list[Event]:
        return [event async for event in agent.astream(question)]

    return list(agent.stream(question)), asyncio.run(awaited())


# As published


def test_the_published_snippet() -> None:
    data = {"query": "How much wind power?", "id": 7, "tags": ["energy"]}
    before = copy.deepcopy(data)
    with services(*(Say(text, reasoning="Let me see.") for text in SCRIPT)) as (urls, model, _):
        agent = VimRAG(**urls, model_name="scripted", api_key="EMPTY", enable_thinking=True)
        events = list(agent.run(data))
    assert data == before
    kinds = list(dict.fromkeys(event["event"] for event in events))
    assert kinds == ["think", "content", "search", "search_done", "memorize", "answer"]
    told = {event["event"]: event for event in events}
    assert {name: set(event) for name, event in told.items()} == {
        "think": {"event", "content"},
        "content": {"event", "content"},
        "search": {"event", "query", "node_id"},
        "search_done": {"event", "results"},
        "memorize": {"event", "summary"},
        "answer": {"event", "content", "sample"},
    }
    assert (told["search"]["query"], told["search"]["node_id"]) == ("wind power", "wind")
    assert [hit["id"] for hit in told["search_done"]["results"]] == ["report_2", "report_1"]
    assert told["memorize"]["summary"] == "Page 2 has it."
    assert told["answer"]["content"] == "42 MW"
    assert "".join(event["content"] for event in events if event["event"] == "think") == "Let me see." * 3
    assert "".join(event["content"] for event in events if event["event"] == "content") == "".join(SCRIPT)
    assert model.requests[0]["model"] == "scripted"


def test_the_sample() -> None:
    data = {"query": "How much wind power?", "meta": {"id": 7}}
    with services(*SCRIPT) as (urls, _, _):
        *_, last = VimRAG(**urls, input_price=2.0, output_price=10.0).run(data)
    sample = last["sample"]
    assert set(sample) >= {"query", "meta", "trajectory", "search_results", "graph", "generate", "generate_times"}
    assert (sample["query"], sample["meta"], sample["generate"]) == (data["query"], {"id": 7}, "42 MW")
    assert sample["meta"] is not data["meta"]
    assert (sample["generate_times"], sample["reason"]) == (3, "answer")
    assert [node["id"] for node in sample["graph"]] == ["root", "wind", "answer"]
    assert sample["graph"][-1] == {"id": "answer", "parent_ids": ["wind"]}
    assert sample["graph"][1]["memory"][0]["id"] == "report_2"
    assert [turn["reply"] for turn in sample["trajectory"]] == list(SCRIPT)
    assert sample["search_results"][0]["query"] == "wind power"
    assert sample["citations"][0]["item"]["id"] == "report_2"
    usage = sample["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["images"]) == (300, 60, 3)
    assert usage["cost"] == pytest.approx((300 * 2 + 60 * 10) / 1e6)
    # Pictures by reference: all of it is small and goes into JSON.
    text = json.dumps(sample)
    assert "base64" not in text
    assert len(text) < 40_000


def test_the_published_options_and_their_defaults() -> None:
    options = inspect.signature(VimRAG).parameters
    assert {name: option.default for name, option in list(options.items())[3:10]} == {
        "api_key": "EMPTY",
        "max_pixels_image": 1_003_520,
        "max_pixels_video": 401_408,
        "memory_buffer_pixels": 2_007_040,
        "search_top_k": 3,
        "max_mem_steps": 20,
        "enable_thinking": True,
    }
    assert list(options)[:3] == ["base_url", "search_url", "model_name"]
    agent = VimRAG()
    assert (agent.fps_video, agent.max_frames_video) == (1.0, 32)
    options_of = agent.settings().vimrag_options()
    assert (options_of.max_steps, options_of.top_k, options_of.memory.pixels) == (20, 3, 2_007_040)
    assert agent.settings().max_tokens == 4096


def test_options_hold_and_may_be_changed_later() -> None:
    agent = VimRAG(max_mem_steps=5, memory_buffer_pixels=None, memory_preset="paper", memory_weighting="uniform")
    agent.max_frames_video = 8
    settings = agent.settings()
    assert (settings.max_steps, settings.max_frames) == (5, 8)
    memory = settings.vimrag_options().memory
    assert (memory.pixels, memory.bridge, memory.uniform) == (1_310_720, True, True)
    thinking, plain = VimRAG(enable_thinking=True).settings(), VimRAG(enable_thinking=False).settings()
    assert (thinking.temperature, thinking.top_p) == (0.6, 0.95)
    assert (plain.temperature, plain.top_p) == (0.0, None)
    assert VimRAG(enable_thinking=True, temperature=0.2).settings().temperature == 0.2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_mem_steps": 0}, "max_steps"),
        ({"search_top_k": "many"}, "top_k"),
        ({"memory_buffer_pixels": -1}, "memory_pixels"),
        ({"memory_presett": "paper"}, "did you mean 'memory_preset'"),
        ({"memory_preset": "mine"}, "memory_preset"),
        ({"base_url": "dashscope"}, "base_url"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        VimRAG(**wrong)


@pytest.mark.parametrize("data", [{}, {"query": None}, {"query": " "}, "question", None])
def test_a_question_is_needed(data: Any) -> None:
    with pytest.raises(ConfigError, match="question"):
        list(VimRAG().run(data))


def test_the_key_for_dashscope_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASHSCOPE_API_KEY", "sk-from-outside")
    url = "https://dashscope.aliyuncs.com/compatible-mode/v1"

    def key(**given: Any) -> str:
        return VimRAG(**given).settings().api_key.get_secret_value()

    assert key(base_url=url) == "sk-from-outside"
    assert key(base_url=url, api_key="sk-given") == "sk-given"
    assert key(base_url="http://127.0.0.1:8002/v1") == "EMPTY"
    assert key(base_url="https://aliyuncs.com.example.org/v1") == "EMPTY"
    monkeypatch.setenv("VRAG_API_KEY", "sk-of-ours")
    assert key(base_url=url) == "sk-of-ours"


def test_thinking_travels_as_the_endpoint_takes_it() -> None:
    with services(*SCRIPT) as (urls, model, _):
        list(VimRAG(**urls).stream("q"))
    assert {body["chat_template_kwargs"]["enable_thinking"] for body in model.requests} == {True}
    assert not any("enable_thinking" in body for body in model.requests)
    with dashscope(*SCRIPT, enable_thinking=False) as (agent, played):
        events = list(agent.stream("q"))
    assert {body["enable_thinking"] for body in played.requests} == {False}
    assert not any("chat_template_kwargs" in body for body in played.requests)
    assert not any(isinstance(event, Delta) and event.channel == "reasoning" for event in events)


# Events


def test_typed_events_blocking_and_async() -> None:
    with services(*SCRIPT, *SCRIPT) as (urls, model, _):
        blocking, awaited = both(VimRAG(**urls, memory_buffer_pixels=200_000))
    for events in (blocking, awaited):
        assert [event.type for event in events if not isinstance(event, Delta)] == [
            *("usage", "search", "graph", "results", "view", "view"),
            *("usage", "memory", "graph", "view"),
            *("usage", "graph", "answer"),
        ]
        last = events[-1]
        assert isinstance(last, Answered)
        assert [citation.item.id for citation in last.citations] == ["report_2"]
        graph, repairs = from_json([event.graph for event in events if isinstance(event, GraphChanged)][-1])
        assert (graph.critical_path(), repairs) == (("root", "wind"), ())
    # What is kept is sent at the size of the budget.
    assert [width * height <= 200_000 for width, height in pictures(model.requests[2])] == [True]


def test_text_and_video_through_the_service(tmp_path: Path) -> None:
    retriever = TinyRetriever([clip("harbour", "wind power"), passage("notes", "Wind power is 42 MW.")])
    keep = call(
        "summarize_and_memorize",
        summarize="Both say it.",
        memorize=[
            {"information_id": "Text 1", "is_useful": True, "priority_score": 5},
            {"information_id": "Video 1", "is_useful": True, "priority_score": 4, "key_timestamp": [2.2, 6]},
        ],
    )
    model = ScriptedModel([SEARCH, keep, ANSWER] * 2)
    with serve(model.app) as model_url, serve(retriever.app) as search_url:
        agent = VimRAG(base_url=f"{model_url}/v1", search_url=f"{search_url}/search", record_dir=tmp_path)
        for events in both(agent):
            kept = next(event for event in events if isinstance(event, Memorized)).kept
            assert [entry.get("timestamps") for entry in kept] == [None, [2.0, 6.0]]
            assert isinstance(events[-1], Answered)
    assert len(pictures(model.requests[1])) == 8
    assert len(pictures(model.requests[2])) == 2
    assert "Wind power is 42 MW." in json.dumps(model.requests[2])
    for summary in list_runs(tmp_path):
        fetched = [entry for entry in read_record(summary.path).entries if isinstance(entry, FetchEntry)]
        assert [(entry.item_id, entry.frames) for entry in fetched] == [("harbour", tuple(map(float, range(8))))]
        assert fetched[0].bytes > 8_000


def test_stop_and_close() -> None:
    with services(*SCRIPT) as (urls, model, _):
        events = list(VimRAG(**urls).stream("q", should_stop=lambda: len(model.requests) > 1))
        assert isinstance(events[-1], Failed)
        assert events[-1].reason == "stopped"
        run = VimRAG(**urls).run({"query": "q"})
        next(run)
        run.close()
        assert model.open == 0


def test_a_run_without_an_answer() -> None:
    with services(*[""] * 9) as (urls, _, _):
        events = list(VimRAG(**urls, max_mem_steps=2).run({"query": "q"}))
    assert [event["event"] for event in events] == ["max_steps"]
    assert "gave no answer in 4 turns" in events[0]["content"]


def test_a_forced_answer_is_an_answer() -> None:
    with services(SEARCH, KEEP, ANSWER) as (urls, _, _):
        *_, last = VimRAG(**urls, max_mem_steps=2).run({"query": "q"})
    assert (last["event"], last["sample"]["reason"]) == ("answer", "forced_answer")


@pytest.mark.parametrize("missing", ["base_url", "search_url"])
def test_a_service_that_is_not_there(missing: str) -> None:
    with services(SEARCH, SEARCH, SEARCH) as (urls, _, _):
        agent = VimRAG(**{**urls, missing: dead_url(), "model_name": "scripted", "retries": 0, "search_retries": 0})
        *_, last = agent.run({"query": "q"})
        blocking, awaited = both(agent)
    assert last["event"] == "error"
    assert "Nothing answers at" in last["content"]
    for events in (blocking, awaited):
        assert isinstance(events[-1], Failed)


def test_the_record_of_a_run(tmp_path: Path) -> None:
    with services(*SCRIPT) as (urls, _, _):
        list(VimRAG(**urls, api_key="sk-secret-key", record_dir=tmp_path).stream("How much?"))
    (summary,) = list_runs(tmp_path)
    record = read_record(summary.path)
    assert (record.header.agent, summary.reason, summary.answer) == ("vimrag", "answer", "42 MW")
    assert [entry.purpose for entry, _ in record.contexts()] == ["act", "memorize", "act"]
    assert [event.type for event in record.events if isinstance(event, GraphChanged | Memorized)] == [
        *("graph", "memory", "graph", "graph")
    ]
    text = summary.path.read_text("utf-8")
    assert "base64" not in text
    assert "sk-secret-key" not in text


# DashScope, and everything that can go wrong there


def test_a_run_on_dashscope() -> None:
    with dashscope(*SCRIPT, *SCRIPT) as (agent, model):
        for events in both(agent):
            thought = "".join(
                event.text for event in events if isinstance(event, Delta) and event.channel == "reasoning"
            )
            assert thought == "Let me see." * 3
            usages = [event for event in events if isinstance(event, Usage)]
            assert [(usage.prompt_tokens, usage.completion_tokens) for usage in usages] == [(1000, 50)] * 3
            assert isinstance(events[-1], Answered)
    assert all(body["enable_thinking"] is True for body in model.requests)
    assert all(body["stream_options"] == {"include_usage": True} for body in model.requests)
    assert all(body["temperature"] == 0.6 and body["max_tokens"] == 4096 for body in model.requests)


def test_native_tool_calls_on_dashscope() -> None:
    calls = [json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>")) for text in SCRIPT]
    script = [Thinks("", tool=(one["name"], one["arguments"])) for one in calls]
    with dashscope(*script, native_tools=True) as (agent, model):
        events = list(agent.stream("q"))
    assert isinstance(events[-1], Answered)
    assert events[-1].text == "42 MW"
    assert [len(body["tools"]) for body in model.requests] == [3] * 3
    roles = [turn["role"] for turn in model.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert model.requests[1]["messages"][3]["tool_call_id"] == "call_0123"


def test_a_limit_is_waited_for() -> None:
    with dashscope(LIMITED, SEARCH, KEEP, LIMITED, ANSWER, retries=1) as (agent, model):
        events = list(agent.stream("q"))
    assert isinstance(events[-1], Answered)
    assert len(model.requests) == 5


@pytest.mark.parametrize(
    ("script", "steps", "said"),
    [
        ([LIMITED], 0, "answered 429: You exceeded your current requests limit"),
        ([SEARCH, INSPECTED], 1, "reported an error: Input data may contain inappropriate content"),
        ([SEARCH, Thinks(KEEP, cut=True)], 1, "broke"),
        ([SEARCH, KEEP, TOO_LONG], 2, "answered 400: Range of input length should be [1, 129024]"),
        ([Refuses(500, "internal_error", "Internal server error.")], 0, "answered 500: Internal server error"),
    ],
)
def test_what_goes_wrong_at_dashscope_ends_in_its_words(script: Sequence[Line], steps: int, said: str) -> None:
    with dashscope(*script, *script) as (agent, _):
        for events in both(agent):
            last = events[-1]
            assert isinstance(last, Failed)
            assert (last.error, last.reason) == ("ModelError", "error")
            assert said in last.text
            # What was reached before it was seen.
            assert sum(isinstance(event, GraphChanged) for event in events) == steps


@pytest.mark.parametrize(
    ("given", "said"),
    [({"api_key": "sk-wrong"}, "Incorrect API key"), ({"model_name": "qwen-of-the-test"}, "does not exist")],
)
def test_a_wrong_key_and_a_wrong_model(given: dict[str, str], said: str) -> None:
    with dashscope(*SCRIPT, **given) as (agent, _):
        *_, last = agent.run({"query": "q"})
    assert last["event"] == "error"
    assert said in last["content"]
    assert "sk-wrong" not in last["content"]


# The command line


def test_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with services(*SCRIPT) as (urls, _, _):
        urls_given = ["--base-url", urls["base_url"], "--search-url", urls["search_url"]]
        assert main(["How much wind power?", *urls_given]) == 0
        shown = capsys.readouterr().out
    for said in ("search  wind power", "kept: report.pdf, page 2", "Answer: 42 MW", "Source: report.pdf, page 2"):
        assert said in shown
    assert main(["q", "--base-url", "nonsense"]) == 1
    assert "base_url" in capsys.readouterr().err


def test_as_a_script_from_anywhere(tmp_path: Path) -> None:
    with services(*SCRIPT) as (urls, _, _):
        environment = {**os.environ, "VRAG_BASE_URL": urls["base_url"], "VRAG_SEARCH_URL": urls["search_url"]}
        done = subprocess.run(
            [sys.executable, str(ROOT / "demo" / "vimrag_agent.py"), "How much wind power?", "--no-thinking"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "Answer: 42 MW" in done.stdout


def test_faults_of_any_server_are_events_too() -> None:
    fault = Fault(500, {"error": {"message": "The engine died."}})
    with services(SEARCH, fault, fault) as (urls, _, _):
        *_, last = VimRAG(**urls, retries=0).run({"query": "q"})
    assert last["event"] == "error"
    assert "The engine died" in last["content"]


def test_a_report_cites_what_the_run_kept() -> None:
    written = "# Wind power\n\n## Capacity\n\nThe wind farms have 42 MW [1]."
    with services(*(Say(text) for text in SCRIPT), Say(written)) as (urls, _, _):
        report = VimRAG(**urls, model_name="scripted", api_key="EMPTY").report("How much wind power?")
    assert report.written_by == "model"
    assert [section.title for section in report.sections] == ["Capacity"]
    assert report.unsupported == ()
    assert report.exhibits[0].item.id == "report_2"
