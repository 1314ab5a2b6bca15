"""The clipped policy loss on plain tensors: GRPO, GSPO and GGPO, by settings. Knows neither verl nor Ray.

Shapes: B rows (samples), T positions of the response, padded at its end. All tensors are (B, T); ``segments`` numbers the
segments of a row (a node of the memory graph, see :mod:`vrag_agent.advantages`) from 0 and is -1 where there is no token of
the model. ``mask`` is 1 for the tokens that are learnt from: GGPO's masked segments have a number but a mask of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Ratio = Literal["token", "sequence"]
Aggregation = Literal["token-mean", "sequence-mean", "segment-mean"]

#: Differences of log-probabilities are cut here before they are exponentiated, as verl does.
_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class LossSettings:
    """How a loss is formed. Raises ValueError for values that make no sense.

    ``ratio``: ``token`` is pi / pi_old of each token (GRPO); ``sequence`` is the length-normalised ratio of a whole segment,
    exp(mean of log pi - log pi_old) (GSPO, arXiv 2507.18071), which GGPO builds on.

    ``aggregation``: ``token-mean`` averages over the tokens that are learnt from (the published trainer);
    ``sequence-mean`` over the rows, each the mean of its tokens (VRAG-RL's equation); ``segment-mean`` divides the sum over
    segments, each the mean of its tokens, by the number of all segments, the masked ones too (GGPO's 1 / sum of n_g).
    """

    ratio: Ratio = "token"
    aggregation: Aggregation = "token-mean"
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_c: float | None = None
    """Dual clip: a bound of the ratio where the advantage is negative, above 1; None: unbounded, as in the papers."""
    kl_coef: float = 0.0

    def __post_init__(self) -> None:
        if self.ratio not in ("token", "sequence"):
            raise ValueError(f"ratio has to be token or sequence, not {self.ratio!r}")
        if self.aggregation not in ("token-mean", "sequence-mean", "segment-mean"):
            raise ValueError(
                f"aggregation has to be token-mean, sequence-mean or segment-mean, not {self.aggregation!r}"
            )
        if not (0 <= self.clip_low < 1 and self.clip_high >= 0):
            raise ValueError(f"the clip range 1 - {self.clip_low} to 1 + {self.clip_high} makes no sense")
        if self.clip_c is not None and not self.clip_c > 1:
            raise ValueError(f"clip_c has to be above 1, not {self.clip_c}")


@dataclass(frozen=True)
class LossParts:
    """A loss (a scalar that carries the gradient) and figures about it (without gradient)."""

    loss: torch.Tensor
    policy: torch.Tensor
    kl: torch.Tensor
    clipped: torch.Tensor
    """Share of the learnt tokens whose ratio was cut."""
    approx_kl: torch.Tensor
    """Mean of log pi_old - log pi over the learnt tokens."""


def k3(log_prob: torch.Tensor, ref_log_prob: torch.Tensor) -> torch.Tensor:
    """The low-variance KL estimate pi_ref / pi - log(pi_ref / pi) - 1 of each token (Schulman's k3); never below 0.

    Both its argument and its value are cut, as verl's ``low_var_kl`` does.
    """
    difference = (ref_log_prob - log_prob).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return (difference.exp() - difference - 1).clamp(-10.0, 10.0)


def segment_numbers(segments: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Numbers that are unique in the batch (-1 stays -1), and how many there are."""
    counts = segments.amax(dim=1).clamp(min=-1) + 1
    offsets = torch.cumsum(counts, 0) - counts
    return torch.where(segments >= 0, segments + offsets[:, None], segments), int(counts.sum())


def normaliser(mask: torch.Tensor, segments: torch.Tensor, aggregation: Aggregation) -> int:
    """What the sum of a batch is divided by. A distributed trainer adds it up over all that one update sees."""
    if aggregation == "token-mean":
        return int(mask.sum())
    if aggregation == "sequence-mean":
        return int((mask.sum(1) > 0).sum())
    return segment_numbers(segments)[1]


def policy_loss(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    segments: torch.Tensor,
    settings: LossSettings,
    ref_log_prob: torch.Tensor | None = None,
    count: float | None = None,
) -> LossParts:
    """-J of the clipped objective, J = 1/N sum (1 - mu) min(rho A, clip(rho, 1 - eps, 1 + eps) A), plus kl_coef * k3.

    ``count`` is N where the batch is a part of what one update sees; by default that of this batch. Nothing to learn from
    gives a loss of 0 with a gradient of 0.
    """
    mask = mask.to(log_prob.dtype)
    log_ratio = (log_prob - old_log_prob).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    if settings.ratio == "sequence":
        log_ratio = _segment_mean(log_ratio, segments, mask, broadcast=True)
    ratio = log_ratio.exp()
    cut = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    losses = torch.maximum(-advantages * ratio, -advantages * cut)
    if settings.clip_c is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -advantages * settings.clip_c), losses)
    number = float(normaliser(mask, segments, settings.aggregation)) if count is None else float(count)
    policy = _total(losses, mask, segments, settings.aggregation) / (number or 1.0)
    kl = policy.new_zeros(())
    if ref_log_prob is not None:
        kl = _total(k3(log_prob, ref_log_prob), mask, segments, settings.aggregation) / (number or 1.0)
    with torch.no_grad():
        learnt = mask.sum().clamp(min=1)
        clipped = ((-advantages * cut > -advantages * ratio) * mask).sum() / learnt
        approx_kl = ((old_log_prob - log_prob) * mask).sum() / learnt
    return LossParts(policy + settings.kl_coef * kl, policy.detach(), kl.detach(), clipped, approx_kl)


def _total(values: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor, aggregation: Aggregation) -> torch.Tensor:
    """The sum that :func:`normaliser` divides."""
    if aggregation == "token-mean":
        return torch.where(mask > 0, values, 0.0).sum()
    if aggregation == "sequence-mean":
        return (torch.where(mask > 0, values, 0.0).sum(1) / mask.sum(1).clamp(min=1)).sum()
    return _segment_mean(values, segments, mask, broadcast=False).sum()


def _segment_mean(values: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor, broadcast: bool) -> torch.Tensor:
    """The mean of each segment over its learnt tokens: one per segment, or set back in each of its places.

    Masked segments have a mean of 0 and no gradient.
    """
    numbers, total = segment_numbers(segments)
    where = ((numbers >= 0) & (mask > 0)).reshape(-1)
    index = numbers.reshape(-1)[where]
    flat = values.reshape(-1)[where]
    sums = values.new_zeros(total).index_add(0, index, flat)
    sizes = values.new_zeros(total).index_add(0, index, torch.ones_like(flat)).clamp(min=1)
    means = sums / sizes
    if not broadcast:
        return means
    return values.new_zeros(values.numel()).masked_scatter(where, means[index]).reshape(values.shape)
