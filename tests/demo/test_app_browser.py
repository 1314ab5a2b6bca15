"""The demo in a real browser, in front of the real servers: ask and watch, follow a citation, upload, open a past run."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pymupdf
import pytest
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Browser, Page, expect

from demo import defaults, launch
from demo.services import Service, Services, free_port
from demo.ui.pictures import ACCENT
from vrag.events import Answered, Citation, SearchResults, SearchStarted, Thought, ViewRef, ViewShown
from vrag.geometry import Box
from vrag.items import Hit, Item
from vrag.records import RecordWriter

pytestmark = pytest.mark.browser

#: Conditions are waited for; this is only when to give up, on a machine that is busy with something else.
PATIENCE = 120
HOSTILE = "</script><b>bold</b> $x^2$ :red[alarm] <img src=http://pictures.test/a.png> **b**"


@dataclass(frozen=True)
class Demo:
    """The demo as it runs: where its page is, what it keeps, and the reader behind it."""

    url: str
    state: Path
    reader: Service


@pytest.fixture(scope="module")
def demo(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Search service, reader and page over a small corpus. (The browser comes first: without one, nothing is started.)"""
    state = tmp_path_factory.mktemp("state")
    documents = state / "documents"
    documents.mkdir()
    write_pdf(
        documents / "skarv.pdf",
        ["The lighthouse of Skarv was lit in 1887.", "The lamp burns 35 litres of oil per night."],
    )
    write_picture(documents / "ferry.png", "The ferry to Skarv leaves at 07:40.")
    with pytest.MonkeyPatch.context() as patch, Services() as services:
        patch.setenv(defaults.STATE_VARIABLE, str(state))
        for name in ("VRAG_API_KEY", "VRAG_MAX_PIXELS", "VRAG_RECORD_DIR"):
            patch.delenv(name, raising=False)
        search_port, model_port, ui_port = free_port(), free_port(), free_port()
        args = launch.parser().parse_args(["--search-port", str(search_port)])
        reader = launch.reader_service(model_port)
        settings = launch.agent_settings(args, f"http://127.0.0.1:{model_port}/v1", defaults.READER)
        others = [reader, launch.page_service("app.py", ui_port, settings)]
        services.launch(*others)
        index = launch.build_index(documents, state / "index" / "corpus")
        services.start(launch.search_service([index], search_port))
        services.wait(*others)
        yield Demo(f"http://127.0.0.1:{ui_port}", state, reader)


@pytest.fixture
def page(browser: Browser, demo: Demo) -> Iterator[Page]:
    """A fresh session on the page. Nothing that it asks for may lie outside of this machine."""
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.set_default_timeout(PATIENCE * 1000)
    expect.set_options(timeout=PATIENCE * 1000)
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(demo.url)
    yield tab
    tab.close()
    hosts = {urlsplit(url).hostname for url in asked if not url.startswith(("data:", "blob:"))}
    assert hosts == {"127.0.0.1"}


def write_pdf(path: Path, pages: list[str]) -> None:
    with pymupdf.open() as pdf:
        for text in pages:
            pdf.new_page(width=420, height=595).insert_text((40, 120), text, fontsize=11)  # A5
        pdf.save(path)


def write_picture(path: Path, text: str) -> None:
    picture = Image.new("RGB", (900, 300), "white")
    ImageDraw.Draw(picture).text((60, 120), text, fill="black", font=ImageFont.load_default(36))
    picture.save(path)


def ask(page: Page, question: str) -> None:
    field = page.get_by_placeholder("Ask about the documents")
    field.fill(question)
    field.press("Enter")
    expect(page.locator(".v-question")).to_have_text(question)


def picture(page: Page, nth: int) -> Image.Image:
    """A picture of the stage, as the browser has it: 0 is the region on the left, the last one the page on the right."""
    shown = page.locator("[class*=-stage] [data-testid=stImage] img").nth(nth)
    expect(shown).to_be_visible()
    data = shown.evaluate(
        """async picture => {
            const bytes = new Uint8Array(await (await fetch(picture.src)).arrayBuffer());
            return btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(""));
        }"""
    )
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def marked(picture: Image.Image) -> tuple[int, int, int, int] | None:
    """The extent of the box that is drawn on a page."""
    close = [
        band.point([255 if abs(value - wanted) < 30 else 0 for value in range(256)])
        for band, wanted in zip(picture.split(), ACCENT, strict=True)
    ]
    both = Image.composite(close[0], Image.new("L", picture.size), close[1])
    return Image.composite(both, Image.new("L", picture.size), close[2]).getbbox()


def box_on(page: Page) -> tuple[int, int, int, int]:
    """Where the box is on the page that the stage shows, once it is there."""
    for _ in range(PATIENCE * 10):
        if found := marked(picture(page, -1)):
            return found
        page.wait_for_timeout(100)
    raise AssertionError("no box is drawn on the page")


