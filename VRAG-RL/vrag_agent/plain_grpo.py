"""GRPO and GGPO in plain PyTorch: one process, one model, the product's episodes.

    async with HfModel(model, processor) as policy:
        async for figures in train(policy, tasks, world, settings): ...

This is the whole algorithm on one page: roll out a group per question, score it, compare inside the group, follow the
clipped gradient. It trains what fits beside its own optimizer; for more than one process there is the verl plug-in, which
shares everything with it but this loop: the driver, the rewards, the advantages, the masks, the loss.
"""

from __future__ import annotations

import copy
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from vrag.episode import Episode
from vrag.errors import ConfigError, VragError
from vrag.judge import Judge
from vrag.retriever import AsyncRetriever
from vrag.rewards import PUBLISHED, Weights
from vrag_agent.advantages import group_advantages, silent_groups
from vrag_agent.driver import Limits, Sampling, TokenModel, roll_out, roll_out_all
from vrag_agent.hf_model import HfModel
from vrag_agent.logprobs import padded, response_logprobs
from vrag_agent.loss import LossSettings, normaliser, policy_loss
from vrag_agent.scoring import Scored, Task, counts_of_masked, marks, score
from vrag_agent.template import ChatTemplate
from vrag_agent.trajectory import Sample, Trajectory, counts

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """What an episode is run in: the same for training and validation."""

    make_episode: Callable[[str], Episode]
    retriever: AsyncRetriever
    template: ChatTemplate
    limits: Limits
    judge: Judge
    weights: Weights = PUBLISHED
    concurrency: int = 256


@dataclass(frozen=True)
class GrpoSettings:
    steps: int = 60
    questions: int = 16
    """Per step."""
    group: int = 8
    """Rollouts of each question."""
    lr: float = 3e-4
    warmup: int = 5
    """Steps over which the learning rate rises."""
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    micro_batch: int = 64
    """Samples of one forward pass; changes nothing but the memory."""
    ggpo: bool = False
    """Leave out the segments that GGPO masks."""
    loss: LossSettings = field(default_factory=LossSettings)
    excluded_limit: float = 0.2
    """A larger share of trajectories without a reward ends the run."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "questions", "group", "lr", "micro_batch"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} has to be above 0, not {getattr(self, name)}.")


@dataclass(frozen=True, slots=True)
class Rollout:
    task: Task
    trajectory: Trajectory
    scored: Scored

    @property
    def reward(self) -> float:
        """The total; only for rollouts that have one."""
        assert self.scored.reward is not None
        assert self.scored.reward.total is not None
        return self.scored.reward.total


async def roll_out_tasks(
    policy: TokenModel, tasks: Sequence[Task], around: Surroundings, temperature: float, seed: int
) -> list[Rollout]:
    """One scored rollout for each task. ``seed`` fixes every draw, whatever runs beside it."""
    streams = random.Random(seed)

    async def one(task: Task, uid: str, stream: int) -> Rollout:
        trajectory = await roll_out(
            around.make_episode(task.question),
            policy,
            around.retriever,
            around.template,
            around.limits,
            uid=uid,
            sampling=Sampling(temperature=temperature, seed=stream),
        )
        return Rollout(task, trajectory, await score(trajectory, task, around.judge, around.weights))

    jobs = [partial(one, task, f"{seed}-{number}", streams.getrandbits(40)) for number, task in enumerate(tasks)]
    return await roll_out_all(jobs, around.concurrency)


def figures(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Means over the rollouts that have a reward, and counts of all of them."""
    scored = [one.scored.reward for one in rollouts if one.scored.reward is not None and not one.scored.reward.excluded]
    number = max(1, len(scored))
    trajectories = [one.trajectory for one in rollouts]
    actions = [span.action for one in trajectories for sample in one.samples for span in sample.spans]
    return {
        "reward": sum(one.total or 0.0 for one in scored) / number,
        "accuracy": sum(one.right for one in scored) / number,
        "pattern": sum(one.pattern for one in scored) / number,
        "ndcg": sum(one.retrieval for one in scored) / number,
        "searches": actions.count("search") / max(1, len(rollouts)),
        "crops": actions.count("crop") / max(1, len(rollouts)),
        "invalid": actions.count("invalid") / max(1, len(actions)),
        "turns": len(actions) / max(1, len(rollouts)),
        "tokens": sum(one.sampled for one in trajectories) / max(1, len(rollouts)),
        "trajectories": len(rollouts),
        "excluded": len(rollouts) - len(scored),
        "ended": counts(trajectories),
    }


async def validate(policy: TokenModel, tasks: Sequence[Task], around: Surroundings, sampled: int = 4) -> dict[str, Any]:
    """Figures of greedy rollouts, one per task, and of ``sampled`` drawn ones (temperature 1) per task, unless that is 0."""
    found = {"greedy": figures(await roll_out_tasks(policy, tasks, around, 0.0, 0))}
    if sampled:
        found["sampled"] = figures(await roll_out_tasks(policy, list(tasks) * sampled, around, 1.0, 7))
    return found


