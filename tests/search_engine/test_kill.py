"""Builds that are killed, starved of disk space, or whose files are damaged: nothing committed is ever lost or
misread."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from search_engine.index_store import read_index, read_manifest
from search_engine.search_engine import SearchEngine
from tests.search_engine import index_child
from tests.small_disk import mounted
from vrag.errors import IndexCorrupt, IndexError_

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
KILLS = 20
CHAINS = 4


def child(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.search_engine.index_child", *map(str, arguments)]


def files(index: Path) -> dict[str, bytes]:
    """All that is committed or left behind in an index folder; page images and OCR results are not part of it."""
    return {
        path.relative_to(index).as_posix(): path.read_bytes()
        for path in index.rglob("*")
        if path.is_file() and path.name != ".lock" and path.relative_to(index).parts[0] not in ("pages", "cache")
    }


def documents(index: Path) -> list[str]:
    """The ids of the live items, in order; empty while nothing has been committed."""
    if not (index / "manifest.json").exists():
        return []
    stored = read_index(index)
    return [
        segment.items[row].item.id for segment in stored.segments for row, alive in enumerate(segment.alive) if alive
    ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of varying length, some of several passages, in nested folders."""
    folder = tmp_path_factory.mktemp("corpus") / "docs"
    words = ["wind", "turbine", "energy", "report", "coast", "storm", "price", "grid", "风力", "发电", "报告"]
    rng = random.Random(7)
    for number in range(60):
        path = folder / f"part{number % 3}" / f"text{number:02d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(rng.choices(words, k=rng.choice([5, 60, 400]))) + f" {number}", "utf-8")
    return folder


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of a build that nothing interrupts."""
    index = tmp_path_factory.mktemp("undisturbed") / "index"
    subprocess.run(child("build", corpus, index), env=ENVIRONMENT, cwd=ROOT, check=True)
    return index


def commits(index: Path) -> int:
    return len(read_manifest(index).segments) if (index / "manifest.json").exists() else 0


def await_commits(process: subprocess.Popen[bytes], index: Path, count: int) -> None:
    """Wait until a build has made some more commits, or has ended."""
    goal = commits(index) + count
    while commits(index) < goal and process.poll() is None:
        time.sleep(0.001)


def kill_after(process: subprocess.Popen[bytes], index: Path, count: int, seconds: float) -> bool:
    """Kill a build and its workers a moment after it has made some commits; whether it was still at work."""
    await_commits(process, index, count)
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("seed", range(CHAINS))
def test_killed_builds_resume_to_the_same_index(seed: int, corpus: Path, undisturbed: Path, tmp_path: Path) -> None:
    order = documents(undisturbed)
    index = tmp_path / "index"
    rng = random.Random(seed)
    killed = 0
    for _ in range(KILLS // CHAINS):
        process = subprocess.Popen(child("build", corpus, index), env=ENVIRONMENT, cwd=ROOT, start_new_session=True)
        killed += kill_after(process, index, rng.randrange(8), rng.uniform(0, 0.03))
        found = documents(index)
        assert found == order[: len(found)], "what is committed is a prefix"
    assert killed, "no build was interrupted"
    subprocess.run(child("build", corpus, index), env=ENVIRONMENT, cwd=ROOT, check=True)
    assert files(index) == files(undisturbed)


def test_ctrl_c_keeps_what_was_committed(corpus: Path, undisturbed: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    command = [sys.executable, "-m", "search_engine.search_engine", "build", str(corpus), str(index)]
    command += ["--save-interval", "1", "--workers", "1"]
    process = subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)
    await_commits(process, index, 3)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.decode().startswith("Stopped. What was committed is kept")
    found = documents(index)
    assert 3 <= len(found) < len(documents(undisturbed))
    subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, check=True, capture_output=True)
    assert files(index) == files(undisturbed)


def test_a_crash_between_any_two_writes_loses_nothing_committed(tmp_path: Path) -> None:
    reference = tmp_path / "reference"
    index_child.steps(reference)
    numbers = range(48)
    done = subprocess.run(
        child("commits", tmp_path / "crashes", ",".join(map(str, numbers))),
        env=ENVIRONMENT,
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    outcome = dict(line.split() for line in done.stdout.splitlines())
    assert outcome["0"] == "killed"
    assert outcome["47"] == "0", "the last run was not reached by its crash, so every write was"
    reached = []
    for number in numbers:
        index = tmp_path / "crashes" / str(number)
        found = documents(index)
        assert found in ([], *index_child.STATES), f"after write {number}"
        reached.append(found)
        index_child.steps(index)
        assert documents(index) == documents(reference)
        assert read_index(index).segments[0].text(0) == read_index(reference).segments[0].text(0)
        left = {path.name for path in (index / "segments").iterdir()} | {path.name for path in index.iterdir()}
        assert left == {s.name for s in read_manifest(index).segments} | {"manifest.json", "segments", ".lock"}
    assert all(state in reached for state in ([], *index_child.STATES))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    index = tmp_path / "index"
    with index_child.IndexWriter(index, index_child.MODEL) as writer:
        writer.commit(index_child.segment(["a", "bb"]))
        writer.commit(index_child.segment(["ccc"]))
    return index


def damaged(index: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file with its bytes, in a fixed order."""
    for path in sorted(index.rglob("*")):
        if path.is_file() and path.name != ".lock":
            yield path, path.read_bytes()


