"""The scripts end to end: example corpus, real search service, the offline reader as expert; then tables, dialogues, checks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("faiss")
pytest.importorskip("rapidocr")

from demo.defaults import READER_MAX_PIXELS
from demo.launch import reader_service, search_service
from demo.services import Services, free_port
from search_engine.search_engine import SearchEngine
from vrag_agent.data.table import read_table

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS, EXAMPLES = ROOT / "VRAG-RL" / "scripts", ROOT / "VRAG-RL" / "examples"
DOCUMENTS = ROOT / "search_engine" / "corpus" / "example" / "documents"
REPORT = "tallowmere_annual_report_2025.pdf"


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(search, model): the real services over an index of one document."""
    root = tmp_path_factory.mktemp("corpus")
    (root / "documents").mkdir()
    shutil.copy(DOCUMENTS / REPORT, root / "documents")
    SearchEngine("text_page").build_index(root / "documents", root / "index")
    search, reader = free_port(), free_port()
    with Services() as running:
        running.start(search_service([root / "index"], search), reader_service(reader))
        yield f"http://127.0.0.1:{search}/search", f"http://127.0.0.1:{reader}/v1"


def script(name: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    out: dict[str, Any] = json.loads(done.stdout)
    return out


def test_from_questions_to_dialogues(urls: tuple[str, str], tmp_path: Path) -> None:
    search, model = urls
    questions = EXAMPLES / "vidoseek.json"
    made = script(
        "data_construct_pipeline", questions, "--output", tmp_path / "made", "--split", "train",
        "--base-url", model, "--search-url", search, "--max-pixels", READER_MAX_PIXELS,
        "--judge", "contains", "--questions-limit", 1, "--concurrency", 1,
    )  # fmt: skip
    assert made["attempts"] == 1
    assert made["chosen"] == 1
    for form in ("llamafactory", "trl"):
        converted = script(
            "cot_convert_sft", tmp_path / "made" / "demonstrations.jsonl", "--output", tmp_path / form, "--format", form
        )
        assert converted["dialogues"] == made["chosen"]
        assert converted["dropped"] == {}
        rows = json.loads((tmp_path / form / f"sft_{form}.json").read_text())
        for row in rows:
            assert row["messages"][-1]["role"] == "assistant"
            assert all((tmp_path / form / name).is_file() for name in row["images"])

    again = script(
        "data_construct_pipeline", questions, "--output", tmp_path / "made", "--split", "train",
        "--base-url", "http://127.0.0.1:9/v1", "--search-url", search, "--judge", "contains", "--questions-limit", 1,
    )  # fmt: skip
    assert again["chosen"] == made["chosen"]  # nothing had to be asked again

    tables = script("hf_dataset_convert", f"vidoseek={questions}@train", "--output", tmp_path / "tables")
    assert tables["kept"] == {"train": 3}
    (row, *_) = read_table(tmp_path / "tables" / "overall_train.parquet")
    assert row["file_name"] == REPORT
    table = tmp_path / "tables" / "overall_train.parquet"
    checked = subprocess.run(
        [sys.executable, "-m", "vrag_agent.preflight", "--train", str(table), "--val", str(table),
         "--search-url", search, "--judge", "contains"],
        capture_output=True, text=True, check=False, cwd=ROOT / "VRAG-RL", env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"},
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    assert "ready" in checked.stdout


@pytest.mark.parametrize(
    "name", ["hf_dataset_convert", "data_construct_pipeline", "cot_convert_sft", "sft", "model_merger"]
)
def test_every_script_explains_itself(name: str) -> None:
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {name}.py")
