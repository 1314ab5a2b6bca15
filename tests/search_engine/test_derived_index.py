"""Derived indexes on disk: made once, kept up to date, made again when they are damaged or outdated, whatever is killed."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from search_engine.compressed_index import KINDS
from search_engine.derived_index import FOLDER, inspect
from search_engine.index_store import IndexWriter, read_index, read_manifest
from tests.search_engine.vector_corpus import KEY, clustered, commit, opened, write

VECTORS = clustered(1500)
QUERIES = clustered(12, 1)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return write(tmp_path / "index", VECTORS[:1200], [500, 700])


def answers(index: Path, kind: str, **settings: object) -> list[tuple[list[int], list[float]]]:
    # Everything is looked at, so that only what is searched can make a difference.
    given = {"ivf_probes": 10_000, "hnsw_depth": 2000, **settings}
    found = opened(index, vectors=kind, **given).search(QUERIES, 8)
    return [(numbers.tolist(), scores.tolist()) for numbers, scores in found]


def derived(index: Path, kind: str) -> Path:
    """The one file of the kind."""
    (file,) = (index / FOLDER).glob(f"{kind}-*.faiss")
    return file


def mark(file: Path) -> tuple[int, int]:
    return file.stat().st_ino, file.stat().st_mtime_ns


@pytest.mark.parametrize("kind", KINDS)
def test_made_once_then_kept_up_to_date(index: Path, kind: str) -> None:
    assert answers(index, kind) == answers(index, "flat")
    made = mark(derived(index, kind))
    assert answers(index, kind) == answers(index, "flat")
    assert mark(derived(index, kind)) == made

    commit(index, VECTORS[1200:1250], 1200)  # little: it is searched beside the derived index
    assert answers(index, kind) == answers(index, "flat")
    assert mark(derived(index, kind)) == made
    (state,) = inspect(index, read_manifest(index).segments)
    assert state.behind == 1

    commit(index, VECTORS[1250:], 1250)  # more than a tenth is new: it is worked in
    assert answers(index, kind) == answers(index, "flat")
    assert mark(derived(index, kind)) != made
    (state,) = inspect(index, read_manifest(index).segments)
    assert state.behind == 0
    assert state.record is not None
    assert (state.record.rows, state.record.made_for) == (1500, 1200)


def test_what_has_outgrown_its_lists_is_made_again(tmp_path: Path) -> None:
    index = write(tmp_path / "index", VECTORS[:300], [300])
    answers(index, "ivf")
    commit(index, VECTORS[300:], 300)
    assert answers(index, "ivf") == answers(index, "flat")
    (state,) = inspect(index, read_manifest(index).segments)
    assert state.record is not None
    assert state.record.made_for == 1500


def test_removed_items_are_not_found_and_a_compaction_starts_anew(index: Path) -> None:
    answers(index, "hnsw")
    made = mark(derived(index, "hnsw"))
    best = {numbers[0] for numbers, _ in answers(index, "flat")}
    with IndexWriter(index, KEY) as writer:
        writer.commit(removed=[place for place, record in writer.sources() if int(record.id[1:]) in best])
        assert answers(index, "hnsw") == answers(index, "flat")
        assert mark(derived(index, "hnsw")) == made
        writer.compact()
    (state,) = inspect(index, read_manifest(index).segments)
    assert state.record is None
    assert state.damage is None
    assert answers(index, "hnsw") == answers(index, "flat")
    assert mark(derived(index, "hnsw")) != made


def test_few_vectors_are_searched_exactly(index: Path) -> None:
    assert answers(index, "hnsw", exact_rows=1200) == answers(index, "flat")
    assert not list(index.glob(f"{FOLDER}/*.faiss"))


@pytest.mark.parametrize("harm", ["flip", "cut", "gone", "record", "foreign record", "not understood", "other file"])
def test_what_is_damaged_is_named_and_made_again(index: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    answers(index, "ivf")
    file, record = derived(index, "ivf"), index / FOLDER / "ivf.json"
    content = bytearray(file.read_bytes())
    named = file
    if harm == "flip":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif harm == "cut":
        file.write_bytes(content[:-1])
    elif harm == "gone":
        file.unlink()
    elif harm == "record":
        record.write_bytes(record.read_bytes()[:-20])
        named = record
    elif harm == "foreign record":
        record.write_text('{"kind": "hnsw"}')
        named = record
    elif harm == "other file":
        record.write_text(record.read_text().replace(file.name, f"../{FOLDER}/{file.name}"))
        named = record
    else:  # its sum is right, but no library reads it
        import hashlib

        file.write_bytes(b"IxXX" + bytes(100))
        facts = json.loads(record.read_text())
        facts["sum"] = {"size": 104, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        record.write_text(json.dumps(facts))
    with caplog.at_level(logging.WARNING):
        assert answers(index, "ivf") == answers(index, "flat")
    assert str(named) in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert answers(index, "ivf") == answers(index, "flat")
    assert caplog.text == ""
    derived(index, "ivf")


def test_a_folder_that_cannot_be_written_to_is_served_from_memory(
    index: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (index / FOLDER).write_text("a file where the folder should be")
    assert answers(index, "sq8") == answers(index, "flat")
    assert "made again at every start" in caplog.text


def test_killed_at_any_write_the_next_start_is_right(index: Path) -> None:
    answers(index, "ivf")
    commit(index, VECTORS[1200:], 1200)  # so that a file is replaced, and the old one removed
    crashes = 14
    run = [sys.executable, "-m", "tests.search_engine.vector_corpus", "derive", str(index), "ivf", str(crashes)]
    subprocess.run(run, check=True, timeout=120)
    right = answers(index, "flat")
    finished = 0
    for number in range(1, crashes + 1):
        copy = Path(f"{index}.{number}")
        before = (copy / FOLDER / "ivf.json").read_bytes() != (index / FOLDER / "ivf.json").read_bytes()
        finished += before
        assert answers(copy, "ivf") == right
        derived(copy, "ivf")  # and nothing is left over
        assert not list(copy.glob(f"{FOLDER}/*.new"))
        shutil.rmtree(copy)
    assert 0 < finished < crashes  # some died before the record was replaced, some after


def test_killed_while_the_graph_is_being_made(index: Path) -> None:
    for pause in (0.0, 0.05, 0.3):
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.search_engine.vector_corpus", "derive", str(index), "hnsw"],
            stderr=subprocess.DEVNULL,
        )
        lock = index / FOLDER / ".lock"
        deadline = time.monotonic() + 60
        while not lock.exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(pause)
        child.send_signal(signal.SIGKILL)
        child.wait(60)
        shutil.rmtree(copy := Path(f"{index}.copy"), ignore_errors=True)
        shutil.copytree(index, copy)
        assert answers(copy, "hnsw") == answers(copy, "flat")
        shutil.rmtree(index / FOLDER, ignore_errors=True)


def test_two_servers_that_start_together_make_it_once(index: Path) -> None:
    run = [sys.executable, "-m", "tests.search_engine.vector_corpus", "derive", str(index), "hnsw"]
    children = [subprocess.Popen(run) for _ in range(2)]
    assert [child.wait(120) for child in children] == [0, 0]
    assert answers(index, "hnsw") == answers(index, "flat")
    assert os.listdir(index / FOLDER).count("hnsw.json") == 1
    derived(index, "hnsw")


def test_a_search_goes_on_while_the_file_is_replaced(index: Path) -> None:
    before = opened(index, vectors="hnsw")
    expected = [numbers.tolist() for numbers, _ in before.search(QUERIES, 5)]
    commit(index, VECTORS[1200:], 1200)
    opened(index, vectors="hnsw")
    assert [numbers.tolist() for numbers, _ in before.search(QUERIES, 5)] == expected
    assert np.isfinite(before.search(QUERIES, 5)[0][1]).all()


def test_vectors_stored_in_half_the_room(index: Path) -> None:
    before = answers(index, "flat")
    size = sum(file.stat().st_size for file in index.rglob("vectors.npy"))
    with IndexWriter(index, KEY, precision="float16") as writer:
        writer.compact()
    for (_, scores), (_, exact) in zip(answers(index, "flat"), before, strict=True):
        assert np.abs(np.array(scores) - exact).max() < 1e-3
    commit(index, VECTORS[1200:], 1200)  # and the index stays with it
    assert {segment.vectors.dtype for segment in read_index(index).segments} == {np.dtype(np.float16)}
    assert sum(file.stat().st_size for file in index.rglob("vectors.npy")) < 0.65 * size
    for kind in ("fp16", "ivf"):
        assert answers(index, kind) == answers(index, "flat")
    assert answers(index, "flat", mapped=True) == answers(index, "flat")
    large = VECTORS[:3] * np.float32(1e6)
    commit(index, large, 1500)  # more than float16 can hold
    assert read_index(index).segments[-1].vectors.dtype == np.float32
