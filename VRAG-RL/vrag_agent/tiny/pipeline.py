"""The whole way from pages to a trained model through verl, on two cores: ``python -m vrag_agent.tiny.pipeline RUN``

Pages and index, a model with random weights, supervised fine-tuning to the format, GRPO (or ``--ggpo``) through verl with the
product's episodes against the running search service, export, validation on held-out questions, and the same with all
pictures blacked out. It ends with figures and a verdict for each of them (also in RUN/verl_grpo.txt or verl_ggpo.txt); the exit
status is 0 when all hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from vrag.errors import ConfigError, VragError
from vrag_agent.metrics_log import read_metrics
from vrag_agent.tiny.task import PROMPTS, TinyTask
from vrag_agent.tiny.world import World, serve

#: What the figures have to reach: the rise of the held-out reward over the model after SFT; the accuracy without pictures
#: (a digit guessed is right once in ten); the share of trajectories without a reward.
RISE, BLIND, EXCLUDED = 0.2, 0.25, 0.0
#: How far the log-probabilities of rollout and training may be apart: rounding in fp32, and no more.
AGREE = 1e-4

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@dataclass(frozen=True)
class Verdict:
    what: str
    found: str
    holds: bool


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    task = TinyTask(options.agent, options.family, options.crop)
    run: Path = options.run.absolute()
    run.mkdir(parents=True, exist_ok=True)
    try:
        return _pipeline(run, task, options)
    except VragError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"Interrupted; what is done so far stays in {run}.\n")
        return 130


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m vrag_agent.tiny.pipeline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("run", type=Path, help="folder of this run; what is there already is not done again")
    out.add_argument("--agent", choices=("vrag", "vimrag"), default="vrag")
    out.add_argument("--family", choices=("qwen2_5_vl", "qwen3_vl"), default="qwen2_5_vl")
    out.add_argument(
        "--crop",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="vrag: small digits, which have to be looked at closely (the default), or large ones",
    )
    out.add_argument("--ggpo", action="store_true", help="GGPO's masks and loss instead of GRPO's")
    out.add_argument("--seed", type=int, default=0)
    out.add_argument("--demonstrations", type=int, default=3000)
    out.add_argument("--steps", type=int, default=20)
    out.add_argument("--setting", action="append", default=[], help="further key=value for vrag_agent.train")
    return out


def _pipeline(run: Path, task: TinyTask, options: argparse.Namespace) -> int:
    seconds: dict[str, float] = {}
    common = ["--agent", task.agent, "--family", task.family, "--crop" if options.crop else "--no-crop"]
    tiny = [sys.executable, "-m", "vrag_agent.tiny"]
    name = "verl_ggpo" if options.ggpo else "verl_grpo"
    claim(run, {"agent": task.agent, "family": task.family, "corners": task.corners, "seed": options.seed})
    _step(seconds, "prepare", run / "val.json", [*tiny, "prepare", str(run), *common, "--seed", str(options.seed)])
    _step(seconds, "convert", run / "data" / "tiny_val.parquet", _conversion(run), run)
    with serve(World(run / "world", task.corners)) as url:
        sft = [*tiny, "sft", str(run), *common, "--search-url", url, "--seed", str(options.seed)]
        sft += ["--demonstrations", str(options.demonstrations)]
        _step(seconds, "sft", run / "sft" / "config.json", sft)
        training = [sys.executable, "-m", "vrag_agent.train", "--config-name", "ggpo" if options.ggpo else "grpo"]
        training += [*verl_settings(run, task, url, name, options.steps, options.seed, options.ggpo), *options.setting]
        last = run / name / f"global_step_{options.steps}" / "actor"
        _step(seconds, "train", last, training)
        merged = run / f"{name}_merged"
        merge = [sys.executable, str(SCRIPTS / "model_merger.py"), str(last.parent), "--output", str(merged)]
        _step(seconds, "merge", merged / "config.json", merge)
        for checkpoint in (run / "sft", merged):
            if _validated(run, checkpoint) is None:
                look = [*tiny, "validate", str(run), str(checkpoint), *common, "--search-url", url]
                _step(seconds, "validate", None, look)
    found = list(
        verdicts(_validated(run, run / "sft"), _validated(run, merged), list(read_metrics(run / name).values()))
    )
    _summary(run / f"{name}.txt", seconds, found)
    return 0 if all(verdict.holds for verdict in found) else 1


def claim(run: Path, kind: dict[str, Any]) -> None:
    """Note in the folder what is run there. Raises ConfigError when that was something else, whose results would be taken for
    these."""
    path = run / "kind.json"
    if path.exists():
        before = json.loads(path.read_text("utf-8"))
        if before != kind:
            listed = [", ".join(f"{name} {value}" for name, value in one.items()) for one in (before, kind)]
            raise ConfigError(
                f"{run} holds a run of another kind ({listed[0]}); choose another folder for {listed[1]}."
            )
    path.write_text(json.dumps(kind) + "\n", "utf-8")


def verl_settings(run: Path, task: TinyTask, url: str, name: str, steps: int, seed: int, ggpo: bool) -> list[str]:
    """The settings of the training, from those that the rest of the tiny world uses."""
    area = task.side**2
    if task.agent == "vrag":
        episode = {"max_steps": 5 if task.crop else 3, "min_pixels": area, "max_pixels": area, "crop_padding": 0}
    else:
        episode = {"max_steps": 5, "top_k": 1, "max_pixels_image": area, "max_corrections": 2}
        episode["memory"] = {"pixels": 4 * area, "top_k": 2, "min_pixels": 1}  # type: ignore[assignment]
    limits = task.limits
    settings: dict[str, Any] = {
        "vrag.search.search_url": url,
        "vrag.episode.kind": task.agent,
        "vrag.episode.prompts": PROMPTS,
        "vrag.limits.turn_tokens": limits.max_turn_tokens,
        "vrag.judge.kind": "exact",
        "vrag.reward.preset": "published" if task.agent == "vrag" else "vimrag",
        "vrag.seed": seed,
        "vrag.records.folder": run / name / "records",
        "vrag.ggpo.enable": ggpo,
        "vrag.skip_silent_groups": True,
        "data.train_files": run / "data" / "tiny_train.parquet",
        "data.val_files": run / "data" / "tiny_val.parquet",
        "data.train_batch_size": 16,
        "data.seed": seed,
        "data.max_prompt_length": limits.max_prompt_tokens,
        "data.max_response_length": limits.max_response_tokens,
        "actor_rollout_ref.model.path": run / "sft",
        "actor_rollout_ref.actor.ppo_mini_batch_size": 16,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 32,
        "actor_rollout_ref.actor.optim.lr": task.lr,
        "actor_rollout_ref.actor.optim.lr_warmup_steps": 5,
        "actor_rollout_ref.actor.optim.weight_decay": 0.0,
        "actor_rollout_ref.actor.optim.betas": [0.9, 0.99],
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 32,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 32,
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.rollout.val_kwargs.temperature": 0,
        "actor_rollout_ref.rollout.val_kwargs.do_sample": False,
        "trainer.n_gpus_per_node": 1,
        "trainer.val_before_train": True,
        "trainer.test_freq": 5,
        "trainer.save_freq": max(1, steps // 3),
        "trainer.max_actor_ckpt_to_keep": 2,
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": 1000,
        "trainer.default_local_dir": run / name,
        "trainer.experiment_name": name,
    }
    return [
        "+backend=cpu",
        *(f"{key}={_written(value)}" for key, value in settings.items()),
        *(f"+vrag.episode.options.{key}={_written(value)}" for key, value in episode.items()),
    ]


def _written(value: Any) -> str:
    """A value as Hydra reads it. Texts and paths are quoted: in its grammar most characters of a path mean something."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, str | Path):
        return QuotedString(str(value), Quote.single).with_quotes()
    return str(value)