async def train(
    policy: HfModel, tasks: Sequence[Task], around: Surroundings, settings: GrpoSettings
) -> AsyncIterator[dict[str, Any]]:
    """One optimizer step per iteration; gives its figures. The model of ``policy`` is trained in place.

    Rollouts without a reward (a fault, a judge that failed) are left out and counted; raises VragError when they are more
    than ``excluded_limit`` of a step, for then something is broken.
    """
    model, processor = policy.model, policy.processor
    reference = copy.deepcopy(model).eval().requires_grad_(False) if settings.loss.kl_coef > 0 else None
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay)
    rng = random.Random(settings.seed)
    waiting: list[Task] = []
    for step in range(1, settings.steps + 1):
        while len(waiting) < settings.questions:
            waiting += rng.sample(list(tasks), len(tasks))
        asked, waiting = waiting[: settings.questions], waiting[settings.questions :]
        started = time.monotonic()
        group = [task for task in asked for _ in range(settings.group)]
        rollouts = await roll_out_tasks(policy, group, around, settings.temperature, rng.getrandbits(40))
        rolled = time.monotonic()
        out = {"step": step, **figures(rollouts)}
        if out["excluded"] > settings.excluded_limit * len(rollouts):
            why = next(one.scored.why for one in rollouts if one.scored.excluded)
            raise VragError(f"{out['excluded']} of {len(rollouts)} trajectories have no reward. One of them: {why}")
        for one in optimizer.param_groups:
            one["lr"] = settings.lr * min(1.0, step / max(1, settings.warmup))
        rows, masked = _rows(rollouts, settings.group, settings.ggpo)
        out.update(_update(model, processor, reference, optimizer, parameters, rows, settings))
        waits = [(one.trajectory.model_seconds, one.trajectory.retriever_seconds) for one in rollouts]
        total = sum(one.trajectory.seconds for one in rollouts) or 1.0
        out.update(
            masked_segments=masked[0],
            masked_tokens=masked[1],
            rollout_seconds=rolled - started,
            update_seconds=time.monotonic() - rolled,
            waiting_for_model=sum(model_wait for model_wait, _ in waits) / total,
            waiting_for_retriever=sum(wait for _, wait in waits) / total,
        )
        yield out


@dataclass(frozen=True, slots=True)
class _Row:
    """A sample with what the loss needs to know of it."""

    sample: Sample
    advantage: float
    mask: list[int]
    segments: list[int]


def _rows(rollouts: Sequence[Rollout], group: int, ggpo: bool) -> tuple[list[_Row], tuple[int, int]]:
    """The samples of all groups with a signal (as with the plug-in's ``vrag.skip_silent_groups``), and how many segments and tokens
    are masked."""
    usable = [(number // group, one) for number, one in enumerate(rollouts) if not one.scored.excluded]
    rewards, groups = [one.reward for _, one in usable], [number for number, _ in usable]
    advantages, silent = group_advantages(rewards, groups), silent_groups(rewards, groups)
    rows: list[_Row] = []
    masked = [0, 0]
    for (number, one), advantage in zip(usable, advantages, strict=True):
        assert one.scored.reward is not None
        if number in silent:
            continue
        marked = marks(one.trajectory, one.task.relevant, one.scored.reward.right)
        if ggpo:
            masked = [before + now for before, now in zip(masked, counts_of_masked(marked), strict=True)]
        for sample, row in zip(one.trajectory.samples, marked, strict=True):
            mask = list(sample.response_mask)
            segments = [-1] * len(mask)
            for mark in row:
                segments[mark.start : mark.end] = [mark.segment] * (mark.end - mark.start)
                if ggpo and mark.masked:
                    mask[mark.start : mark.end] = [0] * (mark.end - mark.start)
            rows.append(_Row(sample, advantage, mask, segments))
    return rows, (masked[0], masked[1])


def _update(
    model: Any,
    processor: Any,
    reference: Any,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.nn.Parameter],
    rows: list[_Row],
    settings: GrpoSettings,
) -> dict[str, float]:
    """One step of the optimizer over all rows, in micro-batches of rows of about one length."""
    model.train()
    optimizer.zero_grad()
    rows = sorted(rows, key=lambda row: len(row.sample.ids))
    batches = [rows[at : at + settings.micro_batch] for at in range(0, len(rows), settings.micro_batch)]
    tensors = [_tensors(batch, model.device) for batch in batches]
    count = sum(normaliser(mask, segments, settings.loss.aggregation) for _, _, mask, segments in tensors)
    learnt = max(1.0, sum(float(mask.sum()) for _, _, mask, _ in tensors))
    sums = {"loss": 0.0, "kl": 0.0, "entropy": 0.0, "clipped": 0.0, "approx_kl": 0.0}
    for batch, (old, advantages, mask, segments) in zip(batches, tensors, strict=True):
        samples = [row.sample for row in batch]
        logprobs, entropy = response_logprobs(model, processor, samples, settings.temperature)
        ref = None
        if reference is not None:
            with torch.no_grad():
                ref, _ = response_logprobs(reference, processor, samples, settings.temperature)
        parts = policy_loss(logprobs, old, advantages, mask, segments, settings.loss, ref, count)
        parts.loss.backward()
        share = float(mask.sum()) / learnt
        sums["loss"] += float(parts.loss.detach())
        sums["kl"] += float(parts.kl)
        sums["entropy"] += float((entropy * mask).sum()) / learnt
        sums["clipped"] += float(parts.clipped) * share
        sums["approx_kl"] += float(parts.approx_kl) * share
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm))
    if not math.isfinite(norm):
        raise VragError("The gradient is not finite; lower the learning rate.")
    if batches:
        optimizer.step()
    return {**sums, "grad_norm": norm, "samples": float(len(rows))}


def _tensors(rows: Sequence[_Row], device: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Old log-probabilities, advantages, mask and segments, (B, T) each."""
    length = max(len(row.mask) for row in rows)
    for row in rows:
        if row.sample.logprobs is None:
            raise ConfigError("The policy gave no log-probabilities, so there is nothing to compare the new ones with.")
    old = padded([row.sample.logprobs or [] for row in rows], length)
    advantages = torch.tensor([row.advantage for row in rows])[:, None].expand(-1, length)
    mask = padded([row.mask for row in rows], length)
    segments = padded([row.segments for row in rows], length, -1.0).long()
    return old.to(device), advantages.to(device), mask.to(device), segments.to(device)
