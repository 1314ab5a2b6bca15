"""What is mended in verl is still broken there, and is mended here. A test that fails here says: upstream has changed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

import torch

with warnings.catch_warnings():  # what verl and Ray import from each other
    warnings.simplefilter("ignore")
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker
    from verl.models.transformers import qwen2_vl

    from vrag_agent import verl_plugin
    from vrag_agent.verl_plugin import patches


def test_another_version_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.10.0")
    with pytest.raises(RuntimeError, match=r"plugs into verl 0\.9\.1 and found verl 0\.10\.0"):
        verl_plugin.check_version()


def test_the_plug_in_is_loaded_by_verl_itself() -> None:
    code = "import verl, sys; m = sys.modules['vrag_agent.verl_plugin']; m.assert_loaded()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_process_without_the_plug_in_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl_plugin, "_loaded", False)
    with pytest.raises(RuntimeError, match="without its plug-in 'vrag'"):
        verl_plugin.assert_loaded()


def test_text_only_rows_of_qwen2_5_vl(checkpoints: dict[str, Any]) -> None:
    model = checkpoints["qwen2_5_vl"].model.model
    ids = torch.tensor([[1, 2, 3]])
    upstream = getattr(qwen2_vl._get_input_embeds, "__wrapped__", qwen2_vl._get_input_embeds)
    with pytest.raises(AttributeError, match="mean"):
        upstream(model, ids)
    model.zero_grad()
    embeds = patches.text_only_embeds(model, ids)
    assert torch.equal(embeds, model.get_input_embeddings()(ids))
    embeds.sum().backward()
    vision = dict(model.visual.named_parameters())
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in vision.values())
    assert any("merger" in name for name in vision)


def test_position_ids_of_rows_of_one_length() -> None:
    rows = [torch.arange(4 * 6).view(4, 6) + 100 * number for number in range(3)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    broken = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    broken._ragged_idx = 2  # what upstream does
    with pytest.raises(RuntimeError):
        broken.unbind()
    mended = patches.mended_position_ids(nested)
    assert all(torch.equal(one, row) for one, row in zip(mended.unbind(), rows, strict=True))
    assert mended._ragged_idx == 2


@pytest.mark.parametrize("number", [2, 3, 8, 32])
def test_position_ids_of_rows_as_long_as_there_are_axes_in_all(number: int) -> None:
    """Then the last offset of either form is the length of a row."""
    rows = [torch.arange(4 * 4 * number).view(4, -1) + 1000 * row for row in range(number)]
    mended = patches.mended_position_ids(torch.nested.as_nested_tensor(rows, layout=torch.jagged))
    assert all(torch.equal(one, row) for one, row in zip(mended.unbind(), rows, strict=True))


def test_position_ids_of_rows_of_different_lengths_stay_what_they_are() -> None:
    rows = [torch.arange(4 * length).view(4, length) for length in (3, 7, 5)]
    mended = patches.mended_position_ids(torch.nested.as_nested_tensor(rows, layout=torch.jagged))
    assert all(torch.equal(one, row) for one, row in zip(mended.unbind(), rows, strict=True))


def test_a_scored_trajectory_of_several_samples_is_not_padded() -> None:
    """Scoring several samples pads (4, L) positions along the wrong axis; a reward that is set keeps verl from it."""
    outputs = [
        AgentLoopOutput(
            prompt_ids=[1], response_ids=[2], response_mask=[1], metrics=AgentLoopMetrics(), reward_score=0.5
        )
        for _ in range(2)
    ]
    worker = SimpleNamespace(reward_loop_worker_handles=["never asked"])
    asyncio.run(AgentLoopWorker._compute_score(worker, outputs, {}))
    assert outputs[-1].reward_score == 0.5


def test_torchvision_can_be_imported_next_to_this_torch() -> None:
    code = (
        "import vrag_agent, torch, torchvision\n"
        "assert hasattr(torch.ops.torchvision, 'nms')\n"
        "from transformers import AutoProcessor"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
