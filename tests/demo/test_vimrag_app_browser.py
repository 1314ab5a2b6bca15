"""The VimRAG page in a real browser, in front of a model that plays a script: the graph grows, is clicked, replayed,
exported; nothing that a model says is read as markup, and nothing is asked of another machine."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from demo import defaults, launch
from demo.services import Services, free_port
from tests.demo.test_app_browser import HOSTILE
from tests.servers import Json, Say, Scripted, ScriptedModel, TinyRetriever, page, passage, serve
from vrag.records import list_runs

pytestmark = pytest.mark.browser

#: Conditions are waited for; this is only when to give up, on a machine that is busy with something else.
PATIENCE = 120
KEY = "sk-never-to-be-recorded"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def search(node: str, parents: list[str], query: str) -> Say:
    return Say(
        call("add_search_node", id=node, parent_ids=parents, query=query), f"I have to look for {query}. " * 9, piece=60
    )


def keep(summary: str, *useful: bool) -> Say:
    entries = [
        {
            "information_id": f"Picture {number}",
            "is_useful": good,
            "key_timestamp": [],
            "priority_score": 5 if good else 1,
        }
        for number, good in enumerate(useful, 1)
    ]
    return Say(call("summarize_and_memorize", summarize=summary, memorize=entries), "Now I judge them.", piece=60)


def answer(text: str, *parents: str) -> Say:
    return Say(call("add_answer_node", parent_ids=list(parents), answer=text), "That is all I need.", piece=60)


PLAN = (
    search("wind", ["root"], "wind power"),
    keep("Page 2 has the wind power.", True),
    search("coal", ["root"], "coal"),
    keep("Nothing about it.", False),
    search("wind per year", ["wind"], "solar power"),
    keep("Page 1 has solar power.", True),
    answer("42 MW of wind power", "wind per year"),
)


class Stage(ScriptedModel):
    """A scripted model whose replies stop in the middle of their thoughts until they are let go."""

    def __init__(self) -> None:
        self.lines: Iterator[Scripted] = iter(())
        self.allowed = 0
        self.begun = 0
        super().__init__(lambda _: next(self.lines))

    def play(self, lines: Iterable[Scripted], allowed: int = 10**6) -> None:
        self.lines, self.allowed, self.begun = iter(lines), allowed, 0
        self.requests.clear()

    def go_on(self, replies: int = 1) -> None:
        self.allowed += replies

    async def _counted(self, lines: Iterable[str]) -> AsyncIterator[str]:
        self.begun += 1
        own = self.begun
        for number, line in enumerate(lines):
            while number == 3 and own > self.allowed:  # a role, two pieces of a thought
                await asyncio.sleep(0.02)
            yield line
            await asyncio.sleep(0)


@dataclass(frozen=True)
class Demo:
    url: str
    both: str
    """The page that offers both agents."""
    runs: Path
    model: Stage


@pytest.fixture(scope="module")
def demo(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    state = tmp_path_factory.mktemp("state")
    model = Stage()
    retriever = TinyRetriever(
        [page("report_1", "solar power"), page("report_2", "wind power"), passage("notes", "peat and <b>coal</b>")]
    )

    async def health() -> Json:
        return {"status": "ready", "index": {"items": 3, "version": "1", "corpora": ["small"]}}

    retriever.app.get("/health")(health)
    with (
        pytest.MonkeyPatch.context() as patch,
        serve(model.app) as model_url,
        serve(retriever.app) as search_url,
        Services() as services,
    ):
        for name in ("VRAG_API_KEY", "DASHSCOPE_API_KEY", "VRAG_MODEL"):
            patch.delenv(name, raising=False)
        port, other = free_port(), free_port()
        settings = {
            "VRAG_BASE_URL": f"{model_url}/v1",
            "VRAG_SEARCH_URL": f"{search_url}/search",
            "VRAG_TOP_K": "1",
            "VRAG_RETRIES": "0",
            defaults.STATE_VARIABLE: str(state),
        }
        services.start(
            launch.page_service("vimrag_app.py", port, settings), launch.page_service("both_app.py", other, settings)
        )
        yield Demo(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{other}", state / "runs", model)


@pytest.fixture
def tab(browser: Browser, demo: Demo) -> Iterator[Page]:
    """A fresh session on the page. Nothing that it asks for may lie outside of this machine."""
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    opened.set_default_timeout(PATIENCE * 1000)
    expect.set_options(timeout=PATIENCE * 1000)
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(demo.url)
    yield opened
    opened.close()
    hosts = {urlsplit(url).hostname for url in asked if not url.startswith(("data:", "blob:"))}
    assert hosts == {"127.0.0.1"}


def ask(tab: Page, question: str) -> None:
    field = tab.get_by_placeholder("Ask about the documents")
    field.fill(question)
    field.press("Enter")
    expect(tab.locator(".v-question")).to_have_text(question)


def node(tab: Page, name: str) -> Locator:
    return tab.locator(f'g[data-node="{name}"]')


def details(tab: Page) -> Locator:
    return tab.locator("[class*=-details]")


def test_the_published_defaults(tab: Page) -> None:
    sidebar = tab.get_by_test_id("stSidebar")
    for name, value, least, most in (("Max steps", "20", "5", "30"), ("Search top-k", "1", "1", "10")):
        slider = sidebar.get_by_role("slider", name=name)
        expect(slider).to_have_value(value)
        expect(slider).to_have_attribute("min", least)
        expect(slider).to_have_attribute("max", most)
    expect(sidebar.get_by_role("switch", name="Enable thinking")).to_be_checked()
    expect(sidebar.get_by_label("API key", exact=True)).to_have_attribute("type", "password")


def test_the_graph_grows_is_clicked_replayed_and_exported(tab: Page, demo: Demo, tmp_path: Path) -> None:
    demo.model.play(PLAN, allowed=0)
    key = tab.get_by_label("API key", exact=True)
    key.fill(KEY)
    key.press("Enter")
    ask(tab, "How much wind power?")

    # Live: a thought while it is thought, then node by node.
    expect(tab.locator(".m-live")).to_contain_text("I have to look for wind power")
    expect(node(tab, "root")).to_be_visible()
    demo.model.go_on()
    expect(node(tab, "wind")).to_have_attribute("data-state", "searching")
    demo.model.go_on(3)
    expect(node(tab, "wind")).to_have_attribute("data-state", "memorised")
    expect(node(tab, "coal")).to_have_attribute("data-state", "dead_end")

    # A choice holds while the run goes on.
    node(tab, "wind").click()
    expect(node(tab, "wind")).to_have_attribute("aria-pressed", "true")
    expect(details(tab)).to_contain_text("Page 2 has the wind power.")
    demo.model.go_on(3)
    expect(tab.locator(".v-answer")).to_have_text("42 MW of wind power")
    expect(node(tab, "answer")).to_have_attribute("data-state", "critical_path")
    expect(node(tab, "wind")).to_have_attribute("data-state", "critical_path")
    expect(details(tab)).to_contain_text("energy")
    expect(details(tab)).to_contain_text("MP allotted")
    expect(details(tab).locator("img")).to_be_visible()
    expect(tab.locator(".m-counters")).to_contain_text("700")  # prompt tokens of seven replies
    node(tab, "coal").focus()
    tab.keyboard.press("Enter")
    expect(details(tab)).to_contain_text("Nothing about it.")

    # To take away.
    with tab.expect_download() as html:
        tab.get_by_role("button", name="HTML report").click()
    report = Path(html.value.path()).read_text(encoding="utf-8")
    assert "42 MW of wind power" in report
    assert "data:image/jpeg;base64" in report
    with tab.expect_download() as archive:
        tab.get_by_role("button", name="Markdown").click()
    names = zipfile.ZipFile(io.BytesIO(Path(archive.value.path()).read_bytes())).namelist()
    assert "report.md" in names
    assert any(name.startswith("images/") for name in names)
    with tab.expect_download() as record:
        tab.get_by_role("button", name="Record").click()
    written = Path(record.value.path()).read_bytes()
    assert b"42 MW of wind power" in written
    assert KEY.encode() not in written
    assert demo.model.headers[-1]["authorization"] == f"Bearer {KEY}"

    # Again, step by step.
    run = next(one for one in list_runs(demo.runs) if one.question == "How much wind power?")
    tab.get_by_role("link", name="Past runs").click()
    tab.get_by_role("button", name="How much wind power?").click()
    expect(node(tab, "answer")).to_be_visible()
    expect(tab).to_have_url(f"{demo.url}/runs?run={run.id}")
    slider = tab.get_by_role("slider", name="Moment")
    slider.press("Home")
    expect(node(tab, "wind")).to_have_count(0)
    expect(node(tab, "root")).to_be_visible()
    tab.get_by_role("button", name="Next").click()
    tab.get_by_role("button", name="Next").click()
    expect(node(tab, "wind")).to_have_attribute("data-state", "searching")
    tab.get_by_role("button", name="Play").click()  # a film from here on
    expect(node(tab, "coal")).to_have_attribute("data-state", "dead_end")
    tab.get_by_role("button", name="Pause").click()
    slider.press("End")
    expect(node(tab, "wind")).to_have_attribute("data-state", "critical_path")
    expect(tab.locator(".v-answer")).to_have_text("42 MW of wind power")


def test_both_agents_on_one_page(tab: Page, demo: Demo) -> None:
    tab.goto(demo.both)
    expect(tab.get_by_role("heading", name="Ask your documents")).to_be_visible()
    expect(tab.get_by_test_id("stSidebar").get_by_label("Model server")).to_be_visible()
    demo.model.play(("<think>I know.</think><answer>42</answer>",))
    ask(tab, "How much, VRAG?")
    expect(tab.locator(".v-answer")).to_have_text("42")
    tab.get_by_role("link", name="VimRAG").click()
    expect(tab.get_by_role("heading", name="Reason on a memory graph")).to_be_visible()
    expect(tab.get_by_test_id("stSidebar").get_by_label("Enable thinking")).to_be_visible()
    demo.model.play(PLAN)
    ask(tab, "How much, VimRAG?")
    expect(tab.locator(".v-answer")).to_have_text("42 MW of wind power")
    tab.get_by_role("link", name="Past runs").click()
    for question, drawn in (("How much, VRAG?", 0), ("How much, VimRAG?", 1)):  # each opens in the form of its agent
        tab.get_by_role("button", name=question).click()
        expect(tab.locator(".v-answer")).to_be_visible()
        expect(node(tab, "answer")).to_have_count(drawn)
        tab.get_by_role("button", name="All runs").click()


def test_stop(tab: Page, demo: Demo) -> None:
    demo.model.play(PLAN, allowed=1)
    ask(tab, "How much wind power shall I wait for?")
    expect(node(tab, "wind")).to_be_visible()
    tab.get_by_role("button", name="Stop").click()
    expect(tab.get_by_role("button", name="Stop")).to_be_disabled()
    demo.model.go_on()  # the piece with which it ends
    expect(tab.locator(".v-failed")).to_contain_text("Stopped")
    expect(node(tab, "wind")).to_be_visible()
    assert len(demo.model.requests) == 2


def test_hostile_words_are_words(tab: Page, demo: Demo) -> None:
    name = "</script><img src=http://pictures.test/b.png>"
    demo.model.play(
        (
            search(name, ["root", "</svg><script>1</script>"], f"{HOSTILE} wind power"),
            keep(f"{HOSTILE} summary", True),
            answer(f"{HOSTILE} answer", name),
        )
    )
    ask(tab, f"{HOSTILE} question")
    expect(tab.locator(".v-answer")).to_have_text(f"{HOSTILE} answer")
    drawn = tab.locator("g.node.search")
    expect(drawn).to_have_attribute("data-node", name)
    drawn.click()
    expect(details(tab)).to_contain_text(f"{HOSTILE} wind power")
    expect(details(tab)).to_contain_text(f"{HOSTILE} summary")
    assert tab.locator('img[src*="pictures.test"], g.node img, g.node script, .stage b').count() == 0


def test_a_model_that_refuses_is_a_sentence(tab: Page, demo: Demo) -> None:
    demo.model.play(())
    ask(tab, "Is anybody there?")
    expect(tab.locator(".v-failed")).to_contain_text("No answer")
    expect(tab.get_by_role("alert").last).to_contain_text("the script of this test has ended")


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_page_fits_its_screen(tab: Page, demo: Demo, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 844 if width == 390 else 900})
    demo.model.play(PLAN)
    ask(tab, f"How much wind power at {width}?")
    expect(tab.locator(".v-answer")).to_have_text("42 MW of wind power")
    left, right = (
        tab.locator("[class*=-answer-side]").bounding_box(),
        tab.locator("[class*=-graph-side]").bounding_box(),
    )
    assert left is not None
    assert right is not None
    if width == 390:
        assert right["y"] >= left["y"] + left["height"]  # one below the other
    else:
        assert right["x"] >= left["x"] + left["width"]
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for name in ("root", "wind", "coal", "wind per year", "answer"):
        expect(node(tab, name)).to_be_attached()
