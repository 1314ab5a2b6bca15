"""The parts of the web pages that need no browser: literal text, file names, runs in the background, pictures, pages."""

from __future__ import annotations

import html
import io
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from streamlit.testing.v1 import AppTest

from demo.ui import run_view, timeline
from demo.ui.library import Library, LibraryError, safe_name
from demo.ui.live import LiveRun, Snapshot, Stream
from demo.ui.pictures import ACCENT, draw
from demo.ui.text import MAX_CHARS, literal, plain, untagged
from tests.servers import dead_url
from vrag.errors import ConfigError, MediaError
from vrag.events import (
    Answered,
    Citation,
    Delta,
    Event,
    Failed,
    SearchResults,
    SearchStarted,
    Thought,
    Usage,
    ViewRef,
    ViewShown,
)
from vrag.geometry import Box
from vrag.items import Hit, Item
from vrag.records import RecordWriter

HOSTILE = (
    "</script><b>bold</b> $x^2$ :red[alarm] :material/home: :smile: <!-- ![](http://x.test/a.png) `code` **b** &lt;"
)
PAGE = Item(id="report_2", kind="image", document="report.pdf", page=2, width=800, height=1000)


# Text


@given(st.text(max_size=200))
@example(HOSTILE)
def test_literal_text_is_escaped_whatever_it_is(text: str) -> None:
    shown = literal(text)
    assert "<" not in shown
    assert ">" not in shown
    assert '"' not in shown
    visible = "".join(letter for letter in text if letter.isprintable() or letter in "\t\n")
    assert "".join(letter for letter in html.unescape(shown) if letter.isprintable() or letter in "\t\n") == visible


def test_literal_text_ends_somewhere() -> None:
    assert len(literal("x" * 1_000_000)) == MAX_CHARS + 4


def test_literal_text_loses_what_turns_its_direction() -> None:
    assert literal("a\u202eb\x00c\x1b[31m") == "abc[31m"


@given(st.text(max_size=100))
@example(HOSTILE)
def test_labels_have_no_mark_with_a_meaning(text: str) -> None:
    label = plain(text)
    assert "\n" not in label
    bare = label.replace("\\\\", "")
    for position, letter in enumerate(bare):
        if letter in "!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~":
            assert bare[position - 1] == "\\", label
    for code in (":material/", ":smile:", "->", "--", "<-"):  # looked for in the text after the escapes are gone
        assert code not in label.replace("\\", "")


def test_an_address_in_a_label_can_be_copied() -> None:
    address = "http://127.0.0.1:8001/search"
    assert plain(address).replace("\\", "") == address


def test_the_tags_of_the_wire_are_not_shown_while_a_reply_is_written() -> None:
    assert untagged("<think>I look.</think><search>solar pow") == "I look.\nsolar pow"
    assert untagged("<think>1 < 2 and a <b") == "1 < 2 and a"


# File names


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd.pdf", "passwd.pdf"),
        ("C:\\Users\\me\\Report.PDF", "Report.PDF"),
        ("/abs/olute.txt", "olute.txt"),
        (".hidden.pdf", "hidden.pdf"),
        ("..pdf", "document.pdf"),
        ("..", "document"),
        ("", "document"),
        ("a\x00b\n.pdf", "ab.pdf"),
        ("in\u202efdp.exe", "infdp.exe"),
        ('a<b>:"c|?*.png', "a_b_c_.png"),
        ("年度报告 2025.pdf", "年度报告 2025.pdf"),
        ("x.tar.gz", "x.tar.gz"),
        ("no suffix", "no suffix"),
        ("odd.suf fix", "odd.suf fix"),
    ],
)
def test_a_file_name_is_only_a_name(given_name: str, name: str) -> None:
    assert safe_name(given_name) == name


@given(st.text(max_size=400))
@example("年" * 300 + ".pdf")
def test_any_name_can_be_a_file(name: str) -> None:
    safe = safe_name(name)
    assert safe == safe_name(safe)
    assert not safe.startswith(".")
    assert not set(safe) & set("/\\\x00\n")
    assert 0 < len(safe.encode()) <= 220


# The documents


