"""Checkpoints of the trainer to the Hugging Face layout: what is wrong with a folder is said; a real one is merged by verl."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from vrag.errors import ConfigError
from vrag_agent.data.merge import actor_folder, check_shards, main, merge


def shards(folder: Path, size: int = 2, missing: tuple[int, ...] = (), config: bool = True) -> Path:
    actor = folder / "actor"
    actor.mkdir(parents=True)
    for rank in range(size):
        if rank not in missing:
            (actor / f"model_world_size_{size}_rank_{rank}.pt").write_bytes(b"")
    if config:
        (actor / "huggingface").mkdir()
        (actor / "huggingface" / "config.json").write_text("{}")
    return actor


def test_the_actor_is_found_from_wherever_one_points(tmp_path: Path) -> None:
    actor = shards(tmp_path / "global_step_9")
    newest = shards(tmp_path / "global_step_10")
    assert actor_folder(actor) == actor
    assert actor_folder(tmp_path / "global_step_9") == actor
    shards(tmp_path / "global_step_abc")
    (tmp_path / "global_step_").mkdir()
    assert actor_folder(tmp_path) == newest


def test_a_folder_without_shards(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no checkpoint"):
        actor_folder(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="holds no shards"):
        actor_folder(tmp_path)


def test_shards_that_are_missing_or_mixed(tmp_path: Path) -> None:
    assert check_shards(shards(tmp_path / "whole")) == 2
    with pytest.raises(ConfigError, match=r"lacks the shards of the ranks \[1, 3\] of 4"):
        check_shards(shards(tmp_path / "part", 4, (1, 3)))
    mixed = shards(tmp_path / "mixed")
    (mixed / "model_world_size_4_rank_0.pt").write_bytes(b"")
    with pytest.raises(ConfigError, match="mixes shards"):
        check_shards(mixed)
    with pytest.raises(ConfigError, match="the save was interrupted"):
        check_shards(shards(tmp_path / "cut", config=False))


def test_a_full_output_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards(tmp_path / "run")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert main([str(tmp_path / "run"), "--output", str(tmp_path / "out")]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"


def test_a_file_is_no_output_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards(tmp_path / "run")
    (tmp_path / "out").write_text("mine")
    assert main([str(tmp_path / "run"), "--output", str(tmp_path / "out")]) == 1
    assert "is a file" in capsys.readouterr().err


needs_verl = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")


@needs_verl
def test_a_real_checkpoint_is_merged(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from vrag_agent.tiny.checkpoint import make_checkpoint

    source = make_checkpoint("qwen2_5_vl", tmp_path / "tiny")
    model = AutoModelForImageTextToText.from_pretrained(source)
    actor = tmp_path / "run" / "global_step_1" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    torch.save(model.state_dict(), actor / "model_world_size_1_rank_0.pt")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    model.config.save_pretrained(actor / "huggingface")
    model.generation_config.save_pretrained(actor / "huggingface")
    AutoProcessor.from_pretrained(source).save_pretrained(actor / "huggingface")
    output = merge(tmp_path / "run", tmp_path / "merged")
    merged = AutoModelForImageTextToText.from_pretrained(output, dtype=torch.float32)
    for name, value in model.state_dict().items():
        assert torch.equal(merged.state_dict()[name], value.bfloat16().float()), name
    AutoProcessor.from_pretrained(output)


@needs_verl
def test_a_damaged_shard_is_a_sentence(tmp_path: Path) -> None:
    actor = shards(tmp_path / "run", 1)
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    with pytest.raises(ConfigError, match="verl could not merge the 1 shards"):
        merge(actor, tmp_path / "out")
