"""Supervised fine-tuning of the tiny models on demonstrations, in plain PyTorch: the format, the reading, bad habits."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vrag_agent.logprobs import padded, response_logprobs
from vrag_agent.trajectory import Sample

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SftSettings:
    epochs: int = 7
    batch: int = 32
    lr: float = 1e-3
    warmup: int = 20
    max_grad_norm: float = 1.0
    seed: int = 0


def fine_tune(model: Any, processor: Any, samples: Sequence[Sample], settings: SftSettings) -> dict[str, float]:
    """Maximise the likelihood of the turns of ``samples`` (the observations are masked); the model is trained in place."""
    rng = random.Random(settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)
    steps = settings.epochs * (len(samples) // settings.batch)
    started, step, loss = time.monotonic(), 0, torch.zeros(())
    model.train()
    for _ in range(settings.epochs):
        for batch in _batches(samples, settings.batch, rng):
            rate = settings.lr * min(1.0, (step + 1) / settings.warmup) * (0.1 + 0.9 * (1 - step / steps))
            for one in optimizer.param_groups:
                one["lr"] = rate
            logprobs, _ = response_logprobs(model, processor, batch)
            mask = padded([sample.response_mask for sample in batch], logprobs.shape[1]).to(logprobs.device)
            loss = -(logprobs * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            step += 1
            if step % 100 == 0:
                log.info("SFT step %d of %d: loss %.3f, %.0f s", step, steps, loss.item(), time.monotonic() - started)
    return {"steps": step, "loss": loss.item(), "seconds": time.monotonic() - started}


def _batches(samples: Sequence[Sample], size: int, rng: random.Random) -> Iterator[list[Sample]]:
    """Full batches of an epoch, drawn anew each time. Not sorted by length: that would sort them by what was done."""
    order = rng.sample(list(samples), len(samples))
    for start in range(0, len(order) - size + 1, size):
        yield order[start : start + size]
