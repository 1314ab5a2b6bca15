"""What ``./run_demo.sh`` and ``./run_demo.sh vimrag`` start without a key, in a real browser: VimRAG answers by the reader."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from demo import defaults
from tests.demo.test_app_browser import PATIENCE
from tests.demo.test_launch import gone, launched, line_with, ports, write_corpus
from tests.demo.test_vimrag_app_browser import ask, details
from vrag.records import list_runs

pytestmark = pytest.mark.browser

QUESTION = "When was the lighthouse of Skarv lit, and how many litres of oil does the lamp burn?"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(defaults.STATE_VARIABLE, str(tmp_path / "state"))
    names = ("API_KEY", "RECORD_DIR", "MODEL", "BASE_URL", "SEARCH_URL", "MAX_PIXELS", "MAX_PIXELS_IMAGE")
    for name in ("DASHSCOPE_API_KEY", *(f"VRAG_{name}" for name in names)):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def opened(browser: Browser, mode: str, documents: Path) -> Iterator[Page]:
    """The page of a launch, which is ended by Ctrl-C and leaves no process."""
    process = launched(mode, "--corpus", str(documents), *ports("search", "model", "ui"))
    try:
        said = line_with(process, "Open http://localhost:")
        assert "Open http" in said, said
        url = said.split("Open ")[1].strip()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE * 1000)
        expect.set_options(timeout=PATIENCE * 1000)
        page.goto(url)
        yield page
        page.close()
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        assert gone(family)
    finally:
        if process.poll() is None:  # the launcher stops what it has started
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)


def answered(page: Page) -> None:
    """Ask the question of two parts; the graph has the way to the answer, and a node tells what it kept."""
    ask(page, QUESTION)
    expect(page.locator(".v-answer")).to_contain_text("1887")
    expect(page.locator(".v-answer")).to_contain_text("35")
    expect(page.locator("g.node.answer")).to_be_visible()
    page.locator("g.node.search.critical_path").first.click()
    expect(details(page)).to_contain_text("skarv.pdf")
    expect(page.get_by_test_id("stSidebar")).to_contain_text("not a language model")


def test_vimrag_without_a_key(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, "vimrag", write_corpus(tmp_path / "documents")) as page:
        answered(page)
    runs = list_runs(tmp_path / "state" / "runs")
    assert [(run.agent, run.question) for run in runs] == [("vimrag", QUESTION)]


def test_the_offline_demo_offers_it_too(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, "offline", write_corpus(tmp_path / "documents")) as page:
        page.get_by_role("link", name="VimRAG").click()
        answered(page)
