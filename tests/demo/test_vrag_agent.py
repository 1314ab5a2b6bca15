"""The agent that people import: the published calls, the typed events, and what it does when something is missing."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from demo.vrag_agent import VRAG, main
from tests.servers import Fault, Say, Scripted, ScriptedModel, TinyRetriever, dead_url, page, pictures, serve
from vrag.errors import ConfigError, ModelError, RetrieverError
from vrag.events import Answered, Delta, Failed, Usage
from vrag.records import list_runs, read_record
from vrag.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = (
    "<think>I need the page.</think><search>wind power</search>",
    "<think>Too small.</think><bbox>[10, 20, 300, 200]</bbox>",
    "<think>There.</think><answer>42 MW</answer>",
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("VRAG_")]:
        monkeypatch.delenv(name)


@contextmanager
def services(*script: Scripted) -> Iterator[tuple[dict[str, str], ScriptedModel, TinyRetriever]]:
    """Both services; the URLs are given as in the published snippet, at 0.0.0.0."""
    model = ScriptedModel(script)
    retriever = TinyRetriever([page("report_1", "solar power"), page("report_2", "wind power")])
    with serve(model.app) as model_url, serve(retriever.app) as search_url:
        urls = {"base_url": f"{model_url}/v1", "search_url": f"{search_url}/search"}
        yield {name: url.replace("127.0.0.1", "0.0.0.0") for name, url in urls.items()}, model, retriever


def test_the_published_snippet() -> None:
    with services(*SCRIPT) as (urls, model, _):
        vrag = VRAG(base_url=urls["base_url"], search_url=urls["search_url"], generator=False, api_key="EMPTY")
        answer = vrag.run("How much wind power?")
    assert answer == "42 MW"
    assert model.requests[0]["model"] == "scripted"  # the one that is served
    assert list(inspect.signature(VRAG).parameters)[:4] == ["base_url", "search_url", "generator", "api_key"]
    assert model.requests[0]["messages"][0]["content"].endswith("Question: How much wind power?")


class Watched:
    """What a generator yields, and its value at the end."""

    def __init__(self, run: Generator[Any, None, Any]) -> None:
        self.value: Any = None
        self.steps = list(self._through(run))

    def _through(self, run: Generator[Any, None, Any]) -> Iterator[Any]:
        self.value = yield from run


def test_the_published_tuples() -> None:
    with services(*SCRIPT) as (urls, model, retriever):
        run = VRAG(**urls, generator=True).run("How much wind power?")
        assert inspect.isgenerator(run)
        watched = Watched(run)
        seen = pictures(model.requests[-1])
    assert watched.value == "42 MW"
    assert [kind for kind, _ in watched.steps] == [
        *["think", "search", "search_image"],
        *["think", "bbox", "crop_image"],
        *["think", "answer"],
    ]
    values = [value for _, value in watched.steps]
    assert (values[0], values[1], values[4], values[7]) == (
        "I need the page.",
        "wind power",
        [10, 20, 300, 200],
        "42 MW",
    )
    assert isinstance(values[2], Image.Image)
    assert isinstance(values[5], Image.Image)
    assert [values[2].size, values[5].size] == seen
    assert retriever.loaded == ["report_2"]  # once, although it is shown to two watchers


def test_the_typed_events_blocking_and_async_are_the_same() -> None:
    def timeless(events: list[Any]) -> list[Any]:
        return [event.model_copy(update={"seconds": 0}) if isinstance(event, Usage) else event for event in events]

    async def awaited(agent: VRAG) -> list[Any]:
        return [event async for event in agent.astream("How much wind power?")]

    with services(*SCRIPT, *SCRIPT) as (urls, _, _):
        agent = VRAG(**urls)
        blocking = list(agent.stream("How much wind power?"))
        assert timeless(blocking) == timeless(asyncio.run(awaited(agent)))
    last = blocking[-1]
    assert isinstance(last, Answered)
    assert [(citation.item.label, citation.box is not None) for citation in last.citations] == [
        ("report.pdf, page 2", True)
    ]


def test_every_setting_reaches_its_place(tmp_path: Path) -> None:
    (tmp_path / "vrag.txt").write_text("My own words. Question: {question}", encoding="utf-8")
    with services("<search>power</search>", "<answer>x</answer>") as (urls, model, retriever):
        agent = VRAG(
            **urls, model="named", temperature=0.5, max_tokens=99, top_k=1, max_pixels=30_000, min_pixels=10_000,
            prompts=tmp_path, corpus="reports", documents="report.pdf", api_key="sk-mine",
        )  # fmt: skip
        assert agent.run("How much?") == "x"
    first, second = model.requests
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("named", 0.5, 99)
    assert first["messages"][0]["content"] == "My own words. Question: How much?"
    ((width, height),) = pictures(second)
    assert 10_000 <= width * height <= 30_000
    assert retriever.requests == [
        {"queries": ["power"], "top_k": 1, "search_corpus": "reports", "documents": ["report.pdf"]}
    ]
    assert model.headers[0]["authorization"] == "Bearer sk-mine"


def test_the_environment_decides_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with services("<answer>x</answer>", "<answer>y</answer>") as (urls, model, _):
        monkeypatch.setenv("VRAG_BASE_URL", urls["base_url"])
        monkeypatch.setenv("VRAG_MODEL", "from-the-environment")
        assert VRAG().run("How much?") == "x"
        assert VRAG.from_settings(Settings(model="given")).run("How much?") == "y"
    assert [body["model"] for body in model.requests] == ["from-the-environment", "given"]


def test_wrong_settings_and_questions_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        VRAG(temprature=0.5)
    with pytest.raises(ConfigError, match="max_steps"):
        VRAG(max_steps=0)
    (tmp_path / "vrag.txt").write_text("no place for it", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\{question\}"):
        VRAG(prompts=tmp_path)
    with pytest.raises(ConfigError, match="question is empty"):
        VRAG().run("  \n")


def test_without_an_answer_a_sentence_says_so() -> None:
    with services("<think>?</think>", "<think>??</think>", "<think>???</think>", "") as (urls, _, _):
        answer = VRAG(**urls, max_steps=2).run("How much?")
    assert answer == "The model gave no answer in 4 turns, not even when it was asked to."


@pytest.mark.parametrize("generator", [False, True])
def test_a_service_that_is_not_there_raises_its_sentence(generator: bool) -> None:
    def ask(**urls: str) -> Any:
        out = VRAG(**urls, generator=generator, retries=0, search_retries=0).run("How much?")
        return list(out) if generator else out

    with services(*SCRIPT) as (urls, _, _):
        with pytest.raises(RetrieverError, match=r"Nothing answers.*run_demo\.sh search"):
            ask(**{**urls, "search_url": dead_url()})
        with pytest.raises(ModelError, match=r"Nothing answers.*run_demo\.sh"):
            ask(**{**urls, "base_url": dead_url()})
    with services(Fault(401, {"error": {"message": "who are you"}})) as (urls, _, _):
        with pytest.raises(ModelError, match="VRAG_API_KEY"):
            ask(**urls)
        events = list(VRAG(**urls).stream("How much?"))  # the script has ended: the server refuses
    assert isinstance(events[-1], Failed)
    assert events[-1].error == "ModelError"


def test_runs_are_recorded_without_keys(tmp_path: Path) -> None:
    with services(*SCRIPT, *SCRIPT) as (urls, _, _):
        agent = VRAG(**urls, record_dir=tmp_path, api_key="sk-of-the-test", search_api_key="k-of-the-test")
        assert agent.run("How much wind power?") == "42 MW"

        async def awaited() -> None:
            async for _ in agent.astream("And again?"):
                pass

        asyncio.run(awaited())
    runs = list_runs(tmp_path)
    assert sorted((run.question, run.answer, run.agent) for run in runs) == [
        ("And again?", "42 MW", "vrag"),
        ("How much wind power?", "42 MW", "vrag"),
    ]
    for run in runs:
        assert "of-the-test" not in run.path.read_text(encoding="utf-8")
        assert read_record(run.path).outcome is not None


def test_a_watcher_who_leaves_early_leaves_nothing_open(tmp_path: Path) -> None:
    endless = Say("<think>" + "x" * 50_000, piece=1)
    with services(endless, endless) as (urls, model, _):
        stream = VRAG(**urls, record_dir=tmp_path).stream("How much?")
        assert isinstance(next(stream), Delta)
        stream.close()
        stops = iter([False, False, True])
        events = list(VRAG(**urls).stream("How much?", should_stop=lambda: next(stops, True)))
        for _ in range(500):
            if model.open == 0:
                break
            time.sleep(0.01)
        assert model.open == 0
    assert isinstance(events[-1], Failed)
    assert events[-1].reason == "stopped"
    (run,) = list_runs(tmp_path)
    assert run.reason is None


def test_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with services(*SCRIPT, Fault(400, {"error": {"message": "CUDA error"}})) as (urls, _, _):
        options = ["--base-url", urls["base_url"], "--search-url", urls["search_url"]]
        assert main(["How much wind power?", *options, "--max-steps", "4"]) == 0
        out = capsys.readouterr().out
        assert main(["How much wind power?", *options]) == 1
        assert "CUDA error" in capsys.readouterr().out
    for words in ("I need the page.", "wind power", "report.pdf, page 2", "42 MW"):
        assert words in out
    assert main(["x", "--max-steps", "0"]) == 1
    assert "max_steps" in capsys.readouterr().err


def test_as_a_script_from_any_folder(tmp_path: Path) -> None:
    with services(*SCRIPT) as (urls, _, _):
        done = subprocess.run(
            [sys.executable, str(ROOT / "demo" / "vrag_agent.py"), "How much wind power?"],
            cwd=tmp_path,
            env={**os.environ, "VRAG_BASE_URL": urls["base_url"], "VRAG_SEARCH_URL": urls["search_url"]},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert "42 MW" in done.stdout
    assert "report.pdf, page 2" in done.stdout