def test_truncated_files_are_refused_by_name(small: Path) -> None:
    for path, content in damaged(small):
        for length in sorted({0, 1, len(content) // 3, len(content) // 2, len(content) - 1}):
            path.write_bytes(content[:length])
            with pytest.raises(IndexCorrupt) as error:
                read_index(small)
            assert str(path) in str(error.value)
        path.write_bytes(content + b"x")
        with pytest.raises(IndexCorrupt, match=path.name):
            read_index(small)
        path.unlink()
        with pytest.raises(IndexCorrupt, match=path.name):
            read_index(small)
        path.write_bytes(content)
    assert documents(small) == ["a", "bb", "ccc"]


def test_flipped_bits_are_refused_by_name(small: Path) -> None:
    rng = random.Random(3)
    for path, content in damaged(small):
        for position in rng.sample(range(len(content)), 12):
            altered = bytearray(content)
            altered[position] ^= 1 << rng.randrange(8)
            path.write_bytes(altered)
            with pytest.raises(IndexCorrupt) as error:
                read_index(small)
            assert str(path) in str(error.value)
        path.write_bytes(content)
    assert documents(small) == ["a", "bb", "ccc"]


def large_text(folder: Path) -> None:
    """Enough passages in one file for a segment of a few megabytes."""
    (folder / "z_large.txt").write_text("\n\n".join(f"passage {n} " + "word " * 200 for n in range(600)), "utf-8")


def test_a_full_disk_loses_nothing_committed(corpus: Path, tmp_path: Path) -> None:
    folder, index = tmp_path / "docs", tmp_path / "index"
    shutil.copytree(corpus / "part0", folder)
    SearchEngine().build_index(folder, index, workers=1)
    before = documents(index)
    assert len(before) > 10
    large_text(folder)
    command = [sys.executable, "-m", "search_engine.search_engine", "build", str(folder), str(index), "--workers", "1"]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    failed = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, preexec_fn=limited)
    assert failed.returncode == 1
    assert "could not be written" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert documents(index) == before
    assert len(list((index / "segments").iterdir())) == len(read_manifest(index).segments), "no half segment stays"
    subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, check=True, capture_output=True)
    after = documents(index)
    assert after[: len(before)] == before
    assert len(after) > len(before) + 50


def test_a_full_file_system_loses_nothing_committed(corpus: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "2m"):
        folder, index = tmp_path / "docs", disk / "index"
        shutil.copytree(corpus / "part0", folder)
        engine = SearchEngine()
        engine.build_index(folder, index, workers=1)
        before = documents(index)
        large_text(folder)
        with pytest.raises(IndexError_, match="No space left"):
            engine.build_index(folder, index, workers=1)
        assert documents(index) == before
        assert len(engine) == len(before)
        (folder / "z_large.txt").unlink()
        (folder / "z_small.txt").write_text("room for this", "utf-8")
        engine.build_index(folder, index, workers=1)
        assert documents(index) == [*before, "z_small"]
