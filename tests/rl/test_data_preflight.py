"""Before a training starts: what is missing is said, a line each; what is there passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Fault, ScriptedModel, TinyRetriever, dead_url, page, serve
from vrag.judge import JudgeSettings, ModelJudge, RuleJudge
from vrag.settings import SearchSettings
from vrag_agent.data.convert import Source, convert
from vrag_agent.preflight import SAMPLE, Plan, data_problems, main, model_problems, problems

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402


def table(folder: Path, count: int = 3, split: str = "train", pages: bool = True, agent: str = "vrag") -> Path:
    path = folder / f"{split}.jsonl"
    rows = [
        {"id": f"{split}{n}", "question": f"What of {split} {n}?", "answer": "42", "file_name": "solar.pdf"}
        | ({"reference_page": [n + 1]} if pages else {})
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    convert([Source(path)], folder / "out", agent_name=agent)
    return folder / "out" / f"overall_{split}.parquet"


def retriever(count: int = 3) -> TinyRetriever:
    return TinyRetriever([page(f"solar_{n + 1}", "solar power", (80, 100)) for n in range(count)])


def plan(train: Path, url: str, **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "train": [train],
        "validation": [train],
        "search": SearchSettings(search_url=f"{url}/search", search_retries=0),
        "judge": lambda: RuleJudge("contains"),
    }
    return Plan(**{**values, **changes})


def test_everything_is_there(tmp_path: Path) -> None:
    with serve(retriever().app) as url:
        assert problems(plan(table(tmp_path), url)) == []


def test_each_thing_that_is_missing_has_its_line(tmp_path: Path) -> None:
    down = JudgeSettings(base_url=f"{dead_url()}/v1", model="j", retries=0)
    found = problems(plan(tmp_path / "nothing.parquet", dead_url(), judge=lambda: ModelJudge(down), validation=[]))
    assert len(found) == 4
    data, validation, search, judge = found
    assert "nothing.parquet is not there" in data
    assert "No validation data is set" in validation
    assert "The retriever cannot be used. Nothing answers" in search
    assert "The judge cannot be used." in judge
    assert "VRAG_JUDGE_BASE_URL" in judge


def test_a_judge_that_answers_and_one_that_talks(tmp_path: Path) -> None:
    data = table(tmp_path)
    with serve(retriever().app) as url, serve(ScriptedModel(lambda _: "<judge>True</judge>").app) as where:
        settings = JudgeSettings(base_url=f"{where}/v1", model="j")
        assert problems(plan(data, url, judge=lambda: ModelJudge(settings))) == []
    with serve(retriever().app) as url, serve(ScriptedModel(lambda _: "Certainly!").app) as where:
        settings = JudgeSettings(base_url=f"{where}/v1", model="j")
        (found,) = problems(plan(data, url, judge=lambda: ModelJudge(settings)))
        assert "<judge>True</judge>" in found


def test_an_index_of_other_documents(tmp_path: Path) -> None:
    other = TinyRetriever([page("wind_1", "wind power")])
    with serve(other.app) as url:
        (found,) = problems(plan(table(tmp_path), url))
    assert "3 of 3 reference pages" in found
    assert "solar_1" in found


def test_a_few_missing_pages_are_borne_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serve(retriever(SAMPLE - 1).app) as url:
        assert problems(plan(table(tmp_path, SAMPLE), url)) == []
    assert f"1 of {SAMPLE} reference pages" in caplog.text


def test_an_empty_index(tmp_path: Path) -> None:
    with serve(TinyRetriever([]).app) as url:
        (found,) = problems(plan(table(tmp_path), url))
    assert "is it empty" in found


def test_a_broken_search_service(tmp_path: Path) -> None:
    broken = retriever()
    broken.faults = [Fault(500, {"detail": "index gone"})]
    with serve(broken.app) as url:
        (found,) = problems(plan(table(tmp_path), url))
    assert "index gone" in found


def test_data_without_what_the_reward_reads(tmp_path: Path) -> None:
    rows = [{"question": "?", "answer": "42"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "raw.parquet")
    _, (found,) = data_problems(tmp_path / "raw.parquet", True)
    assert "lacks the columns data_source, prompt, reward_model, extra_info" in found
    (tmp_path / "text.parquet").write_text("no table")
    _, (found,) = data_problems(tmp_path / "text.parquet", True)
    assert "cannot be read as a Parquet table" in found
    path = table(tmp_path, pages=False)
    _, (found,) = data_problems(path, True)
    assert "no row names a reference page" in found
    assert data_problems(path, False)[1] == []


def test_rows_of_an_unknown_agent_are_named(tmp_path: Path) -> None:
    _, (found,) = data_problems(table(tmp_path, agent="foo"), True)
    assert "3 of 3 rows name an agent loop that does not exist, 'foo'" in found
    assert "--agent-name vrag or vimrag" in found
    assert data_problems(table(tmp_path, agent="vimrag"), True)[1] == []


def test_fewer_rows_than_a_batch(tmp_path: Path) -> None:
    data = table(tmp_path)
    with serve(retriever().app) as url:
        (found,) = problems(plan(data, url, batch=32))
        assert found == "data.train_files has 3 rows, fewer than data.train_batch_size (32): lower it or add data."
        assert problems(plan(data, url, batch=3)) == []


@pytest.mark.parametrize("name", ["a[1]", "what?", "a::b"])
def test_a_path_that_the_trainer_takes_for_a_pattern(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    _, (found,) = data_problems(table(tmp_path / name), True)
    assert "put it into a folder without" in found
    (tmp_path / "it's (1), run=é#").mkdir()
    assert data_problems(table(tmp_path / "it's (1), run=é#"), True)[1] == []


def test_rows_without_an_answer_are_named(tmp_path: Path) -> None:
    rows = pq.read_table(table(tmp_path)).to_pylist()
    rows[1]["reward_model"]["ground_truth"] = ""
    rows[1]["extra_info"]["answer"] = ""
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "bad.parquet")
    _, (found,) = data_problems(tmp_path / "bad.parquet", True)
    assert "1 of 3 rows" in found
    assert "row 2" in found


def test_a_checkpoint_that_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_problems("Qwen/Qwen2.5-VL-7B-Instruct") == []
    assert model_problems("hdfs://cluster/models/qwen") == []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("runs/sft/final", "runs/sft", "sft", "~/no-such-folder"):
        (found,) = model_problems(name)
        assert "there is no folder" in found
    (found,) = model_problems(str(tmp_path / "nothing"))
    assert "there is no folder" in found
    (found,) = model_problems(str(tmp_path))
    assert "no config.json and no processor and no tokenizer and no weights" in found
    for name in ("config.json", "preprocessor_config.json", "training_args.bin"):
        (tmp_path / name).write_text("{}")
    (found,) = model_problems(str(tmp_path))
    assert "has no tokenizer and no weights; it is no whole checkpoint" in found
    (tmp_path / "tokenizer.json").write_text("{}")
    for name in ("model-00001-of-00002.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_text("")
        assert model_problems(str(tmp_path)) == []
        (tmp_path / name).unlink()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(table(tmp_path))
    with serve(retriever().app) as url:
        command = ["--train", data, "--val", data, "--search-url", f"{url}/search", "--judge", "contains"]
        assert main(command) == 0
        assert "ready" in capsys.readouterr().out
        assert main([*command, "--reward", "paper"]) == 2
        assert "needs alpha" in capsys.readouterr().err
    assert main(command) == 2
    assert "- The retriever cannot be used." in capsys.readouterr().err
