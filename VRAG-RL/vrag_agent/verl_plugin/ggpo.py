"""GGPO's loss as verl's workers call it: nested tensors in, a scalar and metrics out. The maths is in vrag_agent.loss."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from vrag_agent.loss import LossSettings, policy_loss


def ggpo_loss(
    model_output: dict[str, Any], data: TensorDict, dp_group: Any = None, *, settings: LossSettings
) -> tuple[torch.Tensor, dict[str, Any]]:
    """For ``set_loss_fn``. The batch carries ``segments`` (B, T) and ``loss_count``, what the whole update divides by.

    The gradients of the ranks are averaged, so a rank's sum is taken times their number.
    """
    log_prob = no_padding_2_padding(model_output["log_probs"], data)
    ranks = data["dp_size"]
    count = float(data["loss_count"])
    fields = ["response_mask", "old_log_probs", "advantages", "segments"]
    if "ref_log_prob" in data:
        fields.append("ref_log_prob")
    lengths = data["response_mask"].offsets().diff()
    rows = data.select(*fields).to_padded_tensor()
    places = torch.arange(rows["segments"].shape[1], device=rows["segments"].device)
    segments = torch.where(places[None] < lengths[:, None], rows["segments"], -1)
    parts = policy_loss(
        log_prob,
        rows["old_log_probs"],
        rows["advantages"],
        rows["response_mask"],
        segments,
        settings,
        rows["ref_log_prob"] if "ref_log_prob" in fields else None,
        count=count / ranks,
    )
    metrics: dict[str, Any] = {
        "actor/pg_loss": Metric(value=parts.policy, aggregation=AggregationType.SUM),
        "actor/pg_clipfrac": Metric(value=parts.clipped, aggregation=AggregationType.MEAN),
        "actor/ppo_kl": Metric(value=parts.approx_kl, aggregation=AggregationType.MEAN),
    }
    if settings.kl_coef:
        metrics["kl_loss"] = Metric(value=parts.kl, aggregation=AggregationType.SUM)
        metrics["kl_coef"] = settings.kl_coef
    return parts.loss, metrics
