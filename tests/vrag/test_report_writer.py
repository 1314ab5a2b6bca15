"""Sectioned answers: the reading of what a model writes, the evidence it is shown, and what happens when it does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.reader import create_app
from demo.vrag_agent import VRAG
from tests.servers import Fault, Scripted, ScriptedModel, TinyRetriever, dead_url, page, pictures, serve
from tests.vrag.runs_for_reports import VRAG_SCRIPT, record_vimrag, record_vrag, search_service
from vrag.chat import ChatModel
from vrag.errors import ModelError
from vrag.records import Record, read_record
from vrag.report import Report, RunTrace, WriterOptions, export_html, export_markdown, write_report
from vrag.report.model import Claim
from vrag.report.writer import Draft, parse_report
from vrag.retriever import HttpRetriever
from vrag.settings import ChatSettings

GOOD = """# Wind power in the park

## Answer
The park has 42 MW [1]. It was measured in 2023 [1][2].

## Details
- The table names **42 MW** [1]
- The page shows the park [2]
"""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("VRAG_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Record, Record, str]]:
    folder = tmp_path_factory.mktemp("runs")
    with search_service() as url:
        yield record_vrag(folder, url), record_vimrag(folder, url), url


def write(run: Record, search_url: str, *script: Scripted) -> tuple[Report, ScriptedModel]:
    model = ScriptedModel(script)
    with serve(model.app) as url:
        chat_settings = ChatSettings(base_url=f"{url}/v1", model="scripted", retries=0)
        with ChatModel(chat_settings) as chat, HttpRetriever(search_url) as retriever:
            return write_report(run, chat, retriever), model


def claims(draft: Draft) -> list[Claim]:
    return [claim for section in draft.sections for one in section.paragraphs for claim in one.claims]


# Reading


def test_a_report_is_read_into_sections_of_claims() -> None:
    draft = parse_report(GOOD, {1, 2})
    assert draft.title == "Wind power in the park"
    assert [section.title for section in draft.sections] == ["Answer", "Details"]
    (first,) = draft.sections[0].paragraphs
    assert first.claims == (Claim("The park has 42 MW.", (1,)), Claim("It was measured in 2023.", (1, 2)))
    assert [paragraph.bullet for paragraph in draft.sections[1].paragraphs] == [True, True]
    assert claims(draft)[2] == Claim("The table names 42 MW", (1,))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("A [1].", [("A.", (1,))]),
        ("A [1][2]. B [2].", [("A.", (1, 2)), ("B.", (2,))]),
        ("A [1, 2] and B [2-3]", [("A", (1, 2)), ("and B", (2, 3))]),
        ("A [1–3]", [("A", (1, 2, 3))]),
        ("A【2】。B【1】。", [("A。", (2,)), ("B。", (1,))]),
        ("A [^1] B [Evidence 2] C [source 3]", [("A", (1,)), ("B", (2,)), ("C", (3,))]),
        ("A [1](#somewhere) B [2](http://evil.example/x)", [("A", (1,)), ("B", (2,))]),
        ("[2] A", [("A", (2,))]),
        ("A [1] B", [("A", (1,)), ("B", ())]),
        ("A", [("A", ())]),
        ("A [9]", [("A", ())]),
        ("A [1][9]", [("A", (1,))]),
        ("A [1][1]", [("A", (1,))]),
        ("A [3-1]", [("A", (3, 1))]),
        ("A [1-999999]", [("A", (1,))]),
        ("A [0]", [("A", ())]),
        ("[1] [2]", []),
        ("Sales [in euros] rose [1]", [("Sales [in euros] rose", (1,))]),
    ],
)
def test_citations(text: str, read: list[tuple[str, tuple[int, ...]]]) -> None:
    found = claims(parse_report(text, {1, 2, 3}))
    assert [(claim.text, claim.evidence) for claim in found] == read
    assert all(claim.unsupported == (not claim.evidence) for claim in found)


def test_unknown_citations_are_dropped_and_named() -> None:
    draft = parse_report("A [7]. B [1][8]. C [7].", {1})
    assert draft.unknown == (7, 8)
    assert [claim.evidence for claim in claims(draft)] == [(), (1,), ()]


@pytest.mark.parametrize(
    ("text", "title", "sections"),
    [
        ("A [1]", "", ["Report"]),
        ("# T\nA [1]", "T", ["Summary"]),
        ("# T [1]\n\n**First:**\nA [1]\n\n# Second\nB [1]", "T", ["First:", "Second"]),
        ("## Empty\n\n## Full\nA [1]", "", ["Full"]),
        ("<think># No\n## Not this\nX [1]</think># T\n## S\nA [1]", "T", ["S"]),
        ("```markdown\n# T\n## S\nA [1]\n```", "T", ["S"]),
        ("", "", []),
        ("# T", "T", []),
    ],
)
def test_headings(text: str, title: str, sections: list[str]) -> None:
    draft = parse_report(text, {1})
    assert draft.title == title
    assert [section.title.rstrip(":") for section in draft.sections] == [one.rstrip(":") for one in sections]


PIECES = st.sampled_from(
    ["# ", "## ", "\n", "\n\n", "- ", "[1]", "[2]", "[99]", "[1-3]", "[", "]", "**", "```\n", "<think>", "</think>", "word ",
     "<answer>", "42. ", "|", "\x00", "\ud800", "【1】", "[1](", ")", "<search>", "[^", "年", "1) "]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=40).map("".join)))
def test_any_reply_can_be_read(reply: str) -> None:
    draft = parse_report(reply, {1, 2})
    for section in draft.sections:
        assert section.title
        assert section.paragraphs
    for claim in claims(draft):
        assert any(sign.isalnum() for sign in claim.text)
        assert set(claim.evidence) <= {1, 2}
        assert claim.unsupported == (not claim.evidence)
    assert not set(draft.unknown) & {1, 2}


def test_reading_takes_linear_time() -> None:
    for piece in ("[1", "[1, ", "[1-", "# ", "**a", "- ", "[1]", "【", "(", "[evidence "):
        parse_report(piece * 20_000, {1})


# Writing


def test_the_model_is_shown_the_evidence_and_its_report_is_kept(records: tuple[Record, Record, str]) -> None:
    record, _, url = records
    report, model = write(record, url, GOOD)
    (request,) = model.requests
    # The cited region first, then the page it is on.
    assert [one.where for one in report.exhibits][1] == "report.pdf, page 2"
    assert report.exhibits[0].box is not None
    assert [one.cited for one in report.exhibits] == [True, False]
    assert len(pictures(request)) == 2
    texts = [part["text"] for part in request["messages"][0]["content"] if part["type"] == "text"]
    assert texts[0].startswith("[1] report.pdf, page 2, region")
    assert texts[-1].endswith("Question: How much wind power?")
    assert "42 MW" in texts[-1]
    assert report.written_by == "model"
    assert report.title == "Wind power in the park"
    assert report.unsupported == ()
    assert report.notes == ()
    assert report.usage[0].prompt_tokens == 100
    assert report.usage[0].images == 2


def test_the_evidence_of_a_graph_is_what_it_keeps(records: tuple[Record, Record, str]) -> None:
    _, record, url = records
    report, model = write(record, url, "## Answer\nThe park has 42 MW [1], as the film shows [2]. The page agrees [3].")
    assert {one.item.id for one in report.exhibits} == {"notes", "film", "report_2"}
    assert len(pictures(model.requests[0])) == 2  # a frame and a page; the notes are text
    texts = [part["text"] for part in model.requests[0]["messages"][0]["content"] if part["type"] == "text"]
    assert any("the park has 42 MW" in text for text in texts)
    assert len(report.claims) == 3


def test_a_report_is_exported_with_its_citations(records: tuple[Record, Record, str]) -> None:
    record, _, url = records
    report, _ = write(record, url, GOOD, GOOD)
    html = export_html([report], None)
    assert 'href="#evidence-1-2"' in html
    assert 'id="evidence-1-2"' in html
    assert "Details" in html
    text = export_markdown([report], None)["report.md"].decode()
    assert "It was measured in 2023. [\\[1\\]](#evidence-1-1) [\\[2\\]](#evidence-1-2)" in text
    assert "The park has 42 MW. [1] It was measured in 2023. [1] [2]" in report.text()
    assert report.as_json()["sections"][0]["paragraphs"][0][0] == {
        "text": "The park has 42 MW.",
        "evidence": [1],
        "unsupported": False,
    }


LOOSE = "## Answer\nThe park has 42 MW [1]. It is the largest of all."


def test_a_claim_without_evidence_is_sent_back_once(records: tuple[Record, Record, str]) -> None:
    record, _, url = records
    report, model = write(record, url, LOOSE, GOOD)
    assert len(model.requests) == 2
    asked = model.requests[1]["messages"][-1]["content"]
    assert "- It is the largest of all." in str(asked)
    assert "[1], [2]" in str(asked)
    assert report.unsupported == ()
    assert len(report.usage) == 2


@pytest.mark.parametrize("second", [LOOSE, "I cannot.", Fault(500, {"error": {"message": "out of memory"}})])
def test_a_revision_that_mends_nothing_is_not_taken(records: tuple[Record, Record, str], second: Scripted) -> None:
    record, _, url = records
    report, _ = write(record, url, LOOSE, second)
    assert [claim.text for claim in report.unsupported] == ["It is the largest of all."]
    assert any("1 statement is marked" in note for note in report.notes)
    for written in (export_html([report], None), export_markdown([report], None)["report.md"].decode()):
        assert "without evidence" in written


def test_invented_citations_are_said(records: tuple[Record, Record, str]) -> None:
    report, _ = write(records[0], records[2], "The park has 42 MW [1][7].")
    assert any("[7]" in note for note in report.notes)
    assert report.claims == (Claim("The park has 42 MW.", (1,)),)


@pytest.mark.parametrize(
    "reply",
    ["42 MW", "", "I do not know.", "# T\n## S\nA [99]", Fault(400, {"error": {"message": "context too long"}})],
)
def test_without_a_usable_reply_the_run_speaks_for_itself(records: tuple[Record, Record, str], reply: Scripted) -> None:
    vrag, vimrag, url = records
    for record, said in ((vrag, "The table says 42 MW."), (vimrag, "The film shows the turbines")):
        report, _ = write(record, url, reply)
        assert report.written_by == "run"
        assert any("put together from what the run itself noted" in note for note in report.notes)
        assert report.sections
        supported = [claim for claim in report.claims if claim.evidence]
        assert any(said in claim.text for claim in supported)
        assert {number for claim in supported for number in claim.evidence} <= {one.number for one in report.exhibits}
        assert "put together" in export_html([report], None)


def test_evidence_that_is_gone_is_left_out_and_said(records: tuple[Record, Record, str]) -> None:
    _, record, _ = records
    # The passage is in the record; the page and the film went down with the service.
    report, model = write(
        record, dead_url(), "The notes say 42 MW [2], the film shows it [3].", "The notes say 42 MW [2]."
    )
    assert pictures(model.requests[0]) == []
    assert [one.item.kind for one in report.exhibits] == ["image", "text", "video"]
    assert report.claims == (Claim("The notes say 42 MW.", (2,)),)
    assert sum("could not be shown to the model" in note for note in report.notes) == 2


def test_a_run_without_evidence_is_not_asked_about() -> None:
    chat_settings = ChatSettings(base_url=dead_url(), model="scripted")
    with ChatModel(chat_settings) as chat, HttpRetriever(dead_url()) as retriever:
        report = write_report(RunTrace.of_events("Q?", []), chat, retriever)
    assert report.usage == ()
    assert report.sections == ()
    assert "There is no report by the model" in report.notes[0]
    assert export_html([report], None)


def test_own_prompts(tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("Berichte. {question}", "utf-8")
    options = WriterOptions.load(tmp_path, max_exhibits=2)
    assert options.prompt == "Berichte. {question}"
    assert "{numbers}" in options.revise
    assert options.max_exhibits == 2


# The agent


def test_the_agent_reports(tmp_path: Path) -> None:
    model = ScriptedModel([*VRAG_SCRIPT, GOOD])
    service = TinyRetriever([page("report_1", "solar power"), page("report_2", "wind power")])
    with serve(model.app) as model_url, serve(service.app) as search_url:
        agent = VRAG(base_url=f"{model_url}/v1", search_url=search_url, record_dir=tmp_path, generator=True)
        report = agent.report("How much wind power?")
        with pytest.raises(ModelError):  # the script is over: what ends a run is raised
            agent.report("And now?")
    assert report.written_by == "model"
    assert report.trace.answer == "42 MW"
    assert model.requests[3]["max_tokens"] >= 4096
    record = read_record(next(path for path in tmp_path.glob("*.jsonl") if path.stem == report.trace.id))
    assert RunTrace.of_record(record).exhibits() == report.exhibits


def test_the_extractive_reader_still_gives_a_report(tmp_path: Path) -> None:
    """The reader answers with a few words and cites nothing: the report is well-formed all the same."""
    service = TinyRetriever([page("report_1", "The wind park has 42 MW of power")])
    with serve(create_app(warm=False)) as model_url, serve(service.app) as search_url:
        report = VRAG(base_url=f"{model_url}/v1", search_url=search_url).report("How much power has the wind park?")
    assert report.written_by == "run"
    assert report.trace.answer is not None
    assert report.sections
    assert all(claim.evidence for claim in report.sections[0].paragraphs[0].claims)
    assert "Evidence" in export_html([report], None)
