"""Which tokens a loss teaches, measured where verl computes it: at the log-probabilities, by differentiating the loss itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

Loss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]


def probed(
    model_output: dict[str, Any], data: TensorDict, dp_group: Any = None, *, loss: Loss
) -> tuple[torch.Tensor, dict[str, Any]]:
    """``loss`` unchanged, with two more metrics of the micro-batch.

    ``probe/taught``: tokens of the mask whose log-probability gets a gradient; ``probe/stray``: tokens outside of it (prompt,
    observations, masked segments) that get one that is not exactly zero, which has to be none.
    """
    value, metrics = loss(model_output=model_output, data=data, dp_group=dp_group)
    log_probs = model_output["log_probs"]
    taught = stray = torch.zeros((), device=value.device)
    if value.requires_grad:
        (gradient,) = torch.autograd.grad(value, log_probs, retain_graph=True)
        everywhere = (gradient.values() if gradient.is_nested else gradient).count_nonzero()
        mask = data.select("response_mask").to_padded_tensor()["response_mask"].bool()
        taught = (no_padding_2_padding(gradient, data) * mask).count_nonzero()
        stray = everywhere - taught
    found = {"probe/taught": taught, "probe/stray": stray}
    return value, {
        **metrics,
        **{name: Metric(value=one.float(), aggregation=AggregationType.SUM) for name, one in found.items()},
    }
