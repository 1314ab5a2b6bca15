"""Supervised fine-tuning of the tiny models on demonstrations, in plain PyTorch: the format, the reading, bad habits.

How long a model of random weights takes until it looks at pictures at all differs from seed to seed. So the learning rate stays
up until it can look things up (:func:`reading`), and then falls over a fixed number of steps.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vrag_agent.inputs import model_inputs
from vrag_agent.logprobs import padded, response_logprobs
from vrag_agent.tiny.words import ANIMALS, COLOURS
from vrag_agent.trajectory import Sample

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SftSettings:
    steps: int = 800
    """At most, until it reads."""
    settling: int = 150
    """Then, while the learning rate falls."""
    reads: float = 0.7
    """With which probability it has to look things up."""
    batch: int = 32
    lr: float = 1e-3
    warmup: int = 20
    max_grad_norm: float = 1.0
    check_every: int = 50
    seed: int = 0


def fine_tune(
    model: Any, processor: Any, samples: Sequence[Sample], probes: Sequence[Sample], settings: SftSettings
) -> dict[str, float]:
    """Maximise the likelihood of the turns of ``samples`` (the observations are masked); the model is trained in place.

    ``probes`` are faultless demonstrations to measure the reading with; they are not trained on.
    """
    rng = random.Random(settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)
    started, loss, read, left = time.monotonic(), 0.0, 0.0, -1
    for step, batch in enumerate(_batches(samples, settings.batch, rng), 1):
        fall = 1.0 if left < 0 else 0.1 + 0.9 * left / settings.settling
        loss = _update(
            model, processor, batch, optimizer, settings.lr * fall * min(1.0, step / settings.warmup), settings
        )
        if left >= 0:
            left -= 1
        elif step % settings.check_every == 0:
            read = reading(model, processor, probes)
            log.info("SFT step %d: loss %.3f, reads %.0f%%, %.0f s", step, loss, 100 * read, time.monotonic() - started)
            if read < settings.reads and step >= settings.steps:
                log.warning("It looks things up with a probability of %.2f only; what follows will learn less.", read)
            if read >= settings.reads or step >= settings.steps:
                left = settings.settling
        if left == 0:
            break
    read = reading(model, processor, probes)
    return {"steps": step, "loss": loss, "reads": read, "seconds": time.monotonic() - started}


def _update(
    model: Any,
    processor: Any,
    batch: Sequence[Sample],
    optimizer: torch.optim.Optimizer,
    rate: float,
    settings: SftSettings,
) -> float:
    model.train()
    for one in optimizer.param_groups:
        one["lr"] = rate
    logprobs, _ = response_logprobs(model, processor, batch)
    mask = padded([sample.response_mask for sample in batch], logprobs.shape[1]).to(logprobs.device)
    loss = -(logprobs * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
    optimizer.step()
    return float(loss.detach())


def _batches(samples: Sequence[Sample], size: int, rng: random.Random) -> Iterator[list[Sample]]:
    """Full batches without an end, in a new order in each epoch. Not sorted by length: that would sort by what was done."""
    while True:
        order = rng.sample(list(samples), len(samples))
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]


@torch.inference_mode()
def reading(model: Any, processor: Any, samples: Sequence[Sample]) -> float:
    """The mean probability with which the model looks up all that a sample needs: of all colours, of all animals and of all numbers,
    the one that was asked for, where the card is, or what stands on it. Given all before, and whatever it thinks of saying
    something else there.
    """
    if not samples:
        return 0.0
    kinds = _kinds(processor)
    model.eval()
    inputs = model_inputs(processor, [(one.ids, one.images) for one in samples], padding="right", device=model.device)
    logits = model(**inputs, use_cache=False).logits
    total = 0.0
    for row, sample in zip(logits, samples, strict=True):
        sampled = [0] * len(sample.prompt_ids) + list(sample.response_mask)
        places = [(at, kind) for at, bit in enumerate(sampled) if bit for kind in kinds if sample.ids[at] in kind]
        total += math.prod(float(row[at - 1][kind].softmax(0)[kind.index(sample.ids[at])]) for at, kind in places)
    return total / len(samples)


def _kinds(processor: Any) -> list[list[int]]:
    """Tokens of colours, of animals and of numbers; a space before a word belongs to its token."""
    words = {token: token.removeprefix("Ġ") for token in processor.tokenizer.get_vocab()}
    chosen = (COLOURS, ANIMALS, [word for word in words.values() if word.isascii() and word.isdigit()])
    number = processor.tokenizer.convert_tokens_to_ids
    return [[number(token) for token, word in words.items() if word in kind] for kind in chosen]