def test_ask_watch_and_follow_the_citation(page: Page) -> None:
    ask(page, "How many litres of oil does the lamp burn per night?")
    expect(page.get_by_role("button", name="Stop").or_(page.locator(".v-answered")).first).to_be_visible()
    expect(page.locator(".v-answer")).to_contain_text("35")
    steps = page.locator("[class*=st-key-live-step-]")
    expect(steps.first).to_contain_text("Search")
    expect(steps.first).to_contain_text("skarv.pdf, page 2")
    expect(page.get_by_text("model calls")).to_be_visible()
    source = page.get_by_role("radio", name="skarv.pdf, page 2").or_(
        page.get_by_role("button", name="skarv.pdf, page 2")
    )
    source.first.click()
    expect(page.locator("[class*=-stage] [data-testid=stImage]").last).to_contain_text("skarv.pdf, page 2")
    expect(page.get_by_text("Read here")).to_be_visible()
    left, top, right, bottom = box_on(page)
    whole = picture(page, -1)
    print_at = 120 / 595 * whole.height  # the base line of the only line on the page
    assert left < 60 / 420 * whole.width < right
    assert top < print_at < bottom < 0.5 * whole.height


def test_upload_and_ask_about_it(page: Page, tmp_path: Path) -> None:
    write_pdf(tmp_path / "goats.pdf", ["The keeper Ragna Holm kept 14 goats."])
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7 and then nothing")
    page.get_by_role("link", name="My documents").click()
    page.locator("input[type=file]").set_input_files([tmp_path / "goats.pdf", tmp_path / "broken.pdf"])
    expect(page.get_by_text("broken.pdf")).to_be_visible()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_text("The index is up to date")).to_be_visible()
    documents = page.locator("[class*=st-key-document-]")
    expect(documents).to_have_count(2)
    expect(documents.nth(0)).to_contain_text("damaged")
    expect(documents.nth(1)).to_contain_text("goats.pdf 1 page")
    page.get_by_role("link", name="Ask").click()
    ask(page, "How many goats did the keeper Ragna Holm keep?")
    expect(page.locator(".v-answer")).to_contain_text("14")
    expect(page.locator("[class*=-stage]")).to_contain_text("goats.pdf, page 1")
    page.get_by_role("link", name="My documents").click()
    expect(documents).to_have_count(2)
    documents.nth(0).get_by_role("button", name="Remove").click()
    expect(page.get_by_text("broken.pdf was removed")).to_be_visible()
    expect(documents).to_have_count(1)


def test_a_past_run_is_opened_again_letter_by_letter(page: Page, demo: Demo) -> None:
    item = Item(id="skarv_2", kind="image", document="skarv.pdf", page=2, width=840, height=1190)
    box = Box(60, 200, 700, 280)
    record = RecordWriter(demo.state / "runs", f"Past question {HOSTILE}")
    record.event(Thought(step=1, text=f"Thought {HOSTILE}"))
    record.event(SearchStarted(step=1, query=HOSTILE))
    record.event(SearchResults(step=1, query=HOSTILE, hits=(Hit(item=item, score=1.0),), shown=(item.id,)))
    view = ViewRef(item=item, box=Box(0, 0, 840, 1190), size=(420, 595))
    record.event(ViewShown(step=1, view=view, source="search"))
    record.event(
        Answered(
            step=2,
            text=f"Answer {HOSTILE}",
            reason="answer",
            citations=(Citation(item=item), Citation(item=item, box=box)),
        )
    )
    record.close()
    page.get_by_role("link", name="Past runs").click()
    page.get_by_role("button", name="Past question").click()
    expect(page.locator(".v-question")).to_have_text(f"Past question {HOSTILE}")
    expect(page.locator(".v-answer")).to_have_text(f"Answer {HOSTILE}")
    expect(page.get_by_text(f"Thought {HOSTILE}")).to_be_visible()
    assert page.locator("main b", has_text="bold").count() == 0
    assert page.locator(".katex").count() == 0
    assert marked(picture(page, -1)) is None  # the first source is the whole page
    page.get_by_text("skarv.pdf, page 2 · region").click()
    expect(page.get_by_text("Read here")).to_be_visible()
    found = box_on(page)
    scale = picture(page, -1).width / 840
    assert found == pytest.approx([side * scale for side in box.as_list()], abs=8)
    page.reload()  # the address names the run
    expect(page.locator(".v-answer")).to_have_text(f"Answer {HOSTILE}")


def test_a_model_server_that_is_gone_is_said(page: Page, demo: Demo) -> None:
    demo.reader.stop()
    try:
        ask(page, "When was the lighthouse of Skarv lit?")
        expect(page.locator(".v-failed")).to_be_visible()
        expect(page.locator(".v-reason")).to_contain_text("Nothing answers at http://127.0.0.1")
        expect(page.locator(".v-down")).to_contain_text("Model")
    finally:
        demo.reader.start()
        demo.reader.wait_ready(PATIENCE)


def test_nothing_lies_outside_of_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.get_by_placeholder("Ask about the documents")).to_be_visible()
    ask(page, "When does the ferry to Skarv leave?")
    expect(page.locator(".v-answer")).to_contain_text("07:40")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for found in page.locator("[class*=-stage]").all():
        edge = found.bounding_box()
        assert edge is not None
        assert edge["x"] >= 0
        assert edge["x"] + edge["width"] <= 390