def test_no_upload_overwrites_another(tmp_path: Path) -> None:
    library = Library(tmp_path / "documents", tmp_path / "index")
    assert library.save("a.txt", b"one") == ""
    assert library.save("sub/a.txt", b"one") == "a.txt is there already."
    assert "kept as A (2).txt" in library.save("A.txt", b"two")
    assert "kept as a (3).txt" in library.save("a.txt", b"three")
    assert library.save("a.txt", b"three") == "a (3).txt is there already."
    assert library.names() == ["A (2).txt", "a (3).txt", "a.txt"]
    assert (tmp_path / "documents" / "a.txt").read_bytes() == b"one"
    assert not list((tmp_path / "documents").glob("*.part"))


def test_documents_are_indexed_listed_and_removed(tmp_path: Path) -> None:
    library = Library(tmp_path / "documents", tmp_path / "index")
    library.save("note.md", b"The lighthouse was lit in 1887.")
    library.save("empty.txt", b"")
    reloads: list[set[str]] = []

    def reload() -> None:
        reloads.append(set(library.contents().pages))

    job = library.update(reload)
    with pytest.raises(LibraryError, match="right now"):
        library.update(reload)
    assert job.wait(120)
    assert job.error == ""
    assert job.done == job.total > 0
    assert library.contents().pages == {"note.md": 1, "empty.txt": 0}
    assert "empty" in library.contents().problems["empty.txt"][0]
    for name in ("empty.txt", "note.md"):  # the last one too, which leaves an empty folder
        job = library.remove(name, reload)
        assert job.wait(120)
        assert job.error == ""
    assert library.names() == []
    assert reloads == [{"note.md", "empty.txt"}, {"note.md"}, set()]
    with pytest.raises(LibraryError, match="no document"):
        library.remove("../documents", reload)


def test_what_goes_wrong_with_the_index_is_said(tmp_path: Path) -> None:
    library = Library(tmp_path / "documents", tmp_path / "index")
    library.save("note.md", b"The lighthouse was lit in 1887.")

    def unreachable() -> None:
        raise LibraryError("the search service does not answer")

    job = library.update(unreachable)
    assert job.wait(120)
    assert "does not answer" in job.error
    (tmp_path / "index" / "manifest.json").write_text("{}")
    with pytest.raises(LibraryError, match=r"manifest\.json"):
        library.contents()
    job = library.rebuild(lambda: None)
    assert job.wait(120)
    assert job.error == ""
    assert library.contents().pages == {"note.md": 1}


# Runs in the background


def events_of(*events: Event) -> Stream:
    def stream(_: Callable[[], bool]) -> Generator[Event, None, None]:
        yield from events

    return stream


def test_a_run_collects_its_events() -> None:
    run = LiveRun("why?", events_of(Thought(text="hm"), Delta(channel="content", text="because"), end := answered()))
    assert run.wait(10)
    seen = run.snapshot()
    assert seen.done
    assert [event.type for event in seen.events] == ["thought", "answer"]
    assert seen.writing == ""
    assert seen.end == end


def test_a_run_shows_the_reply_that_is_being_written() -> None:
    written, go_on = threading.Event(), threading.Event()

    def stream(_: Callable[[], bool]) -> Generator[Event, None, None]:
        yield Thought(text="hm")
        for piece in ("be", "cause"):
            yield Delta(channel="content", text=piece)
        written.set()
        go_on.wait(10)
        yield answered()

    run = LiveRun("why?", stream)
    assert written.wait(10)
    seen = run.snapshot()
    assert (seen.done, seen.writing, seen.end) == (False, "because", None)
    go_on.set()
    assert run.wait(10)


def test_a_run_can_be_stopped() -> None:
    closed = threading.Event()

    def stream(should_stop: Callable[[], bool]) -> Generator[Event, None, None]:
        try:
            while not should_stop():
                yield Thought(text="still at it")
            yield Failed(text="The run was stopped.", reason="stopped")
        finally:
            closed.set()

    run = LiveRun("why?", stream)
    run.stop()
    assert run.wait(10)
    assert closed.is_set()
    end = run.snapshot().end
    assert isinstance(end, Failed)
    assert end.reason == "stopped"


@pytest.mark.parametrize(
    ("error", "said"), [(ConfigError("Wrong settings."), "Wrong settings."), (KeyError("lost"), "unexpectedly: 'lost'")]
)
def test_a_run_that_breaks_says_so(error: Exception, said: str) -> None:
    def stream(_: Callable[[], bool]) -> Generator[Event, None, None]:
        yield Thought(text="hm")
        raise error

    run = LiveRun("why?", stream)
    assert run.wait(10)
    end = run.snapshot().end
    assert isinstance(end, Failed)
    assert said in end.text
    assert end.error == type(error).__name__


