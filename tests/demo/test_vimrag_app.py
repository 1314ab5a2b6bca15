"""The VimRAG page without a browser: the published defaults, keys, bad settings; and which model a launch takes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from streamlit.testing.v1 import AppTest

from demo import defaults, launch
from demo.vimrag_agent import VimRAG
from tests.demo.test_launch import PATIENCE, gone, launched, line_with, ports
from tests.servers import ScriptedModel, dead_url, serve
from vrag.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-of-the-page-test"


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("VRAG_", "DASHSCOPE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(defaults.STATE_VARIABLE, str(tmp_path / "state"))
    for name in ("HTTPS_PROXY", "https_proxy"):  # whatever is asked of another machine ends here
        monkeypatch.setenv(name, dead_url())


def app(script: str = "vimrag_app.py") -> AppTest:
    shown = AppTest.from_file(str(ROOT / "demo" / script), default_timeout=PATIENCE).run()
    assert not shown.exception
    return shown


def warnings(shown: AppTest) -> str:
    return "\n".join(one.value for one in shown.warning)


# The page


def test_the_published_defaults() -> None:
    shown = app()
    fields = {field.label: field.value for field in shown.sidebar.text_input}
    assert fields == {
        "API Base URL": "https://dashscope.aliyuncs.com/compatible-mode/v1",
        "Model": "qwen3.5-plus",
        "API key": "",
        "Search URL": "http://localhost:8001/search",
    }
    sliders = {slider.label: (slider.min, slider.max, slider.value) for slider in shown.sidebar.slider}
    assert sliders == {"Max steps": (5, 30, 20), "Search top-k": (1, 10, 3)}
    assert [(toggle.label, toggle.value) for toggle in shown.sidebar.toggle] == [("Enable thinking", True)]
    assert "asks for an API key" in warnings(shown)
    assert "DASHSCOPE_API_KEY" in warnings(shown)


def test_a_key_of_the_environment_is_named_but_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASHSCOPE_API_KEY", KEY)
    shown = app()
    field = next(field for field in shown.sidebar.text_input if field.label == "API key")
    assert (field.value, field.placeholder) == ("", "from DASHSCOPE_API_KEY")
    assert "asks for an API key" not in warnings(shown)
    assert KEY not in str(shown)


def test_the_launcher_decides_and_an_unnamed_model_is_the_served_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAG_BASE_URL", f"{dead_url()}/v1")
    monkeypatch.setenv("VRAG_MODEL", "")
    monkeypatch.setenv("VRAG_MAX_STEPS", "7")
    shown = app()
    fields = {field.label: field.value for field in shown.sidebar.text_input}
    assert fields["API Base URL"] == os.environ["VRAG_BASE_URL"]
    assert fields["Model"] == ""
    assert shown.sidebar.slider[0].value == 7
    assert "does not answer" in warnings(shown)


def test_a_field_that_makes_no_sense_is_a_sentence() -> None:
    shown = app()
    shown.sidebar.text_input[0].set_value("not a url").run()
    assert not shown.exception
    assert "base\\_url" in shown.error[0].value


def test_an_environment_that_makes_no_sense_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAG_MAX_STEPS", "many")
    for script in ("vimrag_app.py", "both_app.py"):
        assert "VRAG_MAX_STEPS" in app(script).error[0].value


def test_the_key_for_dashscope_goes_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASHSCOPE_API_KEY", KEY)
    assert VimRAG(base_url=f"{dead_url()}/v1").settings().secrets() == ()


# The launcher


def chosen(*argv: str) -> tuple[str, str, str]:
    return launch.vimrag_model(launch.parser().parse_args(["vimrag", *argv]))


def test_with_a_key_it_is_dashscope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASHSCOPE_API_KEY", KEY)
    base_url, model, words = chosen()
    assert (base_url, model) == (defaults.DASHSCOPE_URL, "qwen3.5-plus")
    assert "DashScope" in words
    assert chosen("--model", "qwen3-vl-plus")[1] == "qwen3-vl-plus"


def test_with_a_url_it_is_that_server() -> None:
    with serve(ScriptedModel(()).app) as url:
        assert chosen("--base-url", f"{url}/v1")[:2] == (f"{url}/v1", "")
    with pytest.raises(ConfigError, match="No model server answers"):
        chosen("--base-url", f"{dead_url()}/v1")


def test_without_either_it_is_the_reader_and_says_so() -> None:
    base_url, model, words = chosen("--model-port", "8123")
    assert (base_url, model) == ("http://127.0.0.1:8123/v1", defaults.READER)
    assert "It is not a language model" in words


def test_vimrag_runs_until_it_is_interrupted(tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "note.md").write_text("The lighthouse of Skarv was lit in 1887.\n")
    with serve(ScriptedModel(()).app) as url:
        process = launched("vimrag", "--base-url", f"{url}/v1", "--corpus", str(documents), *ports("search", "ui"))
        try:
            assert "http://localhost:" in line_with(process, "  Open ")
            family = psutil.Process(process.pid).children(recursive=True)
            assert len(family) >= 2
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
            assert gone(family)
        finally:
            process.kill()
            process.communicate()