def _conversion(run: Path) -> list[str]:
    # Seen from the folder: "=" and "@" in its own path would be read as parts of a source.
    parts = [f"{part}.json@{part}" for part in ("train", "val")]
    script = SCRIPTS / "hf_dataset_convert.py"
    return [sys.executable, str(script), *parts, "--output", str(run / "data"), "--prefix", "tiny", "--require-pages"]


def _step(
    seconds: dict[str, float], name: str, result: Path | None, command: Sequence[str], folder: Path | None = None
) -> None:
    """Run a command, in ``folder`` if one is given, unless its result is there. Raises ConfigError when it fails."""
    if result is not None and result.exists():
        return
    sys.stdout.write(f"--- {name}\n")
    sys.stdout.flush()
    started = time.monotonic()
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    if name == "train":  # the rollout, the actor and the trainer are processes beside each other
        environment.setdefault("OMP_NUM_THREADS", "1")
    status = subprocess.run(command, env=environment, cwd=folder, check=False).returncode
    seconds[name] = seconds.get(name, 0.0) + time.monotonic() - started
    if status == 130:
        raise KeyboardInterrupt
    if status:
        if result is not None and result.is_dir() and not any(result.iterdir()):
            shutil.rmtree(result)
        raise ConfigError(f"The step {name!r} failed with status {status}; its output stands above.")


# --- figures


def verdicts(
    before: dict[str, Any] | None, after: dict[str, Any] | None, steps: Sequence[dict[str, float]]
) -> Iterator[Verdict]:
    """``before`` and ``after``: lines of validate.jsonl for the models after SFT and after RL; ``steps``: verl's metrics."""
    if before is None or after is None:
        yield Verdict("validation", "missing", False)
        return
    for way in ("greedy", "sampled"):
        first, last = before["validation"][way]["reward"], after["validation"][way]["reward"]
        found = f"{first:.3f} -> {last:.3f} ({last - first:+.3f})"
        # What begins near the top cannot rise by much.
        yield Verdict(f"held-out reward, {way}", found, last - first >= min(RISE, 0.95 - first))
    seen, blind = (after[name]["greedy"]["accuracy"] for name in ("validation", "blindfolded"))
    yield Verdict("accuracy with the pictures blacked out", f"{seen:.3f} -> {blind:.3f}", blind < BLIND)
    trained = [metrics for metrics in steps if "rollout/trajectories" in metrics]
    excluded = sum(metrics["rollout/excluded"] for metrics in trained)
    total = excluded + sum(metrics["rollout/trajectories"] for metrics in trained)
    yield Verdict(
        "trajectories without a reward", f"{excluded:.0f} of {total:.0f}", total > 0 and excluded <= EXCLUDED * total
    )
    worst = max((metrics.get("rollout/logprob_diff_max", 1.0) for metrics in trained), default=1.0)
    yield Verdict("largest difference of log-probabilities", f"{worst:.1e}", worst < AGREE)


def _validated(run: Path, checkpoint: Path) -> dict[str, Any] | None:
    """The latest line of validate.jsonl about a checkpoint."""
    path = run / "validate.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    return next((line for line in reversed(lines) if line["checkpoint"] == checkpoint.name), None)


def _summary(path: Path, seconds: dict[str, float], found: Sequence[Verdict]) -> None:
    lines = ["", f"{'what':58} {'found':28} verdict"]
    lines += [f"{verdict.what:58} {verdict.found:28} {'ok' if verdict.holds else 'FAILED'}" for verdict in found]
    lines.append("seconds: " + ", ".join(f"{name} {value:.0f}" for name, value in seconds.items()))
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
