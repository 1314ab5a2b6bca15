"""Run records: complete, by reference, without keys, readable after a kill, and clear about what is no record."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers import Fault, Say, ScriptedModel, TinyRetriever, page, page_image, serve
from vrag.chat import ChatModel
from vrag.episode import Generate, Generation, Outcome, Retrieve
from vrag.errors import RecordError, RetrieverError
from vrag.events import Answered, Citation, Delta, Note, SearchStarted, ViewRef, ViewShown
from vrag.geometry import Box
from vrag.items import Hit, Item
from vrag.messages import message
from vrag.pages import open_page, view_of
from vrag.records import FetchEntry, RecordWriter, RetrieveEntry, list_runs, read_record
from vrag.retriever import HttpRetriever
from vrag.runner import run
from vrag.settings import Settings
from vrag.vrag_episode import VragEpisode

KEYS = {"api_key": "sk-of-the-model", "search_api_key": "k-of-the-search"}
ITEM = Item(id="report_1", kind="image", document="report.pdf", page=1, width=800, height=1000)


def recorded_run(folder: Path, *script: Any) -> tuple[Path, list[Any], Outcome | None]:
    """A run through real servers; the path of its record, the events as they came, the outcome."""
    model = ScriptedModel(script)
    service = TinyRetriever([page("report_1", "solar power"), page("report_2", "wind power")], KEYS["search_api_key"])
    with serve(model.app) as model_url, serve(service.app) as search_url:
        options = Settings(base_url=f"{model_url}/v1", model="scripted", search_url=search_url, retries=0, **KEYS)
        writer = RecordWriter(folder, "How much?", settings=options.public(), secrets=options.secrets())
        with ChatModel(options) as chat, HttpRetriever(options) as retriever:
            course = run(VragEpisode("How much?"), chat, retriever, record=writer)
            events = list(course)
    return writer.path, events, course.outcome


SCRIPT = (
    Say("<think>Look.</think><search>wind power</search>", reasoning="Hm.", usage=(50, 7)),
    "<think>Closer.</think><bbox>[10, 20, 300, 200]</bbox>",
    "<think>There.</think><answer>42 MW</answer>",
)


def test_a_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    path, events, outcome = recorded_run(tmp_path / "new" / "folder", *SCRIPT)
    record = read_record(path)
    assert record.question == "How much?"
    assert record.outcome == outcome
    assert record.events == [event for event in events if not isinstance(event, Delta)]
    assert not record.cut
    assert record.header.settings["model"] == "scripted"
    assert record.header.settings["max_steps"] == 10
    assert record.header.versions.keys() >= {"vrag", "python", "openai"}
    retrievals = [entry for entry in record.entries if isinstance(entry, RetrieveEntry)]
    assert [(entry.query, entry.top_k, entry.hits) for entry in retrievals] == [
        ("wind power", 3, (("report_2", 2.0), ("report_1", 1.0)))
    ]
    (fetched,) = (entry for entry in record.entries if isinstance(entry, FetchEntry))
    assert (fetched.item_id, fetched.bytes > 1000, fetched.seconds > 0) == ("report_2", True, True)
    times = [entry.at for entry in record.entries]
    assert times == sorted(times)


def test_every_request_to_the_model_can_be_put_together_again(tmp_path: Path) -> None:
    path, events, _ = recorded_run(tmp_path, *SCRIPT)
    entries, contexts = zip(*read_record(path).contexts(), strict=True)
    assert [entry.reply.text for entry in entries] == [SCRIPT[0].text, SCRIPT[1], SCRIPT[2]]
    assert (entries[0].reply.reasoning, entries[0].reply.prompt_tokens, entries[0].reply.finish_reason) == (
        "Hm.",
        50,
        "stop",
    )
    assert [entry.step for entry in entries] == [1, 2, 3]
    assert [entry.keep for entry in entries] == [0, 1, 3]
    assert [[turn.role for turn in context] for context in contexts] == [
        ["user"],
        ["user", "assistant", "user"],
        ["user", "assistant", "user", "assistant", "user"],
    ]
    shown = [event.view for event in events if isinstance(event, ViewShown)]
    assert [part for turn in contexts[-1] for part in turn.content if isinstance(part, ViewRef)] == shown


def test_no_key_and_no_picture_is_ever_written(tmp_path: Path) -> None:
    hostile = f"<search>data:image/png;base64,{'iVBORw0KGgo' * 50}== {KEYS['api_key']}</search>"
    echo = Fault(400, {"error": {"message": f"refused {KEYS['api_key']} and {KEYS['search_api_key']}"}})
    path, _, outcome = recorded_run(tmp_path, hostile, echo)
    assert outcome is not None
    assert outcome.reason == "error"
    text = path.read_text(encoding="utf-8")
    for secret in KEYS.values():
        assert secret not in text
    assert "base64" not in text
    assert "iVBORw0KGgo" not in text
    assert "***" in text
    assert "data:(left out)" in text
    assert len(text) < 60_000


def test_failures_are_kept_with_the_request_they_befell(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, "q")
    writer.request(Retrieve("wind", 3), None, step=1, seconds=0.5, error=RetrieverError("down"))
    writer.end(Outcome(None, "error", 1))
    (entry, _) = read_record(writer.path).entries
    assert isinstance(entry, RetrieveEntry)
    assert (entry.error, entry.seconds, entry.step) == ("RetrieverError: down", 0.5, 1)


def test_metadata_of_hits_cannot_smuggle_files_in(tmp_path: Path) -> None:
    smuggled = ITEM.model_copy(update={"metadata": {"thumb": ["data:image/jpeg;base64," + "A" * 5000]}})
    writer = RecordWriter(tmp_path, "q")
    writer.event(ViewShown(view=ViewRef(item=smuggled, box=view().box, size=(5, 5)), source="search"))
    writer.close()
    assert writer.path.stat().st_size < 2000
    assert len(read_record(writer.path).events) == 1


def view() -> Any:
    return view_of(open_page(page_image("solar"), ITEM))


KILLED = """
import os, signal, sys
from vrag.events import Note
from vrag.records import RecordWriter
writer = RecordWriter(sys.argv[1], "killed")
print(writer.path, flush=True)
for number in range(10**6):
    writer.event(Note(step=number, text="x" * 500))
    if number == 500:
        print("written", flush=True)
