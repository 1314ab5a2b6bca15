"""Settings: what wins, what is refused and in which words, and what never leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vrag.errors import ConfigError
from vrag.settings import ChatSettings, SearchSettings, Settings, client_url, is_loopback
from vrag.vrag_episode import VragOptions


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("VRAG_")]:
        monkeypatch.delenv(name)


def test_arguments_win_over_the_environment_and_that_over_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAG_MODEL", "from-the-environment")
    monkeypatch.setenv("VRAG_MAX_STEPS", "7")
    monkeypatch.setenv("VRAG_TOP_K", "")
    monkeypatch.setenv("VRAG_DOCUMENTS", '["a.pdf", "b.pdf"]')
    monkeypatch.setenv("VRAG_CORPUS", "reports")
    monkeypatch.setenv("VRAG_SOMETHING_ELSE", "is nobody's business")
    settings = Settings(max_steps=4, temperature=None)
    assert (settings.model, settings.max_steps, settings.temperature) == ("from-the-environment", 4, 0.0)
    assert settings.top_k == Settings.model_fields["top_k"].default
    assert (settings.documents, settings.corpus) == (("a.pdf", "b.pdf"), "reports")


def test_the_defaults_of_an_episode_are_the_episode_s_own() -> None:
    assert Settings().vrag_options() == VragOptions()


def test_the_episode_s_part(tmp_path: Path) -> None:
    (tmp_path / "vrag.txt").write_text("Only this: {question}", encoding="utf-8")
    options = Settings(max_steps=3, min_pixels=10, max_pixels=20, time_budget=5, token_budget=99, prompts=tmp_path)
    made = options.vrag_options()
    assert (made.max_steps, made.min_pixels, made.max_pixels, made.max_seconds, made.max_tokens) == (3, 10, 20, 5, 99)
    assert made.prompts.question == "Only this: {question}"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"temperature": float("nan")}, "the argument temperature: .*finite"),
        ({"temperature": -1}, "the argument temperature"),
        ({"time_budget": 0}, "the argument time_budget"),
        ({"time_budget": float("inf")}, "the argument time_budget: .*finite"),
        ({"top_k": 0}, "the argument top_k"),
        ({"max_steps": 2.5}, "the argument max_steps"),
        ({"crop_padding": -1}, "the argument crop_padding"),
        ({"min_pixels": 200, "max_pixels": 100}, r"min_pixels \(200\) is above max_pixels \(100\)"),
        ({"max_stepps": 2}, "no setting 'max_stepps'; did you mean 'max_steps'"),
        ({"qqq": 2}, "no setting 'qqq'; known are: .*api_key, .*base_url"),
        ({"base_url": "localhost:8002"}, "the argument base_url: must be a full URL"),
        ({"base_url": "http://host:99999/v1"}, "the argument base_url: is not a URL"),
        ({"base_url": "http://[::1/v1"}, "the argument base_url"),
        ({"base_url": "http://me:pass@host/v1"}, "must hold no user name"),
        ({"search_url": "file:///etc/passwd"}, "the argument search_url: must be a full URL"),
        ({"search_url": "http://h/search?key=1"}, "must hold no user name, password, query"),
        ({"api_key": 5}, "the argument api_key"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Settings(**values)


def test_an_environment_that_makes_no_sense_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAG_MAX_STEPS", "many")
    with pytest.raises(ConfigError, match=r"the environment variable VRAG_MAX_STEPS: .*'many'"):
        Settings()
    monkeypatch.delenv("VRAG_MAX_STEPS")
    monkeypatch.setenv("VRAG_EXTRA_BODY", "{x")
    with pytest.raises(ConfigError, match=r"VRAG_\*.*JSON.*extra_body"):
        Settings()


def test_keys_are_not_shown() -> None:
    settings = Settings(api_key="sk-secret-1", search_api_key="sk-secret-2")
    assert set(settings.secrets()) == {"sk-secret-1", "sk-secret-2"}
    assert "sk-secret" not in repr(settings) + str(settings.public()) + settings.model_dump_json()
    assert "api_key" not in settings.public()
    assert settings.public()["max_steps"] == settings.max_steps
    assert Settings().secrets() == ()
    with pytest.raises(ConfigError) as refused:
        Settings(api_key="sk-secret-1", max_steps=0)
    assert "sk-secret-1" not in str(refused.value)


def test_a_changed_copy_is_checked_and_keeps_the_rest() -> None:
    settings = Settings(api_key="sk-secret-1", max_steps=4)
    changed = settings.replace(max_steps=5)
    assert (changed.max_steps, changed.secrets(), settings.max_steps) == (5, ("sk-secret-1",), 4)
    with pytest.raises(ConfigError, match="max_steps"):
        settings.replace(max_steps=0)


def test_parts_can_be_had_alone() -> None:
    assert ChatSettings(model="judge").model == "judge"
    assert SearchSettings(search_url="http://h:1").search_url == "http://h:1/search"
    with pytest.raises(ConfigError, match="no setting 'model'"):
        SearchSettings(model="judge")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://0.0.0.0:8002/v1", "http://127.0.0.1:8002/v1"),
        ("http://[::]:8002/v1/", "http://[::1]:8002/v1"),
        (" https://Host.example/v1 ", "https://host.example/v1"),
        ("http://[fe80::1]/", "http://[fe80::1]"),
    ],
)
def test_an_address_to_listen_on_becomes_one_to_connect_to(url: str, expected: str) -> None:
    assert client_url(url) == expected


def test_loopback() -> None:
    assert all(is_loopback(url) for url in ("http://localhost:1/v1", "http://127.0.0.1", "http://[::1]:2/x"))
    assert not is_loopback("http://127.example.org/v1")
    assert not is_loopback("https://dashscope.aliyuncs.com/v1")
