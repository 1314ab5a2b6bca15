"""The index on disk: commits, tombstones, compaction, what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from search_engine.documents import Line, PageText
from search_engine.index_records import ModelKey, SegmentData, StoredText, portable, resolved
from search_engine.index_store import IndexWriter, StoredIndex, read_index, read_manifest
from search_engine.lexical import merge_postings
from tests.search_engine.index_child import MODEL, segment
from vrag.errors import IndexCorrupt, IndexError_, IndexMismatch
from vrag.geometry import Box


def live(stored: StoredIndex) -> list[str]:
    return [segment.items[row].item.id for segment in stored.segments for row in np.flatnonzero(segment.alive).tolist()]


def write(index: Path, *groups: list[str]) -> None:
    with IndexWriter(index, MODEL) as writer:
        for names in groups:
            writer.commit(segment(names))


def test_what_is_committed_is_read_back(tmp_path: Path) -> None:
    data = segment(["a", "bb", "ccc"])
    words = (Box(1, 2, 3.5, 4), Box(4, 2, 6, 4))
    texts = [
        StoredText(
            PageText((Line("two words", Box(1, 2, 6, 4), words), Line("风力\u2028\ud800", Box(0, 0, 1, 1))), "ocr"), "x"
        ),
        StoredText(PageText(), ""),
        StoredText(PageText((Line('line "break"\n', Box(0.126, 0, 9, 9)),), "layer"), "über\ncontext"),
    ]
    with IndexWriter(tmp_path / "index", MODEL) as writer:
        writer.commit(SegmentData(data.sources, data.items, texts, data.vectors, data.postings))
    stored = read_index(tmp_path / "index", MODEL)
    (found,) = stored.segments
    assert found.sources == tuple(data.sources)
    assert found.items == tuple(data.items)
    assert found.vectors.tobytes() == data.vectors.tobytes()
    assert found.alive.all()
    for name, array in data.postings.arrays().items():
        np.testing.assert_array_equal(found.postings.arrays()[name], array)
    assert found.text(0) == texts[0]
    assert found.text(1) == texts[1]
    assert found.text(2).text.lines == (Line('line "break"\n', Box(0.13, 0, 9, 9)),)
    assert found.text(2).context == "über\ncontext"


def test_a_commit_changes_nothing_that_was_committed(tmp_path: Path) -> None:
    index = tmp_path / "index"
    write(index, ["a"])
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (index / "segments").rglob("*.*")}
    opened = read_index(index)
    write(index, ["bb"])
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    assert live(opened) == ["a"]
    assert live(read_index(index)) == ["a", "bb"]
    assert [entry.name for entry in read_manifest(index).segments] == ["000001", "000002"]


def test_removed_sources_leave_and_their_place_can_be_taken(tmp_path: Path) -> None:
    index = tmp_path / "index"
    write(index, ["a", "bb"], ["ccc"])
    with IndexWriter(index, MODEL) as writer:
        places = {record.id: place for place, record in writer.sources()}
        writer.commit(segment(["dddd"]), removed=[places["a"], places["ccc"]])
        assert [record.id for _, record in writer.sources()] == ["bb", "dddd"]
        with pytest.raises(ValueError, match="999999"):
            writer.commit(removed=[("999999", 0)])
    assert live(read_index(index)) == ["bb", "dddd"]


def test_compaction_drops_the_bytes_and_keeps_the_rest(tmp_path: Path) -> None:
    index = tmp_path / "index"
    write(index, ["a", "secret"], ["ccc"], ["dddd"])
    before = read_index(index)
    with IndexWriter(index, MODEL) as writer:
        writer.commit(removed=[place for place, record in writer.sources() if record.id == "secret"])
        writer.compact(segment_items=2)
        assert [record.id for _, record in writer.sources()] == ["a", "ccc", "dddd"]
        writer.commit(segment(["eeeee"]))
    after = read_index(index)
    assert live(after) == ["a", "ccc", "dddd", "eeeee"]
    assert [entry.items for entry in after.manifest.segments] == [2, 1, 1]
    assert not any(b"secret" in path.read_bytes() for path in index.rglob("*") if path.is_file())
    kept = read_index(index).segments
    vectors = np.concatenate([found.vectors for found in kept])
    np.testing.assert_array_equal(vectors[:3], segment(["a", "ccc", "dddd"]).vectors)
    merged = merge_postings([(found.postings, found.alive) for found in kept])
    for name, array in segment(["a", "ccc", "dddd", "eeeee"]).postings.arrays().items():
        np.testing.assert_array_equal(merged.arrays()[name], array)
    assert before.segments[0].text(1).text.text == "text of secret", "a reader that was there before still reads"


def test_compacting_everything_away_leaves_an_empty_index(tmp_path: Path) -> None:
    index = tmp_path / "index"
    write(index, ["a"])
    with IndexWriter(index, MODEL) as writer:
        writer.commit(removed=[place for place, _ in writer.sources()])
        writer.compact()
    assert read_index(index).segments == ()
    write(index, ["bb"])
    assert live(read_index(index)) == ["bb"]


@pytest.mark.parametrize(
    "other",
    [
        ModelKey(name="other", dimension=8, fingerprint="1"),
        ModelKey(name="test", dimension=16, fingerprint="1"),
        ModelKey(name="test", dimension=8, fingerprint="2"),
    ],
)
def test_another_model_is_refused_with_both_names(tmp_path: Path, other: ModelKey) -> None:
    index = tmp_path / "index"
    write(index, ["a"])
    for attempt in (lambda: read_index(index, other), lambda: IndexWriter(index, other)):
        with pytest.raises(IndexMismatch) as error:
            attempt()
        assert str(MODEL) in str(error.value)
        assert str(other) in str(error.value)
    write(index, ["bb"])  # the failed attempt did not keep the lock


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "index"
    write(index, ["a"])
    body = (index / "manifest.json").read_bytes().partition(b"\n")[2].replace(b'"format": 1', b'"format": 2')
    head = json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode()
    (index / "manifest.json").write_bytes(head + b"\n" + body)
    with pytest.raises(IndexMismatch, match="format 2"):
        read_index(index)


def test_files_of_another_segment_are_refused(tmp_path: Path) -> None:
    index = tmp_path / "index"
    write(index, ["a", "bb"], ["ccc"])
    (index / "segments/000001/vectors.npy").write_bytes((index / "segments/000002/vectors.npy").read_bytes())
    with pytest.raises(IndexCorrupt, match=r"000001/vectors\.npy"):
        read_index(index)
    with pytest.raises(IndexCorrupt, match=r"000001/vectors\.npy"):
        IndexWriter(index, MODEL)


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    index = tmp_path / "index"
    with IndexWriter(index, MODEL) as writer:
        with pytest.raises(IndexError_, match=f"another process \\({os.getpid()}\\)"):
            IndexWriter(index, MODEL)
        code = (
            "import sys; from pathlib import Path; from tests.search_engine.index_child import *\n"
            "try: IndexWriter(Path(sys.argv[1]), MODEL)\n"
            "except Exception as error: sys.exit(type(error).__name__)"
        )
        other = subprocess.run([sys.executable, "-c", code, str(index)], capture_output=True, text=True, check=False)
        assert (other.returncode, other.stderr.strip()) == (1, "IndexError_")
        writer.commit(segment(["a"]))
    write(index, ["bb"])
    assert live(read_index(index)) == ["a", "bb"]


def test_what_no_commit_names_is_swept_away(tmp_path: Path) -> None:
    index = tmp_path / "index"
    write(index, ["a"])
    (index / "segments" / "000002").mkdir()
    (index / "segments" / "000002" / "items.jsonl").write_text("half a li")
    (index / "manifest.json.new").write_text("half a mani")
    assert live(read_index(index)) == ["a"]
    with IndexWriter(index, MODEL):
        assert sorted(path.name for path in index.iterdir()) == [".lock", "manifest.json", "segments"]
        assert [path.name for path in (index / "segments").iterdir()] == ["000001"]


def test_a_foreign_folder_is_not_swept(tmp_path: Path) -> None:
    index = tmp_path / "index"
    (index / "segments" / "my_photos").mkdir(parents=True)
    with pytest.raises(IndexError_, match="not of an index"):
        IndexWriter(index, MODEL)
    assert (index / "segments" / "my_photos").exists()


def test_there_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(IndexCorrupt, match=r"manifest\.json is missing"):
        read_index(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(IndexError_, match="cannot be created"):
        IndexWriter(tmp_path / "file" / "index", MODEL)


def test_a_manifest_that_is_right_in_its_sum_only(tmp_path: Path) -> None:
    for body in (b"[]", b"null", b'{"format": 1}', b"not json"):
        head = json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode()
        (tmp_path / "manifest.json").write_bytes(head + b"\n" + body)
        with pytest.raises(IndexCorrupt, match=r"manifest\.json does not describe an index"):
            read_index(tmp_path)


def test_neighbours_are_remembered_relative_and_the_rest_absolute(tmp_path: Path) -> None:
    index = tmp_path / "corpus" / "image_index"
    beside, inside, elsewhere = tmp_path / "corpus/image/a.jpg", index / "pages/a_1.jpg", tmp_path / "other/b.jpg"
    assert portable(beside, index) == "../image/a.jpg"
    assert portable(inside, index) == "pages/a_1.jpg"
    assert portable(elsewhere, index) == elsewhere.as_posix()
    for path in (beside, inside, elsewhere):
        assert resolved(portable(path, index), index) == path
    moved = tmp_path / "moved" / "image_index"
    assert resolved(portable(beside, index), moved) == tmp_path / "moved/image/a.jpg"
