"""Discovery: which files become sources, under which names, and which are refused with a reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_engine.documents import Line, Rejected, SourceFile, discover
from vrag.errors import ConfigError
from vrag.geometry import Box


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def keys(sources: list[SourceFile]) -> list[str]:
    return [source.key for source in sources]


def rows(path: Path, *values: object) -> Path:
    path.write_text("".join((v if isinstance(v, str) else json.dumps(v)) + "\n" for v in values), encoding="utf-8")
    return path


def test_a_folder_is_read_recursively_in_sorted_order_and_in_any_case(tmp_path: Path) -> None:
    touch(tmp_path, "b.PDF", "a.JPG", "sub/deep/c.Md", "sub/z.tiff", "d.mp4", "报告.pdf")
    sources, rejected = discover(tmp_path)
    assert keys(sources) == ["a.JPG", "b.PDF", "d.mp4", "sub/deep/c.Md", "sub/z.tiff", "报告.pdf"]
    assert [source.kind for source in sources] == ["image", "pdf", "video", "text", "image", "pdf"]
    assert [source.id for source in sources] == ["a", "b", "d", "c", "z", "报告"]
    assert sources[3].document == "c.Md"
    assert rejected == []


def test_hidden_files_and_skipped_folders_are_left_out_and_other_suffixes_named(tmp_path: Path) -> None:
    touch(tmp_path, ".hidden.pdf", ".git/x.pdf", "index/pages/a.jpg", "a.docx", "none", "list.jsonl", "ok.txt")
    sources, rejected = discover(tmp_path, skip=[tmp_path / "index"])
    assert keys(sources) == ["ok.txt"]
    assert {r.path.name: r.reason.split(" is")[0] for r in rejected} == {
        "a.docx": "the suffix '.docx'",
        "none": "the suffix ''",
        "list.jsonl": "a .jsonl list inside a folder",
    }


def test_links_in_circles_end_and_broken_ones_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "sub/a.pdf")
    (tmp_path / "sub" / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "gone.png").symlink_to(tmp_path / "missing.png")
    os.mkfifo(tmp_path / "pipe.txt")
    sources, rejected = discover(tmp_path)
    assert keys(sources) == ["sub/a.pdf"]
    assert sorted(r.path.name for r in rejected) == ["gone.png", "loop.png", "pipe.txt"]


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.pdf")).write_bytes(b"x")
    sources, rejected = discover(tmp_path)
    assert sources == []
    assert "UTF-8" in rejected[0].reason


def test_equal_names_get_suffixes_that_do_not_depend_on_the_run(tmp_path: Path) -> None:
    touch(tmp_path, "a.pdf", "a.png", "b/a.jpg", "a_1.png", "a_x.png")
    named = {source.key: source.id for source in discover(tmp_path)[0]}
    # a_1 is what page 1 of a.pdf will be called.
    assert named == {"a.pdf": "a", "a.png": "a~2", "b/a.jpg": "a~3", "a_1.png": "a_1~2", "a_x.png": "a_x"}
    assert {source.key: source.id for source in discover(tmp_path)[0]} == named


def test_known_sources_keep_their_ids_when_files_are_added(tmp_path: Path) -> None:
    touch(tmp_path, "m/a.png")
    known = {source.key: source.id for source in discover(tmp_path)[0]}
    touch(tmp_path, "b/a.png")
    assert {s.key: s.id for s in discover(tmp_path, known=known)[0]} == {"b/a.png": "a~2", "m/a.png": "a"}


def test_ids_of_pages_stay_unique_whatever_comes_first(tmp_path: Path) -> None:
    touch(tmp_path, "a.pdf", "a_2019.pdf", "b_1.png")
    assert [source.id for source in discover(tmp_path)[0]] == ["a", "a_2019", "b_1"]
    # Known from elsewhere: a picture called like a page of what is new, and a PDF with a page called like what is new.
    known = {"other/a_7.png": "a_7", "other/b.pdf": "b", "other/a_2019_x.pdf": "a_2019_x"}
    assert [source.id for source in discover(tmp_path, known=known)[0]] == ["a~2", "a_2019", "b_1~2"]


def test_a_single_file_is_a_source_and_nothing_else_is(tmp_path: Path) -> None:
    touch(tmp_path, "a.pdf", "a.docx")
    assert keys(discover(tmp_path / "a.pdf")[0]) == ["a.pdf"]
    with pytest.raises(ConfigError, match=r"'\.docx'"):
        discover(tmp_path / "a.docx")
    with pytest.raises(ConfigError, match="there is no file or folder"):
        discover(tmp_path / "nowhere")


def test_a_list_may_mix_files_and_passages_and_bad_rows_are_named_by_line(tmp_path: Path) -> None:
    touch(tmp_path, "files/a.pdf", "b.exe")
    path = rows(
        tmp_path / "corpus.jsonl",
        {"uid": "first", "file_path": "files/a.pdf", "year": 2024},
        "",
        {"content": "A passage.", "uid": 7},
        "{broken",
        [1],
        {"uid": "x"},
        {"uid": "x", "content": "c", "file_path": "files/a.pdf"},
        {"uid": "first", "content": "again"},
        {"uid": True, "content": "c"},
        {"file_path": "missing.pdf"},
        {"file_path": "b.exe"},
        {"file_path": "a\0.pdf"},
        {"file_path": "x" * 5000 + ".pdf"},
        {"content": ""},
        {"content": "Unnamed."},
    )
    sources, rejected = discover(path)
    assert [(s.id, s.kind, s.key, s.content) for s in sources] == [
        ("first", "pdf", "corpus.jsonl:first", None),
        ("7", "text", "corpus.jsonl:7", "A passage."),
        ("corpus_15", "text", "corpus.jsonl:15", "Unnamed."),
    ]
    assert sources[0].metadata == {"year": 2024}
    assert (sources[0].document, sources[1].document) == ("a.pdf", "7")
    assert [int(r.reason.split(":")[0].removeprefix("line ")) for r in rejected] == [*range(4, 15)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.text(), st.binary(), st.dictionaries(st.text(), st.text())), max_size=4))
def test_any_list_gives_sources_or_reasons_and_never_an_exception(tmp_path_factory, values: list) -> None:  # type: ignore[no-untyped-def,type-arg]
    path = tmp_path_factory.mktemp("lists") / "any.jsonl"
    raw = [v if isinstance(v, bytes) else (json.dumps(v) if isinstance(v, dict) else v).encode() for v in values]
    path.write_bytes(b"\n".join(raw))
    sources, rejected = discover(path)
    assert all(isinstance(one, (SourceFile, Rejected)) for one in [*sources, *rejected])


def test_the_box_of_a_part_is_that_of_its_words_or_a_share_of_the_line() -> None:
    words = (Box(0, 0, 20, 10), Box(30, 0, 50, 10), Box(60, 0, 90, 10))
    line = Line("ab cd efg", Box(0, 0, 90, 10), words)
    assert line.part(3, 5) == words[1]
    assert line.part(1, 4) == Box(0, 0, 50, 10)
    assert Line("abcde", Box(0, 0, 50, 10)).part(1, 3) == Box(10, 0, 30, 10)
    upwards = Box(0, 0, 10, 50)
    assert Line("abcde", upwards).part(1, 3) == upwards
    assert Line("", Box(0, 0, 5, 5)).part(-3, 9) == Box(0, 0, 5, 5)
