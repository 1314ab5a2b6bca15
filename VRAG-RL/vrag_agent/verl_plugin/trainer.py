"""verl's synchronous trainer with our sampler, our worker, and GGPO's masks and loss.

``trainer.v1.trainer_mode`` stays ``sync``: verl compares that word in several places, and a trainer under a name of its own
silently gets the sampler of the asynchronous modes. So this class is made by our own task runner instead of being registered.
"""

from __future__ import annotations

import functools
import logging
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.utils.losses import ppo_loss

from vrag.errors import ConfigError
from vrag_agent import settings as training
from vrag_agent.causes import first_cause
from vrag_agent.loss import normaliser
from vrag_agent.scoring import Mark, counts_of_masked
from vrag_agent.verl_plugin.ggpo import ggpo_loss
from vrag_agent.verl_plugin.probe import Loss, probed
from vrag_agent.verl_plugin.workers import EpisodeWorker

log = logging.getLogger(__name__)


class CheckpointNotWritten(RuntimeError):
    """A disk that is full, most likely. What was saved before is untouched."""


class EpisodeTrainer(PPOTrainerSync):  # type: ignore[misc]
    """See the module's text."""

    def __init__(self, config: Any) -> None:
        if config.trainer.v1.trainer_mode != "sync":
            raise ConfigError("trainer.v1.trainer_mode has to be sync: the other modes are not supported here.")
        self.settings = training.read(OmegaConf.to_container(config.vrag, resolve=True))  # type: ignore[arg-type]
        super().__init__(config)
        actor = config.actor_rollout_ref.actor
        train, mini = config.data.train_batch_size, actor.ppo_mini_batch_size
        if train % mini:
            raise ConfigError(f"data.train_batch_size ({train}) has to be a multiple of ppo_mini_batch_size ({mini}).")
        self._updates = train // mini
        """Optimizer steps per rollout, however many samples the trajectories turn out to be."""

    def init(self) -> None:
        super().init()
        loss = self._loss()
        if loss is not None:
            self.actor_rollout_wg.set_loss_fn(loss)

    def _loss(self) -> Loss | None:
        """What the workers compute instead of verl's loss; None: that one."""
        actor = self.config.actor_rollout_ref.actor
        loss: Loss | None = None
        if self.settings.ggpo.enable:
            low = actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low
            high = actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high
            kl = actor.kl_loss_coef if actor.use_kl_loss else 0.0
            chosen = self.settings.loss(low, high, None, kl)
            loss = functools.partial(ggpo_loss, settings=chosen)
            log.info("GGPO: %s", chosen)
        if self.settings.probe_gradient:
            loss = functools.partial(
                probed, loss=loss or functools.partial(ppo_loss, config=omega_conf_to_dataclass(actor))
            )
        return loss

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef, Role.RefPolicy):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(EpisodeWorker)

    def _validate(self) -> dict[str, float]:
        self.replay_buffer.last_counts = {}  # of this validation, however many batches it has
        metrics: dict[str, float] = super()._validate()
        counts = {name.replace("rollout/", "val-aux/rollout/"): value for name, value in self._counts().items()}
        return {**metrics, **counts}

    def _counts(self) -> dict[str, float]:
        return dict(getattr(self.replay_buffer, "last_counts", {}))

    def _save_checkpoint(self) -> None:
        """As verl's; a write that fails leaves the checkpoint before it as the one to go on from, and says so."""
        folder = Path(self.config.trainer.default_local_dir)
        tracker = folder / "latest_checkpointed_iteration.txt"
        before = tracker.read_text("ascii").strip() if tracker.exists() else ""
        try:
            super()._save_checkpoint()
        except Exception as error:
            if before and tracker.read_text("ascii").strip() != before:
                tracker.write_text(before, "ascii")
            shutil.rmtree(folder / f"global_step_{self.global_steps}", ignore_errors=True)
            stays = f"That of step {before} stays" if before else "There is none before it"
            free = shutil.disk_usage(folder).free / 2**20
            raise CheckpointNotWritten(
                f"The checkpoint of step {self.global_steps} could not be written to {folder} (after clearing it away, "
                f"{free:.0f} MiB are free there). {stays}; make room and give the same command again. {first_cause(error)}"
            ) from error

    # The update

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows are filled up to whole micro-batches in every mini-batch on every rank."""
        whole = self.config.actor_rollout_ref
        micro = 1
        if not whole.actor.use_dynamic_bsz:
            sizes = [whole.actor.ppo_micro_batch_size_per_gpu, whole.rollout.log_prob_micro_batch_size_per_gpu]
            if self.use_reference_policy and not self.ref_in_actor:
                sizes.append(whole.ref.log_prob_micro_batch_size_per_gpu)
            micro = math.lcm(*(int(size) for size in sizes if size))
        return int(dp_size * self._updates * micro)

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> KVBatchMeta:
        """As verl's, with the rows that only fill up dealt out to all mini-batches: gathered in one of them, they would
        make it an update on nothing."""
        batch = super()._balance_batch(batch, metrics, *args, **kwargs)
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        batch.reorder(dealt([bool(tag.get("is_padding")) for tag in batch.tags], ranks, self._updates))
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics)
        fields = ["response_mask", "advantages", "extra_fields"]
        if self.config.actor_rollout_ref.rollout.calculate_log_probs:
            fields += ["old_log_probs", "rollout_log_probs"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        extras = [dict(getattr(one, "data", one)) for one in _listed(data["extra_fields"])]
        if "rollout_log_probs" in fields:
            metrics["rollout/logprob_diff_max"] = _largest_difference(data)
        if not self.settings.ggpo.enable:
            return batch
        masks = [row.clone() for row in data["response_mask"].unbind()]
        advantages = [row.clone() for row in data["advantages"].unbind()]
        segments = [torch.full_like(mask, -1) for mask in masks]
        # Rows that only fill up the batch repeat another row's fields; they have no token to learn from.
        rows = [
            [] if tag.get("is_padding") else [Mark(s, e, n, bool(m)) for s, e, n, m in extra.get("marks") or ()]
            for extra, tag in zip(extras, batch.tags, strict=True)
        ]
        for row, mask, advantage, segment in zip(rows, masks, advantages, segments, strict=True):
            for mark in row:
                segment[mark.start : mark.end] = mark.segment
                if mark.masked:
                    mask[mark.start : mark.end] = 0
                    advantage[mark.start : mark.end] = 0
        masked_segments, masked_tokens = counts_of_masked(rows)
        padded_mask = torch.nn.utils.rnn.pad_sequence(masks, batch_first=True)
        padded_segments = torch.nn.utils.rnn.pad_sequence(segments, batch_first=True, padding_value=-1)
        count = normaliser(padded_mask, padded_segments, self.settings.ggpo.aggregation)
        self._loss_count = count / self._updates
        metrics.update(
            {
                "ggpo/segments": float(normaliser(padded_mask, padded_segments, "segment-mean")),
                "ggpo/masked_segments": float(masked_segments),
                "ggpo/masked_tokens": float(masked_tokens),
                "ggpo/learnt_tokens": float(padded_mask.sum()),
            }
        )
        out = TensorDict(
            {
                "response_mask": _nested(masks),
                "loss_mask": _nested(masks),
                "advantages": _nested(advantages),
                "segments": _nested(segments),
            },
            batch_size=len(batch),
        )
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=out)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """As verl's, but the number of optimizer steps is fixed and the size of the mini-batches follows from the rows."""
        actor = self.config.actor_rollout_ref.actor
        rows = len(batch) // self._updates
        batch.extra_info.update(
            {
                "calculate_entropy": actor.calculate_entropy or actor.entropy_coeff != 0.0,
                "distillation_use_topk": False,
                "distillation_only": False,
                "global_batch_size": rows,
                "mini_batch_size": rows,
                "epochs": actor.ppo_epochs,
                "seed": actor.data_loader_seed,
                "dataloader_kwargs": {"shuffle": actor.shuffle},
                "temperature": self.config.actor_rollout_ref.rollout.temperature,
            }
        )
        if self.settings.ggpo.enable:
            batch.extra_info["loss_count"] = self._loss_count
        output = rename_dict(self.actor_rollout_wg.update_actor(batch)["metrics"], "actor/")
        output["perf/mfu/actor"] = output.pop("actor/mfu")
        metrics.update(reduce_metrics(output))
        return batch


def dealt(padding: Sequence[bool], ranks: int, updates: int) -> list[int]:
    """An order of rows in which each of the ``updates`` mini-batches of each rank has its share of the real rows.

    A rank has a run of rows, and of those a mini-batch has a run; all of one size. Which rank a row is on stays as it is.
    """
    out: list[int] = []
    size = len(padding) // ranks
    for start in range(0, len(padding), size):
        rows = range(start, start + size)
        real, filler = ([row for row in rows if padding[row] == kind] for kind in (False, True))
        for update in range(updates):
            chosen = real[update::updates]
            missing = size // updates - len(chosen)
            out += chosen + filler[:missing]
            filler = filler[missing:]
    return out


def _largest_difference(data: TensorDict) -> float:
    """Between the log-probabilities of rollout and training, over all sampled tokens: 0 but for rounding where both see the
    same ids, pictures and positions."""
    rows = zip(*(data[name].unbind() for name in ("old_log_probs", "rollout_log_probs", "response_mask")), strict=True)
    return max((float(((old - rolled) * mask).abs().max()) for old, rolled, mask in rows if len(mask)), default=0.0)


def _listed(values: Any) -> list[Any]:
    return list(values.tolist()) if hasattr(values, "tolist") else list(values)


def _nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
