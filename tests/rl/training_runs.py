"""Real training runs through verl in a process of their own: started, watched, interrupted, and cleaned up after."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A run takes about a minute on an idle machine with two cores; a loaded one may take several times as long.
PATIENCE = 900
WORDS = ("red fox", "blue owl", "red dog", "green cow")


def write_data(folder: Path, questions: int = 16) -> None:
    """train.parquet and val.parquet in the form of the converted data."""
    import pandas

    rows = [
        {
            "data_source": "tiny",
            "prompt": [{"role": "user", "content": f"What digit is on page {number}?"}],
            "ability": "rag",
            "reward_model": {"style": "rule", "ground_truth": str(number % 10)},
            "extra_info": {
                "index": number,
                "split": "train",
                "question": f"What digit is on page {number}?",
                "file_name": "cards.pdf",
                "reference_page": [1 + number % len(WORDS)],
            },
        }
        for number in range(questions)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(rows).to_parquet(folder / "train.parquet")
    pandas.DataFrame(rows[:2]).to_parquet(folder / "val.parquet")


def settings(model: Path, data: Path, out: Path, search_url: str, **changes: Any) -> list[str]:
    """The arguments of a small run; ``changes`` replace or add settings (a double underscore is a dot)."""
    chosen: dict[str, Any] = {
        "vrag.search.search_url": f"{search_url}/search",
        "vrag.judge.kind": "exact",
        "vrag.reward.preset": "paper",
        "vrag.reward.alpha": 0.5,
        "vrag.reward.beta": 0.4,
        "vrag.reward.gamma": 0.1,
        "vrag.limits.turn_tokens": 6,
        "vrag.seed": 1,
        "vrag.records.folder": out / "records",
        "data.train_files": data / "train.parquet",
        "data.val_files": data / "val.parquet",
        "data.train_batch_size": 2,
        "data.seed": 1,
        "data.max_prompt_length": 3000,
        "data.max_response_length": 500,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 2,
        "actor_rollout_ref.rollout.n": 4,
        "trainer.n_gpus_per_node": 2,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.total_epochs": 100,
        "trainer.default_local_dir": out / "checkpoints",
        "trainer.experiment_name": out.name,
        "trainer.logger": "[console,file]",
    }
    chosen.update({name.replace("__", "."): value for name, value in changes.items()})
    return ["+backend=cpu", *(f"{name}={value}" for name, value in chosen.items())]


@dataclass
class Finished:
    status: int
    log: str
    steps: dict[int, dict[str, float]]
    """Metrics by step, of this start alone."""


class Run:
    """A training process. Ended with everything it started when the block is left."""

    def __init__(self, out: Path, arguments: list[str], config: str = "grpo") -> None:
        self.out = out
        out.mkdir(parents=True, exist_ok=True)
        number = len(list(out.glob("start_*.log"))) + 1
        self.log_path = out / f"start_{number}.log"
        self.metrics_path = out / f"start_{number}.jsonl"
        here = Path(__file__).resolve().parent
        root = here.parents[1]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(here), str(root / "VRAG-RL"), str(root)]),
            "VERL_FILE_LOGGER_PATH": str(self.metrics_path),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_worker_niceness": "0",
        }
        self._log = self.log_path.open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vrag_agent.train", "--config-name", config, *arguments],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=out,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for name in (signal.SIGTERM, signal.SIGKILL):
            if self.left():
                for pid in self.left():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, name)
                time.sleep(1)
        self.process.wait()
        self._log.close()

    def wait(self) -> Finished:
        status = self.process.wait(PATIENCE)
        return Finished(status, self.log_path.read_text(errors="replace"), self.steps())

    def steps(self) -> dict[int, dict[str, float]]:
        if not self.metrics_path.exists():
            return {}
        lines = [json.loads(line) for line in self.metrics_path.read_text().splitlines() if line.endswith("}")]
        return {line["step"]: line["data"] for line in lines}

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while step not in self.steps():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"step {step} never came:\n{self.log_path.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it to the process in front."""
        os.kill(self.process.pid, signal.SIGINT)

    def left(self) -> list[int]:
        """Processes of this run that are alive: those that carry its log's path in their environment."""
        mark = f"VERL_FILE_LOGGER_PATH={self.metrics_path}".encode()
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if mark in (entry / "environ").read_bytes() and b") Z " not in (entry / "stat").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # it ended meanwhile, or is none of ours
                continue
        return found
