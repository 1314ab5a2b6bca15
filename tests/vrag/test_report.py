"""Runs as documents: complete, self-contained, safe with hostile texts, and there whatever is missing."""

from __future__ import annotations

import base64
import io
import itertools
import os
import re
import socket
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.servers import dead_url, page_image
from tests.vrag.runs_for_reports import record_vimrag, record_vrag, search_service
from vrag.episode import Frame
from vrag.errors import MediaError, RetrieverError, VragError
from vrag.events import (
    Answered,
    Citation,
    CropRequested,
    Event,
    Failed,
    GraphChanged,
    Memorized,
    Note,
    SearchResults,
    SearchStarted,
    Thought,
    Usage,
    ViewRef,
    ViewShown,
)
from vrag.geometry import Box
from vrag.items import Hit, Item
from vrag.memory_graph import MemoryGraph
from vrag.records import Record
from vrag.report import RunTrace, export_html, export_markdown, save_html, zipped
from vrag.report.__main__ import main
from vrag.report.document import document
from vrag.report.graph_svg import HEIGHT, WIDTH, draw, layout, measure, wrap
from vrag.report.html_page import render
from vrag.report.model import GraphBlock
from vrag.report.pictures import Drawn, Missing, load
from vrag.retriever import HttpRetriever

VOID = {"meta", "img", "br", "rect", "path"}


