"""What is mended in verl 0.9.1, and only there: :func:`apply` refuses another version by its name.

Four defects meet on any machine; each has a test that fails as soon as upstream changes what is mended here.

* A micro-batch without a picture (a trajectory that answers at once) kills Qwen2-VL and Qwen2.5-VL: the dummy pass that
  keeps the vision tower in the graph calls ``.mean()`` on an output object of transformers 5
  (``verl/models/transformers/qwen2_vl.py``). The merger's output has to be taken, else the merger's parameters get no
  gradient and a rank waits for ever.
* Rows whose position ids are (4, L) with the same L: the nested tensor takes its first axis for the ragged one, and
  ``maybe_fix_3d_position_ids`` then only sets the number of the axis, which splits at wrong places. It is built again.
* Where TRL is installed (our SFT uses it), a class is imported from it that TRL no longer has. It is only for value heads.

* ``actor.freeze_vision_tower`` is read by the Megatron engine alone; here FSDP keeps the promise too.

Another defect (a trajectory of several samples is padded along the wrong axis in ``_compute_score``) is not met: our agent loop
scores itself. On the CPU two calls need a GPU that is not there: the name of the process group, and pinned memory for the
reference model.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch

from vrag_agent.verl_plugin import check_version

log = logging.getLogger(__name__)

_applied = False


def apply(cpu: bool, freeze_vision: bool = False) -> None:
    """Mend verl in this process. Raises RuntimeError for another version; doing it again is harmless."""
    global _applied
    check_version()
    if _applied:
        return
    _text_only_vision_pass()
    _nested_position_ids()
    _value_heads_of_trl()
    if freeze_vision:
        _frozen_vision_tower()
    if cpu:
        _gloo_process_group()
        _unpinned_reference()
    _applied = True


def text_only_embeds(model: Any, input_ids: torch.Tensor) -> torch.Tensor:
    """Embeddings of a micro-batch without pictures, with the vision tower and its merger in the graph at weight 0."""
    from verl.utils.transformers_compat import unpack_visual_output

    embeds = model.get_input_embeddings()(input_ids)
    vision = model.config.vision_config
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = torch.zeros((16, patch), dtype=embeds.dtype, device=embeds.device)
    grid = torch.tensor([[1, 4, 4]], dtype=torch.long, device=embeds.device)
    merged, _ = unpack_visual_output(model.visual(pixels, grid_thw=grid))
    return embeds + 0.0 * merged.mean()


def _text_only_vision_pass() -> None:
    from verl.models.transformers import qwen2_vl

    upstream = qwen2_vl._get_input_embeds

    @functools.wraps(upstream)
    def get_input_embeds(
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        pixel_values_videos: torch.Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if pixel_values is not None or pixel_values_videos is not None:
            return upstream(model, input_ids, attention_mask, pixel_values, pixel_values_videos, *args, **kwargs)
        embeds = text_only_embeds(model, input_ids)
        return embeds, attention_mask if attention_mask is None else attention_mask.to(embeds.device)

    qwen2_vl._get_input_embeds = get_input_embeds


def mended_position_ids(positions: torch.Tensor) -> torch.Tensor:
    """Nested (B, 4, ragged L) position ids whose ragged axis is the last, whatever axis they were built along."""
    offsets, values = positions.offsets(), positions.values()
    # (4, sum of L): only the number of the axis was lost on the way. The other form has its 4 * B rows of length L.
    if values.shape[0] == 4 and int(offsets[-1]) == values.shape[-1]:
        positions._ragged_idx = 2
        return positions
    length = values.shape[-1]  # (4 * B, L): built along the axis of size 4, which all rows share
    rows = values.view(-1, 4, length).unbind()
    bounds = torch.arange(len(rows) + 1, device=values.device, dtype=offsets.dtype) * length
    return torch.nested.nested_tensor_from_jagged(torch.cat(rows, dim=-1), offsets=bounds, jagged_dim=2)


def _nested_position_ids() -> None:
    from verl.utils import tensordict_utils
    from verl.workers import engine_workers
    from verl.workers.engine import base

    def maybe_fix_3d_position_ids(data: Any) -> None:
        if "position_ids" not in data.keys():  # noqa: SIM118 - a TensorDict has no __contains__ for nested keys
            return
        positions = data["position_ids"]
        if positions.is_nested and positions.dim() == 3:
            data["position_ids"] = mended_position_ids(positions)

    for module in (tensordict_utils, engine_workers, base):
        module.maybe_fix_3d_position_ids = maybe_fix_3d_position_ids


def _value_heads_of_trl() -> None:
    import importlib.util

    from verl.models.transformers import monkey_patch

    if importlib.util.find_spec("trl") is None:
        return
    import trl

    if not hasattr(trl, "AutoModelForCausalLMWithValueHead"):
        monkey_patch.is_trl_available = lambda: False


def freeze_vision_tower(module: torch.nn.Module) -> int:
    """No gradient for the vision tower and its merger; returns how many parameters that is."""
    frozen = 0
    for name, parameter in module.named_parameters():
        if "visual" in name.split("."):
            parameter.requires_grad_(False)
            frozen += parameter.numel()
    return frozen


def _frozen_vision_tower() -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    upstream = FSDPEngine._build_module

    @functools.wraps(upstream)
    def build_module(self: Any) -> torch.nn.Module:
        module: torch.nn.Module = upstream(self)
        log.info("frozen: %d parameters of the vision tower", freeze_vision_tower(module))
        return module

    FSDPEngine._build_module = build_module


def _gloo_process_group() -> None:
    """verl asks for "cpu:gloo,cpu:gloo" here, which torch rejects."""
    from verl.utils import distributed
    from verl.workers import engine_workers

    upstream = distributed.initialize_global_process_group_ray

    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> None:
        upstream(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray
    engine_workers.initialize_global_process_group_ray = initialize_global_process_group_ray


def _unpinned_reference() -> None:
    """The reference model's weights are offloaded to pinned memory, and pinning needs an accelerator."""
    from verl.workers.engine.fsdp import transformer_impl

    upstream = transformer_impl.CPUOffloadPolicy
    transformer_impl.CPUOffloadPolicy = lambda pin_memory=True: upstream(pin_memory=False)
