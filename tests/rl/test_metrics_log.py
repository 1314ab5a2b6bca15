"""What is read of a run's metrics, and what curves are made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vrag.errors import ConfigError
from vrag_agent.curves import main, mean_curve
from vrag_agent.metrics_log import read_metrics, series


def write(folder: Path, name: str, steps: dict[int, dict[str, float]], tail: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "data": data}) for step, data in steps.items()]
    (folder / name).write_text("\n".join(lines) + "\n" + tail, "utf-8")


def test_the_latest_start_of_a_step_counts_and_a_half_written_line_does_not(tmp_path: Path) -> None:
    write(tmp_path, "metrics_01.jsonl", {1: {"a": 1.0}, 2: {"a": 2.0}}, tail='{"step": 3, "da')
    write(tmp_path, "metrics_02.jsonl", {2: {"a": 5.0, "val-core/x/mean@1": 0.5}, 3: {"b": 3.0}})
    metrics = read_metrics(tmp_path)
    assert series(metrics, "a") == [(1, 1.0), (2, 5.0)]
    assert series(metrics, "val-core/*/mean@1") == [(2, 0.5)]
    assert series(metrics, "c") == []


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics_01.jsonl").write_text('{"step": 1, "data": {}}\nnothing\n{"step": 2, "data": {}}\n', "utf-8")
    with pytest.raises(ConfigError, match=r"metrics_01.jsonl, line 2"):
        read_metrics(tmp_path)


def test_the_log_of_the_plain_trainer_is_read_too(tmp_path: Path) -> None:
    lines = [
        {"step": 0, "validation": {"greedy": {"reward": 0.25, "ended": {"answer": 64}}}},
        {"step": 1, "reward": 0.5, "ended": {"answer": 128}},
    ]
    (tmp_path / "grpo.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    metrics = read_metrics(tmp_path / "grpo.jsonl")
    assert series(metrics, "validation/greedy/reward") == [(0, 0.25)]
    assert series(metrics, "reward") == [(1, 0.5)]


def test_means_are_taken_where_all_runs_were_measured() -> None:
    assert mean_curve([[(0, 0.0), (5, 0.5), (10, 1.0)], [(0, 0.2), (10, 0.6)]]) == [(0, 0.1), (10, 0.8)]


def test_curves_are_drawn_and_a_folder_without_metrics_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        write(tmp_path / f"r{seed}", "metrics_01.jsonl", {n: {"reward/total": n / 10} for n in range(5)})
    runs = [f"GRPO={tmp_path / 'r0'}", f"GRPO={tmp_path / 'r1'}"]
    chosen = ["--output", str(tmp_path / "curves.svg"), "--metric", "reward/total=reward of training"]
    assert main([f"none={tmp_path}", *chosen]) == 2
    assert "has no metric 'reward/total'" in capsys.readouterr().err
    pytest.importorskip("matplotlib")
    assert main([*runs, *chosen]) == 0
    drawn = (tmp_path / "curves.svg").read_text("utf-8")
    assert "reward of training" in drawn
    assert "GRPO (mean of 2)" in drawn
