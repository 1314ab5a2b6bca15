"""``index-info`` and ``derive``: what an index is, every damaged file by name, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_engine.cli import main
from search_engine.vector_advice import advice
from tests.search_engine.vector_corpus import KEY, clustered, opened, remove, write


@pytest.fixture
def index(tmp_path: Path) -> Path:
    vectors = clustered(1300)
    vectors[3] = 0.0
    folder = write(tmp_path / "atlas", vectors, [300, 1000], per_document=100)
    remove(folder, [0, 1])
    return folder


def info(index: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["index-info", str(index), *options])
    return status, *capsys.readouterr()


def test_what_an_index_is(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened(index, vectors="ivf")
    status, out, err = info(index, capsys)
    assert (status, err) == (0, "")
    for part in (
        "atlas: 1,298 items of 1,298 files (1,298 text)",
        f"Model {KEY.name}, {KEY.dimension} dimensions; {KEY.fingerprint}",
        "2 segments",
        "2 removed items",
        "1,297 vectors, stored as float32. Advice: vectors=flat",
        "Derived: ivf is usable, IVF33,SQ8, 1,299 vectors",
        "All sums are right.",
    ):
        assert part in out
    status, out, _ = info(index, capsys, "--json")
    facts = json.loads(out)
    assert status == 0
    assert facts["kinds"] == {"text": 1298}
    assert facts["derived"][0] | {"bytes": 0} == {
        "kind": "ivf",
        "state": "usable",
        "recipe": "IVF33,SQ8",
        "vectors": 1299,
        "bytes": 0,
        "segments_behind": 0,
    }
    assert facts["damage"] == []


def test_every_damaged_file_is_named(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = index / "segments" / "000001" / "vectors.npy"
    content = bytearray(vectors.read_bytes())
    content[-5] ^= 4
    vectors.write_bytes(content)
    (index / "segments" / "000002" / "text.jsonl").unlink()
    status, out, err = info(index, capsys)
    assert status == 1
    assert f"{vectors} was altered" in err
    assert f"{index / 'segments' / '000002' / 'text.jsonl'} is missing" in err
    assert "All sums are right" not in out
    assert "Traceback" not in err


def test_a_damaged_derived_index_is_named(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened(index, vectors="sq8")
    (file,) = (index / "derived").glob("*.faiss")
    file.write_bytes(file.read_bytes()[:-1])
    status, out, err = info(index, capsys)
    assert status == 1
    assert f"{file} has" in err
    assert "made again at the next start" in err
    assert "Derived: sq8 is damaged" in out


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"sha256": "0"}\n{"format": 1}'])
def test_a_damaged_manifest_is_named(index: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (index / "manifest.json").write_bytes(content)
    status, _, err = info(index, capsys)
    assert status == 1
    assert str(index / "manifest.json") in err


def test_no_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = info(tmp_path, capsys)
    assert status == 1
    assert "is not an index" in err


@pytest.mark.parametrize("kind", ["fp16", "hnsw"])
def test_a_derived_index_is_made_and_measured(index: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["derive", str(index), "--vectors", kind]) == 0
    assert f"{kind} finds 1" in (out := capsys.readouterr().out)  # 100.0% of 1.3k vectors
    assert "of 200 of the index' own vectors" in out
    assert list(index.glob(f"derived/{kind}-*.faiss"))


def test_the_advice_grows_with_the_number() -> None:
    said = [advice(count, 2048) for count in (10, 100_000, 500_000, 3_000_000, 10**9)]
    assert [sentence.split("=")[1].split(" ")[0].rstrip(",") for sentence in said] == [
        "flat",
        "flat",
        "fp16",
        "ivf",
        "milvus",
    ]
    assert "0.82 GB" in said[1]