class Page(HTMLParser):
    """What is in an HTML file: the elements with their attributes, the text, whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


ALLOWED = (
    "html head meta title style body main nav article header footer section h1 h2 h3 p a ul ol li dl div dt dd span small "
    "blockquote figure figcaption img table thead tbody tr th td svg g rect path text"
)


def check_harmless(text: str) -> Page:
    """No script, no request, no element of a text: whatever the texts hold."""
    page = Page(text)
    assert {name for name, _ in page.elements} <= set(ALLOWED.split())
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    for name, attributes in page.elements:
        assert not any(attribute.startswith("on") for attribute in attributes)
        assert "style" not in attributes
        for attribute in ("href", "src", "srcset", "action", "data"):
            value = attributes.get(attribute)
            if name == "a" and attribute == "href":
                assert value is not None
                assert value.startswith("#")
                assert value[1:] in ids
            elif value is not None:
                assert value.startswith("data:image/jpeg;base64,")
    return page


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Record, Record, str]]:
    """A run of each agent, and the service they were made with."""
    folder = tmp_path_factory.mktemp("runs")
    with search_service() as url:
        yield record_vrag(folder, url), record_vimrag(folder, url), url


def test_a_vrag_run_as_html(records: tuple[Record, Record, str]) -> None:
    record, _, url = records
    with HttpRetriever(url) as retriever:
        page = check_harmless(export_html([record], retriever))
    for text in (
        "How much wind power?",
        "42 MW",
        "report.pdf, page 2",
        "Too small.",
        "The table says 42 MW.",
        "Model calls",
    ):
        assert text in page.words
    sizes = []
    for image in page.all("img"):
        data = base64.b64decode(str(image["src"]).partition(",")[2], validate=True)
        with Image.open(io.BytesIO(data)) as opened:
            assert opened.format == "JPEG"
            assert (str(opened.width), str(opened.height)) == (image["width"], image["height"])
            sizes.append(opened.size)
    # The cited region on its page and by itself, then in the path the page and the region.
    assert len(sizes) == 4
    crop = next(event for event in record.events if isinstance(event, ViewShown) and event.source == "crop")
    assert sizes[1] == (round(crop.view.box.width), round(crop.view.box.height))


def test_a_graph_run_as_html(records: tuple[Record, Record, str]) -> None:
    _, record, url = records
    with HttpRetriever(url) as retriever:
        page = check_harmless(export_html([record], retriever))
    assert len(page.all("svg")) == 1
    assert "The film shows the turbines, the notes name 42 MW." in page.words
    assert "turbine notes: the park has 42 MW" in page.words  # the passage itself
    assert "film.mp4, at 3.0 s" in page.words
    assert "dead end" in page.words
    assert "priority 4" in page.words
    frames = [image for image in page.all("img") if "frame" in str(image["alt"])]
    assert [(image["width"], image["height"]) for image in frames] == [("640", "360")]


def test_several_runs_have_a_table_of_contents(records: tuple[Record, Record, str]) -> None:
    first, second, _ = records
    page = check_harmless(export_html([first, second], None, title="Wind"))
    assert page.all("img") == []
    assert "Pictures were left out of this report." in page.words
    assert [link["href"] for link in page.all("a")][:2] == ["#run-1", "#run-2"]
    assert [article["id"] for article in page.all("article")] == ["run-1", "run-2"]
    with pytest.raises(ValueError, match="at least one"):
        export_html([], None)


def test_markdown_with_its_pictures(records: tuple[Record, Record, str], tmp_path: Path) -> None:
    first, second, url = records
    with HttpRetriever(url) as retriever:
        files = export_markdown([first, second], retriever)
    text = files["report.md"].decode()
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert set(shown) == set(files) - {"report.md"}
    assert "images/graph-02.svg" in shown
    for name, data in files.items():
        if name.endswith(".jpg"):
            with Image.open(io.BytesIO(data)) as image:
                image.verify()
    assert "# How much wind power?" in text
    assert "> **Answer:** 42 MW [\\[1\\]](#evidence-1-1)" in text
    for anchor in re.findall(r"\(#([^)]+)\)", text):
        assert f'<a id="{anchor}"></a>' in text
    with zipfile.ZipFile(io.BytesIO(zipped(files))) as archive:
        assert archive.testzip() is None
        assert set(archive.namelist()) == set(files)


class Gone:
    """A service that has lost a page, or that is down."""

    def __init__(self, error: VragError) -> None:
        self.error = error
        self.asked = 0

    def image(self, item_id: str) -> bytes:
        self.asked += 1
        raise self.error

    def frames(self, item_id: str, fps: float, max_frames: int, max_pixels: int) -> list[Frame]:
        self.asked += 1
        raise self.error


def test_what_is_gone_leaves_a_sentence(records: tuple[Record, Record, str]) -> None:
    for record in records[:2]:
        gone = Gone(MediaError("The page was deleted."))
        page = check_harmless(export_html([record], gone))
        assert page.all("img") == []
        assert "The picture cannot be shown: The page was deleted." in page.words
    down = Gone(RetrieverError("Nothing answers."))
    views = [
        ViewShown(step=1, view=ViewRef(item=item(f"p_{n}"), box=Box(0, 0, 800, 1000), size=(8, 10)), source="search")
        for n in range(9)
    ]
    run = trace(SearchStarted(step=1, query="q"), *views)
    page = check_harmless(export_html([run], down))
    assert page.words.count("The picture cannot be shown: Nothing answers.") == 9
    assert down.asked == 2  # not once for every page


def test_bytes_that_are_no_picture_leave_a_sentence() -> None:
    class Broken(Gone):
        def image(self, item_id: str) -> bytes:
            return page_image()[:900] if item_id == "cut_1" else b"<html>"

    run = trace(
        Answered(
            text="A",
            reason="answer",
            citations=(
                Citation(item=item("cut_1")),
                Citation(item=item("not_1"), box=Box(1, 2, 30, 40)),
                Citation(item=item("film", kind="video"), timestamp=2.0),
            ),
        )
    )
    page = check_harmless(export_html([run], Broken(MediaError("no clip"))))
    assert page.words.count("The picture cannot be shown") == 4


@pytest.mark.parametrize(
    "box", [Box(900, 0, 990, 50), Box(5, 5, 5, 5), Box(float("nan"), 0, 10, 10), Box(-1e9, -1e9, 1e9, 1e9)]
)
def test_a_box_off_the_page_costs_one_picture_at_most(box: Box) -> None:
    class Service(Gone):
        def image(self, item_id: str) -> bytes:
            return page_image()

    made = document([trace(Answered(text="A", reason="answer", citations=(Citation(item=item("p_1"), box=box),)))])
    pictures = load(made.pictures(), Service(MediaError("")))
    assert len(pictures) == 2
    assert all(isinstance(drawn, Drawn | Missing) for drawn in pictures.values())
    check_harmless(render(made, pictures))


def test_the_marked_region_is_where_the_box_is() -> None:
    class Service(Gone):
        def image(self, item_id: str) -> bytes:
            buffer = io.BytesIO()
            Image.new("RGB", (400, 500), "white").save(buffer, "JPEG")
            return buffer.getvalue()

    box = Box(200, 400, 400, 600)  # of a page of 800 x 1000 page pixels that is stored at half the size
    made = document([trace(Answered(text="A", reason="answer", citations=(Citation(item=item("p_1"), box=box),)))])
    whole, region = load(made.pictures(), Service(MediaError(""))).values()
    assert isinstance(whole, Drawn)
    assert isinstance(region, Drawn)
    with Image.open(io.BytesIO(whole.data)) as picture:
        scale = picture.width / 800

        def at(x: float, y: float) -> tuple[int, ...]:
            return picture.getpixel((round(x * scale), round(y * scale)))  # type: ignore[return-value]

        assert min(at(300, 500)) > 245  # inside: as bright as the page
        assert max(at(700, 100)) < 240  # outside: dimmed
        red, _, blue = at(300, 397)
        assert red - blue > 80  # the frame


# Runs that did not end well


def item(item_id: str, kind: Any = "image", content: str | None = None) -> Item:
    size = {"width": 800, "height": 1000} if kind == "image" else {}
    return Item(id=item_id, kind=kind, document=f"{item_id}.pdf", page=1, content=content, **size)


def trace(*events: Event, question: str = "Q?") -> RunTrace:
    return RunTrace.of_events(question, events)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((Failed(text="The model is not there.", reason="error"),), "The model is not there."),
        ((Thought(step=1, text="Hm."),), "The run was cut off before it ended"),
        ((), "The run was cut off before it ended"),
        ((Answered(text="Maybe 4", reason="forced_answer"),), "answered when it was told to"),
    ],
)
def test_every_end_has_a_report(events: tuple[Event, ...], said: str) -> None:
    assert said in check_harmless(export_html([trace(*events)], None)).words
    assert export_markdown([trace(*events)], None)["report.md"]


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style><script src=//evil.example/x.js>",
    "javascript:alert(1)",
    "]]>--><!--",
    "![x](http://evil.example/p.png) [a](javascript:b) <b>x</b>",
    "| a | b |\n|---|---|\n# not a heading\n\n- not a list\n```\ncode",
    "\x00\x08\ud800\u202e &lt; &#60;script&#62;",
    "${7*7} {{7*7}} {question}",
]
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=60))


def everything(text: str) -> RunTrace:
    """A run with the text in every place that has one."""
    thing = Item(id=text or "x", kind="image", document=text, page=1, width=80, height=90)
    words = Item(id=f"t{text}", kind="text", document=text, content=text)
    graph = MemoryGraph(text)
    node, _ = graph.add(text, ["root"], text)
    graph.memorise(node.id, text)
    graph.answer([node.id])
    value = graph.to_json(labels={text: text})
    value["nodes"][0]["memory"] = [{"id": text, "label": text, "kind": "image", "priority_score": 3}]
    return RunTrace.of_events(
        text,
        [
            Thought(step=1, text=text),
            SearchStarted(step=1, query=text),
            SearchResults(
                step=1, query=text, hits=(Hit(item=thing, score=1.0), Hit(item=words, score=1.0)), shown=(words.id,)
            ),
            ViewShown(step=1, view=ViewRef(item=thing, box=Box(0, 0, 80, 90), size=(8, 9)), source="search"),
            CropRequested(step=2, displayed=Box(0, 0, 1, 1), page_box=Box(0, 0, 9, 9), item_id=text),
            Memorized(step=2, node=text, summary=text, kept=({"label": text},), graph={}),
            GraphChanged(step=2, graph=value),
            Note(step=2, text=text),
            Usage(step=2),
            Answered(step=3, text=text, reason="answer", citations=(Citation(item=thing), Citation(item=words))),
        ],
        agent=text,
        settings={"model": text, "input_price": text},
        id=text,
    )


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_html_with_any_text_is_harmless_and_shows_it(text: str) -> None:
    written = export_html([everything(text)], None)
    written.encode("utf-8")
    page = check_harmless(written)
    if text.isprintable():
        assert page.words.count(text) >= 8


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_markdown_with_any_text_has_no_markup_of_it(text: str) -> None:
    written = export_markdown([everything(text)], None)["report.md"].decode("utf-8")
    # Only the report's own: anchors, links to them, and its graph.
    unescaped = re.sub(r"\\.", "", written)
    assert re.findall(r"<(?!br>|/a>|a id=\"(?:run|evidence)-[\d-]+\">)", unescaped) == []
    assert all(link.startswith(("#evidence-", "#run-", "images/")) for link in re.findall(r"\]\(([^)]*)\)", unescaped))
    headings = [line for line in written.splitlines() if re.match(r"\s{0,3}#{1,6}\s", line)]
    assert len([line for line in headings if line.startswith("## ")]) == 5
    assert "```" not in unescaped


# The graph


@st.composite
def graphs(draw_: st.DrawFn) -> MemoryGraph:
    graph = MemoryGraph("Q?")
    for number in range(draw_(st.integers(0, 14))):
        known = ["root", *graph.nodes]
        parents = draw_(st.lists(st.sampled_from(known), min_size=1, max_size=4))
        node, _ = graph.add(f"node {number}", parents, draw_(st.text(max_size=30)) or "q")
        graph.memorise(node.id, "s")
    if draw_(st.booleans()):
        graph.answer(draw_(st.lists(st.sampled_from(["root", *graph.nodes]), max_size=3)))
    return graph


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_no_boxes_overlap_and_every_edge_goes_down(graph: MemoryGraph) -> None:
    parents = graph.parents()
    plan = layout(parents)
    nodes = [plan.places[name] for name in parents]
    for (x1, y1), (x2, y2) in itertools.combinations(nodes, 2):
        assert abs(x1 - x2) >= WIDTH or abs(y1 - y2) >= HEIGHT
    for x, y in nodes:
        assert WIDTH / 2 <= x <= plan.size[0] - WIDTH / 2
        assert HEIGHT / 2 <= y <= plan.size[1] - HEIGHT / 2
    for (parent, child), route in plan.routes.items():
        assert (route[0], route[-1]) == (parent, child)
        heights = [plan.places[name][1] for name in route]
        assert heights == sorted(set(heights))
    # A bend keeps off the boxes beside it.
    for name in set(plan.places) - set(parents):
        assert all(abs(plan.places[name][0] - x) > WIDTH / 2 for x, y in nodes if y == plan.places[name][1])
    svg = Page(draw(graph))
    edges = len(plan.routes) + len(graph.answer_parents or ())
    assert len(svg.all("path")) == 2 * edges  # a line and its tip


def test_a_diamond_by_hand() -> None:
    plan = layout({"root": (), "a": ("root",), "b": ("root",), "end": ("a", "b")})
    (root, _), (a, y_a), (b, y_b), (end, _) = (plan.places[name] for name in ("root", "a", "b", "end"))
    assert y_a == y_b
    assert b - a >= WIDTH
    assert root == pytest.approx((a + b) / 2, abs=1)
    assert end == pytest.approx((a + b) / 2, abs=1)


def test_a_graph_that_cannot_be_read_is_left_out() -> None:
    broken = GraphChanged(graph={"question": "Q", "answer": None, "nodes": [{"id": 3}]})
    made = document([trace(broken, Answered(text="A", reason="answer"))])
    assert not any(isinstance(block, GraphBlock) for section in made.chapters[0].sections for block in section.blocks)


@given(st.text(max_size=200), st.floats(20, 300), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_wrapped_lines_fit(text: str, width: float, most: int) -> None:
    lines = wrap(text, width, 11, most)
    assert len(lines) <= most
    assert all(measure(line, 11) <= width or len(line) <= 2 for line in lines)


# The command


def test_the_command_writes_both(
    records: tuple[Record, Record, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, _ = records
    target = tmp_path / "out" / "report.html"
    # The service that the record names is asked: it is on this machine.
    assert main([str(first.path), str(second.path), "--html", str(target), "--markdown", str(tmp_path / "md")]) == 0
    assert capsys.readouterr().out.split() == [str(target), str(tmp_path / "md" / "report.md")]
    assert len(check_harmless(target.read_text("utf-8")).all("img")) > 4
    assert (tmp_path / "md" / "images" / "picture-001.jpg").stat().st_size > 500


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "x.jsonl"
    broken.write_text("{}\n")
    assert main([str(broken), "--html", str(tmp_path / "x.html")]) == 1
    assert "not a run record" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(broken)])
    assert "--html FILE or --markdown DIR" in capsys.readouterr().err


def test_the_key_stays_on_this_machine(
    records: tuple[Record, Record, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record from somebody else cannot send the key of the search service where it wants."""
    text = records[0].path.read_text("utf-8").replace(records[2], "http://collector.example/search")
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text(text, "utf-8")
    asked: list[object] = []

    def resolve(host: object, *rest: Any, **more: Any) -> Any:
        asked.append(host)
        raise socket.gaierror("not in this test")

    monkeypatch.setenv("VRAG_SEARCH_URL", f"{dead_url()}/search")
    monkeypatch.setenv("VRAG_SEARCH_RETRIES", "0")
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert main([str(foreign), "--html", str(tmp_path / "x.html")]) == 0
    assert "collector.example" not in map(str, asked)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VragError, match="cannot be written"):
        save_html([trace()], None, tmp_path / "file" / "x.html")


@pytest.mark.browser
def test_a_browser_opens_it_without_the_network(records: tuple[Record, Record, str], tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    browser_path = os.environ.get("VRAG_CHROMIUM", "/usr/bin/chromium")
    if not Path(browser_path).exists():
        pytest.skip("needs Chromium (VRAG_CHROMIUM)")
    first, second, url = records
    with HttpRetriever(url) as retriever:
        path = save_html([first, second, everything(HOSTILE[2])], retriever, tmp_path / "report.html")
    asked: list[str] = []
    said: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        context = browser.new_context(offline=True, viewport={"width": 390, "height": 800})
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri())
        images = page.evaluate("[...document.images].map(image => [image.complete, image.naturalWidth])")
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        page.click("a.cite >> nth=0")
        target = page.evaluate("document.querySelector(':target').className")
        browser.close()
    assert [address for address in asked if not address.startswith(("data:", path.as_uri()))] == []
    assert said == []
    assert len(images) > 4
    assert all(complete and width > 0 for complete, width in images)
    assert overflow <= 0  # on a phone's width, nothing sticks out
    assert target == "exhibit"
