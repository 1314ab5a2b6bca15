"""Real steps through verl: two ranks, FSDP2 over gloo, pictures in the middle of the dialogue. A few runs, many questions."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")

import torch

from tests.rl.training_runs import WORDS, Finished, Run, settings, write_data
from tests.servers import TinyRetriever, dead_url, page, serve
from tests.small_disk import mounted
from vrag.records import list_runs, read_record

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


GRPO: dict[str, Any] = {
    "vrag__episode__factory": "any_reply:vrag",
    "vrag__probe_gradient": True,
    "actor_rollout_ref__actor__use_kl_loss": True,
    "actor_rollout_ref__actor__kl_loss_coef": 0.01,
    # One row at a time: some have a picture, some have none, and the other rank's row may differ.
    "actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 1,
    "trainer__total_training_steps": 4,
}


@pytest.fixture(scope="module")
def search_url() -> Iterator[str]:
    with serve(TinyRetriever([page(f"cards_{n}", words) for n, words in enumerate(WORDS, 1)]).app) as url:
        yield url


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verl")
    write_data(folder)
    return folder


@pytest.fixture(scope="module")
def grpo(root: Path, checkpoints: dict[str, Any], search_url: str) -> Finished:
    """Four steps of GRPO on Qwen2.5-VL, with a reference model, validation and a checkpoint after every second."""
    out = root / "grpo"
    arguments = settings(
        checkpoints["qwen2_5_vl"].folder,
        root,
        out,
        search_url,
        **GRPO,
        trainer__save_freq=2,
        trainer__test_freq=2,
        trainer__val_before_train=True,
    )
    with Run(out, arguments) as run:
        return run.wait()


def test_grpo_runs_and_counts_every_trajectory(grpo: Finished) -> None:
    assert grpo.status == 0, grpo.log[-3000:]
    assert sorted(grpo.steps) == [0, 1, 2, 3, 4]
    for step in range(1, 5):
        metrics = grpo.steps[step]
        assert metrics["rollout/trajectories"] == 8
        assert metrics["rollout/excluded"] == 0
        assert metrics["actor/grad_norm"] > 0
        assert 0 <= metrics["reward/total"] <= 1
        assert metrics["kl_loss" if "kl_loss" in metrics else "actor/kl_loss"] >= 0
    assert any("val-core" in name or "val-aux" in name for name in grpo.steps[0])


def test_rollout_and_training_agree_on_every_log_probability(grpo: Finished) -> None:
    for step in range(1, 5):
        assert grpo.steps[step]["rollout/logprob_diff_max"] < 1e-5


def test_no_token_of_a_prompt_or_an_observation_gets_a_gradient(grpo: Finished) -> None:
    for step in range(1, 5):
        assert grpo.steps[step]["actor/probe/stray"] == 0
        assert grpo.steps[step]["actor/probe/taught"] > 0


def test_trajectories_are_kept_as_records_that_can_be_replayed(grpo: Finished, root: Path) -> None:
    folder = root / "grpo" / "records" / "train"
    lines = [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]
    first = [line for line in lines if line["record"].startswith("step_000001/")]
    assert len(first) == 2  # one session of each group
    assert len(list_runs(folder / "step_000001")) == 2
    pictures = 0
    for line in first:
        record = read_record(folder / line["record"])
        assert record.outcome is not None
        assert line["reward"]["total"] == pytest.approx(
            0.5 * line["reward"]["ndcg"] + 0.4 * line["reward"]["outcome"] + 0.1 * line["reward"]["pattern"]
        )
        pictures += sum(sample["images"] for sample in line["samples"])
    everything = (root / "grpo" / "records").rglob("trajectories.jsonl")
    samples = [
        one for path in everything for line in path.read_text().splitlines() for one in json.loads(line)["samples"]
    ]
    assert any(one["images"] for one in samples)
    assert any(not one["images"] for one in samples)


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(
    grpo: Finished, root: Path, checkpoints: dict[str, Any], search_url: str
) -> None:
    out = root / "resumed"
    (out / "checkpoints").mkdir(parents=True)
    shutil.copytree(root / "grpo" / "checkpoints" / "global_step_2", out / "checkpoints" / "global_step_2")
    (out / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2")
    arguments = settings(
        checkpoints["qwen2_5_vl"].folder,
        root,
        out,
        search_url,
        **GRPO,
    )
    with Run(out, arguments) as run:
        resumed = run.wait()
    assert resumed.status == 0, resumed.log[-3000:]
    assert sorted(resumed.steps) == [3, 4]
    for step in (3, 4):
        for name in (
            "actor/loss",
            "actor/pg_loss",
            "actor/grad_norm",
            "actor/lr",
            "reward/total",
            "perf/total_num_tokens",
        ):
            assert resumed.steps[step][name] == pytest.approx(grpo.steps[step][name], rel=1e-4, abs=1e-6), (step, name)


def test_a_checkpoint_becomes_a_hugging_face_folder(grpo: Finished, root: Path) -> None:
    from transformers import AutoModelForImageTextToText

    actor, merged = root / "grpo" / "checkpoints" / "global_step_4" / "actor", root / "merged"
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    subprocess.run(
        [*command, "--local_dir", str(actor), "--target_dir", str(merged)], check=True, capture_output=True, timeout=600
    )
    before = (
        AutoModelForImageTextToText.from_pretrained(actor / "huggingface", trust_remote_code=False)
        if (actor / "huggingface" / "model.safetensors").exists()
        else None
    )
    model = AutoModelForImageTextToText.from_pretrained(merged)
    assert before is None or sum(p.numel() for p in before.parameters()) == sum(p.numel() for p in model.parameters())


def test_ggpo_masks_segments_of_a_memory_graph(root: Path, checkpoints: dict[str, Any], search_url: str) -> None:
    out = root / "ggpo"
    arguments = settings(
        checkpoints["qwen3_vl"].folder,
        root,
        out,
        search_url,
        vrag__episode__factory="any_reply:vimrag",
        vrag__probe_gradient=True,
        vrag__skip_silent_groups=True,
        vrag__records__train_sessions=4,
        actor_rollout_ref__actor__use_kl_loss=True,
        actor_rollout_ref__actor__ppo_mini_batch_size=1,  # two updates a step
        trainer__total_training_steps=2,
        trainer__save_freq=2,
        trainer__test_freq=2,
    )
    with Run(out, arguments, config="ggpo") as run:
        found = run.wait()
    assert found.status == 0, found.log[-3000:]
    kept = [json.loads(line) for line in (out / "records" / "train" / "trajectories.jsonl").read_text().splitlines()]
    for step in (1, 2):
        metrics = found.steps[step]
        assert metrics["rollout/trajectories"] == 8
        assert metrics["rollout/samples_per_trajectory"] > 1
        assert metrics["ggpo/segments"] >= 8 > 0
        assert metrics["ggpo/masked_segments"] <= metrics["ggpo/segments"]
        assert metrics["rollout/logprob_diff_max"] < 1e-5
        assert metrics["actor/probe/stray"] == 0  # masked segments among them
        assert 0 < metrics["actor/probe/taught"] <= metrics["ggpo/learnt_tokens"]
        assert math.isfinite(metrics["actor/pg_loss"])
        # Of all trajectories, also of the groups that nothing is learnt from.
        rewards = [line["reward"]["total"] for line in kept if line["record"].startswith(f"step_00000{step}/")]
        assert len(rewards) == 8
        assert metrics["reward/total"] == pytest.approx(sum(rewards) / 8)
    assert sum(found.steps[step]["ggpo/masked_tokens"] for step in (1, 2)) > 0
    assert (out / "checkpoints" / "global_step_2" / "actor").is_dir()


@pytest.mark.slow
def test_lora_learns_and_ctrl_c_ends_it_with_its_checkpoint(
    root: Path, checkpoints: dict[str, Any], search_url: str
) -> None:
    out = root / "lora"
    arguments = settings(
        checkpoints["qwen3_vl"].folder,
        root,
        out,
        search_url,
        vrag__episode__factory="any_reply:vrag",
        actor_rollout_ref__model__lora_rank=4,
        actor_rollout_ref__model__lora_alpha=8,
        # The test backend takes whole weights, so the adapters are merged on their way to it.
        actor_rollout_ref__model__lora__merge=True,
        actor_rollout_ref__actor__use_kl_loss=True,
        trainer__n_gpus_per_node=1,
        trainer__total_training_steps=500,
        trainer__save_freq=1,
    )
    with Run(out, arguments) as run:
        run.wait_for_step(2)
        run.interrupt()
        found = run.wait()
        deadline = time.monotonic() + 60
        while run.left() and time.monotonic() < deadline:
            time.sleep(0.5)
        assert run.left() == []
    assert found.steps[1]["actor/grad_norm"] > 0
    assert found.steps[2]["actor/kl_loss"] > 0  # the adapters moved away from the model without them
    for step in (1, 2):
        # verl sends merged adapters in bf16, whatever the training computes in.
        assert found.steps[step]["rollout/logprob_diff_max"] < 0.02
    assert found.status == 130
    assert "the same command goes on from there" in found.log
    latest = int((out / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())
    assert latest >= 2
    assert (out / "checkpoints" / f"global_step_{latest}" / "actor").is_dir()


@pytest.mark.slow
def test_a_judge_that_is_down_ends_the_run_with_a_sentence(
    root: Path, checkpoints: dict[str, Any], search_url: str
) -> None:
    out = root / "judge"
    arguments = settings(
        checkpoints["qwen2_5_vl"].folder,
        root,
        out,
        search_url,
        vrag__episode__factory="any_reply:vrag",
        vrag__judge__kind="model",
        vrag__judge__settings__base_url=f"{dead_url()}/v1",
        vrag__judge__settings__model="judge",
        vrag__judge__settings__retries=0,
        vrag__preflight=False,
        trainer__n_gpus_per_node=1,
        trainer__total_training_steps=2,
    )
    with Run(out, arguments) as run:
        found = run.wait()
    assert found.status == 1
    assert "trajectories have no reward, more than the limit of 20%" in found.log
    assert "x judge: The judge gave no verdict" in found.log
    assert found.steps == {}


@pytest.mark.slow
def test_a_rollout_server_that_is_killed_ends_the_run_and_leaves_its_checkpoint(
    root: Path, checkpoints: dict[str, Any], search_url: str
) -> None:
    out = root / "killed"
    arguments = settings(
        checkpoints["qwen2_5_vl"].folder,
        root,
        out,
        search_url,
        vrag__episode__factory="any_reply:vrag",
        actor_rollout_ref__actor__freeze_vision_tower=True,
        trainer__n_gpus_per_node=1,
        trainer__total_training_steps=500,
        trainer__save_freq=1,
    )
    with Run(out, arguments) as run:
        run.wait_for_step(1)
        servers = [pid for pid in run.left() if b"HfServer" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert servers
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        found = run.wait()
    assert found.status == 1
    assert "The run failed" in found.log
    actor = out / "checkpoints" / "global_step_1" / "actor"
    saved = torch.load(actor / "model_world_size_1_rank_0.pt", weights_only=False)
    for name, before in checkpoints["qwen2_5_vl"].model.state_dict().items():
        if ".visual." in name:  # frozen in this run
            assert torch.equal(getattr(saved[name], "_local_tensor", saved[name]), before), name
    head = getattr(saved["lm_head.weight"], "_local_tensor", saved["lm_head.weight"])
    assert not torch.equal(head, checkpoints["qwen2_5_vl"].model.lm_head.weight)


@pytest.mark.slow
def test_a_full_disk_at_a_checkpoint_leaves_the_one_before_to_go_on_from(
    root: Path, checkpoints: dict[str, Any], search_url: str, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "40m"):
        model = checkpoints["qwen2_5_vl"]
        arguments = settings(
            model.folder,
            root,
            tmp_path,
            search_url,
            vrag__episode__factory="any_reply:vrag",
            trainer__n_gpus_per_node=1,
            trainer__total_training_steps=2,
            trainer__save_freq=1,
            trainer__default_local_dir=disk,
        )
        # Weights and two moments of each: one such checkpoint has room, and half of another.
        size = 12 * sum(parameter.numel() for parameter in model.model.parameters())
        (disk / "ballast").write_bytes(b"0" * int(40 * 2**20 - 1.6 * size))
        with Run(tmp_path / "first", arguments) as run:
            failed = run.wait()
        assert failed.status == 1
        assert "The checkpoint of step 2 could not be written" in failed.log
        assert "That of step 1 stays; make room and give the same command again" in failed.log
        assert (disk / "latest_checkpointed_iteration.txt").read_text() == "1"
        assert sorted(path.name for path in disk.glob("global_step_*")) == ["global_step_1"]
        (disk / "ballast").unlink()
        with Run(tmp_path / "second", arguments) as run:
            resumed = run.wait()
        assert resumed.status == 0, resumed.log[-3000:]
        assert sorted(resumed.steps) == [2]
        assert (disk / "global_step_2" / "actor").is_dir()