# Pictures


def jpeg(size: tuple[int, int], inside: Box) -> bytes:
    """A white page with a blue part."""
    picture = Image.new("RGB", size, "white")
    picture.paste((20, 40, 200), tuple(int(side) for side in inside.as_list()))  # type: ignore[arg-type]
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=95)
    return out.getvalue()


def like(pixel: Any, colour: tuple[int, int, int]) -> bool:
    return all(abs(int(one) - other) < 40 for one, other in zip(pixel, colour, strict=True))


@pytest.mark.parametrize("stored", [(800, 1000), (1600, 2000), (2400, 3000)])
def test_the_box_is_drawn_where_it_belongs(stored: tuple[int, int]) -> None:
    """In page pixels, whatever the size at which the page is stored and shown."""
    box = Box(200, 300, 600, 500)
    scale = stored[0] / 800
    data = jpeg(stored, Box(*(side * scale for side in box.as_list())))
    with Image.open(io.BytesIO(draw(data, PAGE, box, "page"))) as shown:
        factor = shown.width / 800
        line = max(3, shown.width // 250)
        for side, along in ((200, 400), (600, 400)):
            x = side * factor + (-line / 2 if side == 200 else line / 2)
            assert like(shown.getpixel((round(x), round(along * factor))), ACCENT)
        for side, along in ((300, 400), (500, 400)):
            y = side * factor + (-line / 2 if side == 300 else line / 2)
            assert like(shown.getpixel((round(along * factor), round(y))), ACCENT)
        assert like(shown.getpixel((round(400 * factor), round(400 * factor))), (20, 40, 200))  # not dimmed
        outside = shown.getpixel((round(100 * factor), round(100 * factor)))
        assert sum(outside) < 3 * 245
    with Image.open(io.BytesIO(draw(data, PAGE, box, "region"))) as region:
        assert region.width / region.height == pytest.approx(2, rel=0.02)
        assert like(region.getpixel((region.width // 2, region.height // 2)), (20, 40, 200))
        assert like(region.getpixel((5, 5)), (20, 40, 200))


def test_a_box_over_the_edge_is_cut_and_a_whole_page_is_not_marked() -> None:
    data = jpeg((800, 1000), Box(0, 0, 10, 10))
    with Image.open(io.BytesIO(draw(data, PAGE, Box(700, 900, 2000, 2000), "page"))) as shown:
        assert shown.size == (800, 1000)
        assert like(shown.getpixel((698, 950)), ACCENT)
    with Image.open(io.BytesIO(draw(data, PAGE, Box(0, 0, 800, 1000), "page"))) as shown:
        assert like(shown.getpixel((799, 500)), (255, 255, 255))


def test_what_is_no_picture_is_an_error() -> None:
    with pytest.raises(MediaError):
        draw(b"<svg onload=alert(1)>", PAGE, None, "page")


# What is drawn of a run


def answered(text: str = "42", box: Box | None = None) -> Answered:
    return Answered(step=2, text=text, reason="answer", citations=(Citation(item=PAGE, box=box),))


def course(text: str = "I search.") -> tuple[Event, ...]:
    view = ViewRef(item=PAGE, box=Box(0, 0, 800, 1000), size=(400, 500))
    return (
        Usage(step=1, prompt_tokens=100, completion_tokens=20, images=1, image_pixels=1_200_000),
        Thought(step=1, text=text),
        SearchStarted(step=1, query="what is <b>it</b>"),
        SearchResults(step=1, query="what is <b>it</b>", hits=(Hit(item=PAGE, score=1.0),), shown=("report_2",)),
        ViewShown(step=1, view=view, source="search"),
        Usage(step=2, prompt_tokens=900, completion_tokens=30),
    )


def test_the_words_of_an_event_hold_no_markup_of_others() -> None:
    words = "".join(timeline.lines(event) for event in course(HOSTILE))
    assert "<b>it" not in words
    assert "</script>" not in words
    assert "&lt;/script&gt;&lt;b&gt;bold&lt;/b&gt; $x^2$ :red[alarm]" in words
    assert "looked at" in words


def test_the_cost_is_summed_over_the_calls() -> None:
    assert timeline.cost(course()).words(12.4) == "12 s · 2 model calls · 1,050 tokens · 1.2 MP looked at"
    assert timeline.cost(()).words(0) == "0 s · 0 model calls · 0 tokens · 0.0 MP looked at"


def test_what_the_agent_is_doing_is_said() -> None:
    events = course()
    assert run_view.doing(Snapshot("q", (), done=False)) == "Thinking ..."
    assert run_view.doing(Snapshot("q", events[:3], done=False)) == "Searching ..."
    assert run_view.doing(Snapshot("q", events, done=False)) == "Reading report.pdf, page 2 ..."
    assert run_view.doing(Snapshot("q", events, writing="<thi", done=False)) == "Writing ..."
    assert run_view.doing(Snapshot("q", events, done=False, stopping=True)) == "Stopping ..."


# Pages


def recorded(folder: Path, question: str, *events: Event) -> str:
    """A run on disk; returns its id."""
    writer = RecordWriter(folder, question, settings={"model": "scripted"})
    for event in events:
        writer.event(event)
    writer.close()
    return writer.id


def runs_script(folder: str, search_url: str) -> None:
    from pathlib import Path

    from demo.ui import runs_page
    from vrag.settings import Settings

    runs_page.page(Settings(record_dir=Path(folder), search_url=search_url))


def page_text(app: AppTest) -> str:
    return "\n".join(element.value for element in [*app.title, *app.caption, *app.info, *app.error, *app.warning])


def html_text(app: AppTest) -> str:
    return "\n".join(element.proto.body for element in app.get("html"))


def test_past_runs_are_listed_and_opened_without_the_search_service(tmp_path: Path) -> None:
    run_id = recorded(tmp_path, HOSTILE, *course(HOSTILE), answered(HOSTILE, Box(10, 20, 300, 200)))
    recorded(tmp_path, "cut off", Thought(step=1, text="and then"))
    (tmp_path / "other.jsonl").write_text("not a record\n")
    app = AppTest.from_function(runs_script, args=(str(tmp_path), dead_url()), default_timeout=60).run()
    assert not app.exception
    assert [button.label for button in app.button] == [plain("cut off"), plain(HOSTILE, 160)]
    app.query_params["run"] = run_id
    app.run()
    assert not app.exception
    shown = html_text(app)
    assert "&lt;/script&gt;&lt;b&gt;bold&lt;/b&gt; $x^2$ :red[alarm]" in shown
    assert "</script>" not in shown
    assert "<b>bold" not in shown
    assert "does not answer" in shown  # in the place of the pictures
    assert "report.pdf, page 2" in shown


@pytest.mark.parametrize("wanted", ["../../etc/passwd", "no such run", "/etc/hostname"])
def test_an_address_that_names_no_run_opens_nothing(tmp_path: Path, wanted: str) -> None:
    app = AppTest.from_function(runs_script, args=(str(tmp_path), dead_url()), default_timeout=60)
    app.query_params["run"] = wanted
    app.run()
    assert not app.exception
    assert "no such run" in page_text(app)


def test_a_damaged_record_is_said(tmp_path: Path) -> None:
    run_id = recorded(tmp_path, "question", Thought(step=1, text="hm"))
    with (tmp_path / f"{run_id}.jsonl").open("a") as record:
        record.write('{"type": "riddle"}\n{"type": "riddle"}\n')
    app = AppTest.from_function(runs_script, args=(str(tmp_path), dead_url()), default_timeout=60)
    app.query_params["run"] = run_id
    app.run()
    assert not app.exception
    assert "line 3" in page_text(app).replace("\\", "")


def test_the_app_says_what_is_not_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAG_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("VRAG_BASE_URL", dead_url() + "/v1")
    monkeypatch.setenv("VRAG_SEARCH_URL", dead_url() + "/search")
    app = AppTest.from_file(str(Path(__file__).parents[2] / "demo" / "app.py"), default_timeout=60).run()
    assert not app.exception
    assert [bool("does not answer" in warning.value) for warning in app.warning] == [True, True]
    assert "run_demo" in app.warning[0].value
    assert app.chat_input[0].placeholder == "Ask about the documents"


def test_a_setting_that_makes_no_sense_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAG_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("VRAG_TOP_K", "many")
    app = AppTest.from_file(str(Path(__file__).parents[2] / "demo" / "app.py"), default_timeout=60).run()
    assert not app.exception
    assert "VRAG_TOP_K" in app.error[0].value
