"""Log-probabilities of the sampled tokens under a model, by one forward pass over whole samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vrag_agent.inputs import model_inputs
from vrag_agent.trajectory import Sample


def response_logprobs(
    model: Any, processor: Any, samples: Sequence[Sample], temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """log pi of every response token and the entropy of the distribution it was drawn from; both (B, T), padded by 0.

    The entropy carries no gradient.
    """
    inputs = model_inputs(processor, [(one.ids, one.images) for one in samples], padding="right", device=model.device)
    logits = model(**inputs, use_cache=False).logits
    length = max(len(one.response_ids) for one in samples)
    # The token at place n is predicted by the logits at n - 1.
    starts = torch.tensor([len(one.prompt_ids) - 1 for one in samples], device=logits.device)
    places = starts[:, None] + torch.arange(length, device=logits.device)[None]
    inside = padded([[1.0] * len(one.response_ids) for one in samples], length).to(logits.device)
    places = places.clamp(max=logits.shape[1] - 1)
    rows = torch.arange(len(samples), device=logits.device)[:, None]
    distribution = torch.log_softmax(logits[rows, places].float() / temperature, -1)
    ids = padded([one.response_ids for one in samples], length).long().to(logits.device)
    with torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(-1)
    return distribution.gather(-1, ids[..., None])[..., 0] * inside, entropy * inside


def padded(rows: Sequence[Sequence[float]], length: int, value: float = 0.0) -> torch.Tensor:
    """Rows as one float tensor (B, length), filled up on the right."""
    out = torch.full((len(rows), length), value)
    for number, row in enumerate(rows):
        out[number, : len(row)] = torch.tensor(row, dtype=torch.float32)
    return out
