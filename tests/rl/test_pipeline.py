"""The tiny pipeline's settings compose, and its verdicts say what the figures say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")

from omegaconf import OmegaConf

from vrag.errors import ConfigError
from vrag_agent.tiny.pipeline import claim, verdicts, verl_settings
from vrag_agent.tiny.task import TinyTask

ROOT = Path(__file__).resolve().parents[2]


def line(reward: float, blind: float = 0.1) -> dict[str, Any]:
    figures = {way: {"reward": reward, "accuracy": reward} for way in ("greedy", "sampled")}
    return {"validation": figures, "blindfolded": {"greedy": {"accuracy": blind}}}


STEP = {"rollout/trajectories": 128.0, "rollout/excluded": 0.0, "rollout/logprob_diff_max": 1e-6}


def test_all_verdicts_hold_for_a_run_that_learnt() -> None:
    found = list(verdicts(line(0.3), line(0.8), [STEP, {"val-core": 1.0}]))
    assert len(found) == 5
    assert all(verdict.holds for verdict in found)


@pytest.mark.parametrize(
    ("before", "after", "steps", "wrong"),
    [
        (line(0.3), line(0.4), [STEP], "held-out reward, greedy"),
        (line(0.3), line(0.8, blind=0.6), [STEP], "accuracy with the pictures blacked out"),
        (line(0.3), line(0.8), [{**STEP, "rollout/excluded": 1.0}], "trajectories without a reward"),
        (line(0.3), line(0.8), [], "trajectories without a reward"),
        (line(0.3), line(0.8), [{**STEP, "rollout/logprob_diff_max": 0.1}], "largest difference of log-probabilities"),
        (None, line(0.8), [STEP], "validation"),
    ],
)
def test_a_verdict_fails_where_its_figure_does(
    before: dict[str, Any] | None, after: dict[str, Any], steps: list[dict[str, float]], wrong: str
) -> None:
    assert wrong in [verdict.what for verdict in verdicts(before, after, steps) if not verdict.holds]


def test_a_folder_takes_runs_of_one_kind(tmp_path: Path) -> None:
    claim(tmp_path, {"agent": "vrag", "seed": 0})
    claim(tmp_path, {"agent": "vrag", "seed": 0})
    with pytest.raises(
        ConfigError, match=r"another kind \(agent vrag, seed 0\); choose another folder for agent vrag, seed 1"
    ):
        claim(tmp_path, {"agent": "vrag", "seed": 1})


@pytest.mark.parametrize("task", [TinyTask(crop=True), TinyTask("vimrag", "qwen3_vl")])
def test_the_settings_of_the_pipeline_compose(task: TinyTask, tmp_path: Path) -> None:
    run = tmp_path / "it's (1), 训练=[x]#"
    settings = verl_settings(run, task, "http://127.0.0.1:8001/search", "verl_ggpo", 20, 3, True)
    done = subprocess.run(
        [sys.executable, "-m", "vrag_agent.train", "--config-name", "ggpo", "--dry-run", *settings],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'VRAG-RL'}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    config = OmegaConf.create(done.stdout)
    assert (config.vrag.seed, config.trainer.total_training_steps, config.trainer.device) == (3, 20, "cpu")
    assert config.actor_rollout_ref.model.path == str(run / "sft")
    assert list(config.actor_rollout_ref.actor.optim.betas) == [0.9, 0.99]
    assert list(tmp_path.iterdir()) == []  # looking leaves nothing behind
