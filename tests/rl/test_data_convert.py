"""Question files of every form to tables: nothing is lost, nothing is shifted, every drop has its line and its reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrag.errors import ConfigError
from vrag_agent.data.convert import REPORT, Source, convert, main
from vrag_agent.data.formats import Example, read_examples
from vrag_agent.data.rows import Dropped
from vrag_agent.data.table import REQUIRED, read_table, schema, write_table

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "VRAG-RL" / "examples"
SCRIPT = ROOT / "VRAG-RL" / "scripts" / "hf_dataset_convert.py"

VIDOSEEK = {
    "uid": "04d8_2",
    "query": "At what temperature?",
    "reference_answer": "195-205 Centigrade",
    "meta_info": {
        "file_name": "Pretreatment.of.Switchgrass.pdf",
        "reference_page": [10, 11],
        "source_type": "Text",
        "query_type": "Multi-Hop",
    },
}
SLIDEVQA = {
    "qa_id": 17,
    "deck_name": "q3-results_95",
    "deck_url": "https://example.org/q3",
    "image_urls": ["https://example.org/1.jpg"],
    "question": "How many shops?",
    "answer": 12,
    "arithmetic_expression": "None",
    "evidence_pages": [4, 9],
    "reasoning_type": "Multi-Hop",
    "answer_type": "Single-Span",
}
MMLONGDOC = {
    "doc_id": "PH_2016.06.08_Economy-Final.pdf",
    "doc_type": "Research report / Introduction",
    "question": "Which group?",
    "answer": "['White', '10%']",
    "evidence_pages": "[5, 7]",
    "evidence_sources": "['Chart', 'Table']",
    "answer_format": "List",
}


def lines(path: Path, *rows: Any) -> Path:
    texts = [row if isinstance(row, str | bytes) else json.dumps(row) for row in rows]
    path.write_bytes(b"".join((text.encode() if isinstance(text, str) else text) + b"\n" for text in texts))
    return path


def only(path: Path, **kwargs: Any) -> Example:
    (example,) = read_examples(path, **kwargs)
    assert isinstance(example, Example)
    return example


def test_vidoseek(tmp_path: Path) -> None:
    path = tmp_path / "vidoseek.json"
    path.write_text(json.dumps({"examples": [VIDOSEEK]}))
    example = only(path, split="test")
    assert (example.id, example.answer, example.file_name) == (
        "04d8_2",
        "195-205 Centigrade",
        "Pretreatment.of.Switchgrass.pdf",
    )
    assert example.reference_page == (10, 11)
    assert example.relevant_ids == ("Pretreatment.of.Switchgrass_10", "Pretreatment.of.Switchgrass_11")
    assert (example.reason_type, example.content_type) == ("Multi-Hop", "Text")
    assert (example.data_source, example.split) == ("vidoseek", "test")


def test_slidevqa_of_its_authors(tmp_path: Path) -> None:
    example = only(lines(tmp_path / "train.jsonl", SLIDEVQA))
    assert (example.id, example.answer, example.data_source, example.split) == ("17", "12", "slidevqa_train", "train")
    assert example.relevant_ids == ("q3-results_95_4", "q3-results_95_9")
    assert (example.reason_type, example.content_type) == ("Multi-Hop", "Single-Span")


def test_slidevqa_of_the_refined_release_has_both_types_in_one(tmp_path: Path) -> None:
    row = json.loads(json.dumps(VIDOSEEK))
    row["meta_info"] |= {"query_type": "Single-Hop_Non-Span", "source_type": "2d_layout"}
    example = only(lines(tmp_path / "refined.jsonl", row), data_source="slidevqa_test", split="test")
    assert (example.reason_type, example.content_type) == ("Single-Hop", "Non-Span")


def test_mmlongbench_doc_writes_its_lists_as_text(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    path.write_text(json.dumps([MMLONGDOC, {**MMLONGDOC, "evidence_pages": "[]", "answer": "Not answerable"}]))
    first, second = read_examples(path, split="test")
    assert isinstance(first, Example)
    assert first.relevant_ids == ("PH_2016.06.08_Economy-Final_5", "PH_2016.06.08_Economy-Final_7")
    assert (first.content_type, first.reason_type) == ("Chart####Table", "Research report / Introduction")
    assert first.data_source == "mmlongdoc"
    assert isinstance(second, Example)
    assert (second.reference_page, second.answer) == ((), "Not answerable")
    assert first.id != second.id


def test_plain_rows_and_further_files(tmp_path: Path) -> None:
    row = {
        "question": "Both?",
        "golden_answers": ["a", "b"],
        "file_name": "x.pdf",
        "page": 3,
        "split": "dev",
        "evidence": [{"file_name": "y.pdf", "pages": [1]}],
    }
    example = only(lines(tmp_path / "mine.jsonl", row))
    assert (example.answer, example.split, example.data_source) == ("a; b", "dev", "mine")
    assert example.relevant_ids == ("x_3", "y_1")
    assert example.id == "mine-1"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "not an object"),
        ({**VIDOSEEK, "query": " "}, "no question"),
        ({**VIDOSEEK, "reference_answer": None}, "no reference answer"),
        ({**VIDOSEEK, "reference_answer": {}}, "no reference answer"),
        ({**VIDOSEEK, "meta_info": [1]}, "meta_info is not an object"),
        ({**VIDOSEEK, "meta_info": {"file_name": "a.pdf", "reference_page": [0]}}, "not a page number"),
        ({**VIDOSEEK, "meta_info": {"file_name": "a.pdf", "reference_page": ["two"]}}, "not a page number"),
        ({**VIDOSEEK, "meta_info": {"file_name": "a.pdf", "reference_page": [1.5]}}, "not a page number"),
        ({**VIDOSEEK, "meta_info": {"file_name": "a.pdf", "reference_page": [True]}}, "not a page number"),
        ({**VIDOSEEK, "meta_info": {"file_name": "a.pdf", "reference_page": [2**63]}}, "not a page number"),
        ({**VIDOSEEK, "meta_info": {"file_name": "a.pdf", "reference_page": [10**400]}}, "not a page number"),
        ({**VIDOSEEK, "meta_info": {"file_name": ["a.pdf", "b.pdf"], "reference_page": [1]}}, "several files"),
        ({**MMLONGDOC, "evidence_pages": "[5, __import__('os')]"}, "not a list"),
        (b'{"uid": "caf\xe9"}', "not UTF-8"),
        ({**VIDOSEEK, "reference_answer": json.loads("[" * 600 + "]" * 600)}, "nested too deeply"),
        ({**VIDOSEEK, "split": "../../../evil"}, "not a split"),
        ({**VIDOSEEK, "split": {"a": 1}}, "not a split"),
        ({**VIDOSEEK, "split": "t" * 300}, "not a split"),
    ],
)
def test_what_cannot_be_used_is_named_and_shifts_nothing(tmp_path: Path, row: Any, reason: str) -> None:
    good, last = {**VIDOSEEK, "uid": "good"}, {**VIDOSEEK, "uid": "last"}
    path = lines(tmp_path / "test.jsonl", good, "", row, last)
    first, dropped, second = read_examples(path)
    assert isinstance(first, Example)
    assert isinstance(second, Example)
    assert isinstance(dropped, Dropped)
    assert (first.id, second.id) == ("good", "last")
    assert dropped.place == "test.jsonl, line 3"
    assert dropped.reason.startswith(reason)


@pytest.mark.parametrize("question", ["question", "query"])
@pytest.mark.parametrize("file_name", ["file_name", "document"])
def test_a_plain_row_may_call_its_answer_a_reference_answer(tmp_path: Path, question: str, file_name: str) -> None:
    row = {question: "q", "reference_answer": "a", file_name: "f.pdf", "reference_page": [1]}
    example = only(lines(tmp_path / "mine_test.jsonl", row))
    assert (example.question, example.answer, example.data_source) == ("q", "a", "mine_test")
    assert (example.file_name, example.reference_page, example.relevant_ids) == ("f.pdf", (1,), ("f_1",))
    assert only(lines(tmp_path / "test.jsonl", {"query": "q", "reference_answer": "a"})).data_source == "vidoseek"


@pytest.mark.parametrize(("answer", "text"), [(True, "True"), ([False, "no"], "False; no"), (0, "0")])
def test_a_truth_value_is_an_answer(tmp_path: Path, answer: Any, text: str) -> None:
    assert only(lines(tmp_path / "test.jsonl", {**VIDOSEEK, "reference_answer": answer})).answer == text


def test_one_file_may_be_written_as_a_list(tmp_path: Path) -> None:
    row = {**VIDOSEEK, "meta_info": {"file_name": ["a.pdf"], "reference_page": [1]}}
    assert only(lines(tmp_path / "test.jsonl", row)).relevant_ids == ("a_1",)


def test_types_are_rewritten_whatever_the_source_is_called(tmp_path: Path) -> None:
    example = only(lines(tmp_path / "test.jsonl", MMLONGDOC), data_source="mmlong")
    assert (example.data_source, example.content_type) == ("mmlong", "Chart####Table")


def test_half_a_character_does_not_stop_the_conversion(tmp_path: Path) -> None:
    """JSON can write lone surrogates, which neither Parquet nor any other file in UTF-8 can hold."""
    half = {
        **VIDOSEEK,
        "uid": "x\ud83d",
        "query": "\ud83d?",
        "reference_answer": "\udfff",
        "more": {"\ud83d": "\ud83d"},
    }
    listed = {**MMLONGDOC, "evidence_sources": r"['\ud83d']"}
    path = lines(tmp_path / "test.jsonl", half, listed, "\ufeff" + json.dumps({**VIDOSEEK, "query": "a\u2028b"}))
    assert convert([Source(path)], tmp_path).kept == {"test": 3}
    first, *_ = read_table(tmp_path / "overall_test.parquet")
    assert (first["id"], first["extra_info"]["question"]) == ("x\ufffd", "\ufffd?")
    (tmp_path / "dev.json").write_text(json.dumps([half]))
    assert convert([Source(tmp_path / "dev.json")], tmp_path).kept == {"dev": 1}


def test_a_row_without_a_split_is_one_row(tmp_path: Path) -> None:
    path = lines(tmp_path / "mine.jsonl", {**VIDOSEEK, "uid": "a"}, {**VIDOSEEK, "split": " dev "})
    report = convert([Source(path)], tmp_path / "out")
    assert (report.kept, report.dropped, report.files) == ({"dev": 1}, {"no split": 1}, ["overall_dev.parquet"])


def test_a_split_of_the_command_line_is_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be a split"):
        convert([Source(lines(tmp_path / "test.jsonl", VIDOSEEK), split="../up")], tmp_path / "out")


def test_a_table_has_what_trainer_and_reward_read(tmp_path: Path) -> None:
    report = convert([Source(lines(tmp_path / "test.jsonl", VIDOSEEK))], tmp_path / "out")
    assert report.kept == {"test": 1}
    (row,) = read_table(tmp_path / "out" / "overall_test.parquet")
    assert set(REQUIRED) <= set(row)
    assert row["prompt"] == [{"role": "user", "content": VIDOSEEK["query"]}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "195-205 Centigrade"}
    assert row["file_name"] == row["extra_info"]["file_name"] == "Pretreatment.of.Switchgrass.pdf"
    assert row["reference_page"] == row["extra_info"]["reference_page"] == [10, 11]
    assert row["extra_info"]["split"] == "test"
    assert row["extra_info"]["index"] == 0
    assert row["agent_name"] == "vrag"


def test_nothing_of_the_reward_is_in_the_prompt(tmp_path: Path) -> None:
    convert([Source(lines(tmp_path / "test.jsonl", VIDOSEEK))], tmp_path)
    (row,) = read_table(tmp_path / "overall_test.parquet")
    said = json.dumps(row["prompt"])
    assert "195-205" not in said
    assert "Switchgrass" not in said


def test_tables_of_all_sources_have_one_schema_and_real_splits(tmp_path: Path) -> None:
    rows = {"train.jsonl": SLIDEVQA, "vidoseek_test.jsonl": VIDOSEEK, "mm_test.jsonl": MMLONGDOC}
    sources = [Source(lines(tmp_path / name, row)) for name, row in rows.items()]
    report = convert(sources, tmp_path / "out")
    assert report.kept == {"train": 1, "test": 2}
    assert report.sources == {"slidevqa_train": 1, "vidoseek": 1, "mmlongdoc": 1}
    for split in ("train", "test"):
        assert pq.read_schema(tmp_path / "out" / f"overall_{split}.parquet").equals(schema())
    assert [row["extra_info"]["split"] for row in read_table(tmp_path / "out" / "overall_test.parquet")] == ["test"] * 2


def test_drops_are_counted_by_reason(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "test.jsonl",
        VIDOSEEK,
        VIDOSEEK,
        "{",
        {**VIDOSEEK, "uid": "b", "query": ""},
        {**VIDOSEEK, "uid": "c", "meta_info": {}},
    )
    report = convert([Source(path)], tmp_path / "out", require_pages=True)
    assert report.rows == 5
    assert report.dropped == {"id used before": 1, "not JSON": 1, "no question": 1, "no reference page": 1}
    assert json.loads((tmp_path / "out" / REPORT).read_text())["dropped"] == dict(report.dropped)
    assert convert([Source(path)], tmp_path / "all").without_pages == 1


def test_files_that_cannot_be_used_are_sentences(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        convert([Source(broken, split="test")], tmp_path)
    with pytest.raises(ConfigError, match="neither a row nor the file's name"):
        convert([Source(lines(tmp_path / "mine.jsonl", VIDOSEEK))], tmp_path)
    with pytest.raises(ConfigError, match="Not one of 1 rows"):
        convert([Source(lines(tmp_path / "test.jsonl", "{"))], tmp_path)
    with pytest.raises(ConfigError, match="no file"):
        Source.parse("vidoseek=nowhere.json@test")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="Parquet"):
        convert([Source(tmp_path / "x.parquet", split="test")], tmp_path)
    with pytest.raises(ConfigError, match="no format"):
        list(read_examples(broken, form="best"))


def test_a_source_is_parsed_as_written(tmp_path: Path) -> None:
    path = lines(tmp_path / "a=b@c.jsonl", VIDOSEEK)
    assert Source.parse(str(path)) == Source(path)
    plain = lines(tmp_path / "plain.jsonl", VIDOSEEK)
    assert Source.parse(f"vidoseek={plain}@test") == Source(plain, "vidoseek", "test")
    assert Source.parse(f"{plain}@dev") == Source(plain, "", "dev")
    assert Source.parse(f"{path}@test") == Source(path, "", "test")
    assert Source.parse(f"n={path}@test") == Source(path, "n", "test")
    assert Source.parse(f"n={path}") == Source(path, "n")
    with pytest.raises(ConfigError, match="no file"):
        Source.parse(f"{plain}@../up")


def test_parquet_goes_in_too_and_its_pictures_stay_out(tmp_path: Path) -> None:
    row = {**SLIDEVQA, "answer": "12", "page_1": {"bytes": b"\xff\xd8", "path": "1.jpg"}, "more": [{"bytes": b"x"}]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "train-00000.parquet")
    example = only(tmp_path / "train-00000.parquet")
    assert (example.id, example.reference_page) == ("17", (4, 9))
    assert "page_1" not in example.source


def test_a_converted_table_is_no_question_file_but_can_be_read_back(tmp_path: Path) -> None:
    convert([Source(lines(tmp_path / "test.jsonl", VIDOSEEK))], tmp_path)
    (row,) = read_table(tmp_path / "overall_test.parquet", ["extra_info"])
    assert json.loads(row["extra_info"]["source"]) == VIDOSEEK


def test_a_table_is_put_in_place_whole_or_not_at_all(tmp_path: Path) -> None:
    (example,) = read_examples(lines(tmp_path / "test.jsonl", VIDOSEEK))
    assert isinstance(example, Example)
    target = tmp_path / "table.parquet"
    target.mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_table(target, [example], "vrag")
    assert not list(tmp_path.glob(".table*"))


@pytest.mark.skipif(not os.environ.get("VRAG_DEV_DATA"), reason="VRAG_DEV_DATA names no folder")
def test_a_real_file_keeps_every_field(tmp_path: Path) -> None:
    path = Path(os.environ["VRAG_DEV_DATA"]) / "queries.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    convert([Source(path, "vidoseek", "test")], tmp_path)
    table = read_table(tmp_path / "overall_test.parquet")
    assert len(table) == len(rows)
    for row, converted in zip(rows, table, strict=True):
        assert json.loads(converted["extra_info"]["source"]) == row
        assert converted["id"] == row["uid"]
        assert converted["file_name"] == row["meta_info"]["file_name"]
        assert converted["reference_page"] == row["meta_info"]["reference_page"]
        assert converted["extra_info"]["content_type"] == row["meta_info"]["source_type"]
        assert converted["extra_info"]["reason_type"] == row["meta_info"]["query_type"]
        assert converted["reward_model"]["ground_truth"] == str(row["reference_answer"]).strip()


def test_the_samples_of_the_repository_convert_by_the_script(tmp_path: Path) -> None:
    sources = [f"vidoseek={EXAMPLES / 'vidoseek.json'}@test", str(EXAMPLES / "slidevqa_train.jsonl")]
    sources += [f"mmlongdoc={EXAMPLES / 'mmlongdoc.json'}@test", f"{EXAMPLES / 'plain.jsonl'}@train"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *sources, "--output", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report["files"]) == {"overall_test.parquet", "overall_train.parquet"}
    assert report["dropped"] == {}
    for name in report["files"]:
        assert all(row["extra_info"]["relevant_ids"] for row in read_table(tmp_path / name))


def test_the_script_explains_itself_and_its_failures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "[NAME=]PATH[@SPLIT]" in capsys.readouterr().out
    assert main(["nowhere.json", "--output", "x"]) == 1
    assert "There is no file nowhere.json" in capsys.readouterr().err


TEXT = st.text(st.characters(categories=["L", "N", "P", "Zs", "Zl", "Cc", "Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from([*VIDOSEEK, *SLIDEVQA, *MMLONGDOC, "answers", "evidence", "split"])


@settings(max_examples=80, deadline=None)
@given(rows=st.lists(st.dictionaries(FIELDS, JSON, max_size=8) | JSON, min_size=1, max_size=4))
def test_any_rows_give_an_example_or_a_reason_each(rows: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("rows") / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(read_examples(path))
    assert [one.place for one in found] == [f"test.jsonl, line {number}" for number in range(1, len(rows) + 1)]
    for one in found:
        if isinstance(one, Example):
            assert one.question
            assert one.answer
            assert all(page >= 1 for page in one.reference_page)
    examples = [one for one in found if isinstance(one, Example)]
    assert write_table(path.with_suffix(".parquet"), examples, "vrag") == len(examples)