"""


def test_a_killed_run_leaves_a_readable_prefix(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    assert child.stdout.readline() == "written\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    record = read_record(path)
    assert record.outcome is None
    assert [event.step for event in record.events] == list(range(len(record.events)))
    assert len(record.events) > 500
    (summary,) = list_runs(tmp_path)
    assert (summary.question, summary.reason, summary.answer) == ("killed", None, None)


def small_record(folder: Path) -> Path:
    writer = RecordWriter(folder, "How much?", settings={"model": "m"})
    writer.event(SearchStarted(step=1, query="风电"))
    writer.request(Generate((message("user", "Q", view()),)), Generation("<answer>x</answer>"), step=1)
    writer.event(Answered(step=1, text="x", reason="answer", citations=(Citation(item=ITEM, box=view().box),)))
    writer.end(Outcome("x", "answer", 1, (Citation(item=ITEM),), ("report_1",)))
    return writer.path


def test_every_prefix_is_readable_or_refused_with_a_sentence(tmp_path: Path) -> None:
    data = small_record(tmp_path).read_bytes()
    cut_file = tmp_path / "cut.jsonl"
    header = data.index(b"\n")
    whole = len(read_record(small_record(tmp_path)).entries)
    for length in [*range(0, header + 1, 7), *range(header + 1, len(data), 11), len(data)]:
        cut_file.write_bytes(data[:length])
        if length < header:
            with pytest.raises(RecordError, match="first line"):
                read_record(cut_file)
            continue
        record = read_record(cut_file)
        complete = data[:length].count(b"\n") - 1
        assert len(record.entries) == max(0, complete)
        assert record.cut == (length > header and not data[:length].endswith(b"\n"))
        assert (record.outcome is None) == (complete < whole)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: [lines[0], b"{]", *lines[2:]], "line 2: not an entry"),
        (lambda lines: [lines[0], b'{"type": "surprise"}', *lines[2:]], "line 2: not an entry"),
        (lambda lines: [lines[0], b"[" * 100_000, *lines[2:]], "line 2: not an entry"),
        (lambda lines: [lines[0], b"\xff\xfe", *lines[2:]], "line 2: not an entry"),
        (lambda lines: [lines[0], *lines[2:3], b'{"type": "end", "at": 1}', *lines[3:]], "line 3: not an entry"),
        (lambda lines: lines[1:], "first line is no run header"),
        (lambda lines: [b"", *lines], "first line is no run header"),
        (lambda lines: [b"null", *lines[1:]], "first line is no run header"),
        (lambda lines: [lines[0].replace(b'"question"', b'"answer"'), *lines[1:]], "line 1: not a run header"),
        (lambda lines: [lines[0].replace(b'"format": 1', b'"format": 9'), *lines[1:]], "newer version .format 9"),
    ],
)
def test_what_is_no_record_is_refused_with_the_line(tmp_path: Path, change: Any, expected: str) -> None:
    path = small_record(tmp_path)
    path.write_bytes(b"\n".join(change(path.read_bytes().split(b"\n"))))
    with pytest.raises(RecordError, match=expected):
        read_record(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        read_record(tmp_path / "none.jsonl")
    with pytest.raises(RecordError, match="cannot be read"):
        read_record(tmp_path)


def test_the_list_of_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert list_runs(tmp_path / "not there") == []
    first = small_record(tmp_path)
    unfinished = RecordWriter(tmp_path, "Still going?")
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "readme.txt").write_text("x")
    with caplog.at_level(logging.WARNING, "vrag.records"):
        runs = list_runs(tmp_path)
    unfinished.close()
    assert [run.question for run in runs] == ["Still going?", "How much?"]
    assert (runs[1].path, runs[1].reason, runs[1].answer, runs[1].steps, runs[1].model) == (
        first,
        "answer",
        "x",
        1,
        "m",
    )
    assert (runs[0].reason, runs[0].answer) == (None, None)
    assert "notes.jsonl" in caplog.text


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError, match=r"No run can be recorded in .*record_dir"):
        RecordWriter(tmp_path / "file" / "runs", "q")


def test_a_full_disk_costs_the_record_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = RecordWriter(tmp_path, "q")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        for step in range(100):
            writer.event(Note(step=step, text="x" * 1000))
        writer.end(Outcome("x", "answer", 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert caplog.text.count("ends here") == 1
    record = read_record(writer.path)
    assert 5 < len(record.events) < 20
    assert record.outcome is None


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60), st.text(alphabet=st.characters(exclude_categories=()), max_size=60))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, question: str, said: str) -> None:
    folder = tmp_path_factory.mktemp("runs")
    writer = RecordWriter(folder, question)
    writer.event(Note(text=question))
    hits = [Hit(item=ITEM.model_copy(update={"id": question}), score=1.5)]
    writer.request(Retrieve(question, 2), hits)
    writer.request(Generate((message("user", question),)), Generation(question), error=ValueError(said))
    writer.end(Outcome(question, "answer", 1))
    record = read_record(writer.path)
    assert (record.question, record.outcome) == (question, Outcome(question, "answer", 1))
    assert record.events == [Note(text=question)]
    assert list_runs(folder)[0].answer == question


#: A record as the first version wrote it. Whoever changes the format has to go on reading it.
FIRST_FORMAT = """\
{"type": "run", "format": 1, "id": "20260102T030405-0a1b2c3d", "agent": "vrag", "question": "How much?", \
"settings": {"model": "m"}, "versions": {"vrag": "0.1.0"}, "started": "2026-01-02T03:04:05.678901Z"}
{"type": "generate", "at": 0.5, "seconds": 0.5, "step": 1, "error": "", "purpose": "act", "keep": 0, \
"messages": [{"role": "user", "content": ["Question: How much?"], "tool_calls": [], "tool_call_id": null}], "tools": [], \
"reply": {"text": "<search>wind</search>", "reasoning": "", "tool_calls": [], "finish_reason": "stop", \
"prompt_tokens": 9, "completion_tokens": 5}}
{"type": "event", "at": 0.5, "event": {"type": "search", "step": 1, "query": "wind", "node": null, "parents": []}}
{"type": "retrieve", "at": 0.6, "seconds": 0.1, "step": 1, "error": "", "query": "wind", "top_k": 3, \
"hits": [["report_1", 1.5]]}
{"type": "fetch", "at": 0.7, "seconds": 0.1, "step": 1, "error": "", "item_id": "report_1", "bytes": 12345}
{"type": "generate", "at": 1.0, "seconds": 0.3, "step": 2, "error": "ModelError: gone", "purpose": "act", "keep": 1, \
"messages": [{"role": "assistant", "content": ["<search>wind</search>"], "tool_calls": [], "tool_call_id": null}, \
{"role": "user", "content": [{"item": {"id": "report_1", "kind": "image", "document": "report.pdf", "page": 1, \
"width": 800, "height": 1000, "content": null, "duration": null, "metadata": {}}, \
"box": {"x1": 0.0, "y1": 0.0, "x2": 800.0, "y2": 1000.0}, "size": [566, 708], "timestamp": null}], \
"tool_calls": [], "tool_call_id": null}], "tools": [], "reply": null}
{"type": "end", "at": 1.0, "answer": null, "reason": "error", "steps": 2, "citations": [], "shown": ["report_1"]}
"""


def test_records_of_the_first_format_are_read_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text(FIRST_FORMAT, encoding="utf-8")
    record = read_record(path)
    assert record.outcome == Outcome(None, "error", 2, (), ("report_1",))
    assert record.events == [SearchStarted(step=1, query="wind")]
    (_, first), (failed, second) = record.contexts()
    assert (len(first), len(second), failed.error, failed.reply) == (1, 3, "ModelError: gone", None)
    assert isinstance(second[2].content[0], ViewRef)
    assert second[2].content[0].box == Box(0, 0, 800, 1000)
    assert list_runs(tmp_path)[0].seconds == 1.0


def test_a_run_that_is_closed_early_closes_its_record(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, "How much?")
    model = ScriptedModel(SCRIPT)
    with serve(model.app) as url:
        options = Settings(base_url=f"{url}/v1", model="scripted")
        with ChatModel(options) as chat, HttpRetriever(options) as retriever:
            course = run(VragEpisode("How much?"), chat, retriever, record=writer)
            next(course)
            course.close()
            never_started = RecordWriter(tmp_path, "How much?")
            run(VragEpisode("How much?"), chat, retriever, record=never_started).close()
    for closed in (writer, never_started):
        size = closed.path.stat().st_size
        closed.event(Note(text="too late"))
        assert closed.path.stat().st_size == size
        assert read_record(closed.path).outcome is None
