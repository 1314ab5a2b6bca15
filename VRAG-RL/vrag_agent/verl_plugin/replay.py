"""The sampler between rollout and update: takes out what has no reward, counts it, and ends a run that loses too much.

verl's replay buffer hands out the trajectories of the groups that are done. A trajectory without a reward (the judge failed,
the retriever was down) reaches it as a sample that says why; one whose agent loop died does not reach it at all, and verl
would fill the batch up in silence. Here both are counted by their reason.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from vrag_agent.advantages import silent_groups

log = logging.getLogger(__name__)


class TooManyExcluded(RuntimeError):
    """So many trajectories of a step have no reward that training on the rest would be training on a biased rest."""


def session_of(key: str) -> tuple[str, str]:
    """(group, session) of a sample's key, ``{uid}_{session}_{index}``."""
    uid, session, _ = key.rsplit("_", 2)
    return uid, session


class CountingReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """``sampler_kwargs``: ``sessions`` and ``validation_sessions`` of a group, ``excluded_limit``, ``skip_silent_groups`` and
    ``poll_interval`` (seconds; verl's own 2 s are longer than a step of a tiny model)."""

    def __init__(self, *args: Any, sampler_kwargs: Mapping[str, Any], **kwargs: Any) -> None:
        options = dict(sampler_kwargs)
        super().__init__(
            *args, sampler_kwargs=sampler_kwargs, poll_interval=float(options.get("poll_interval", 2.0)), **kwargs
        )
        self._sessions = {"train": int(options["sessions"]), "val": int(options["validation_sessions"])}
        self._limit = float(options["excluded_limit"])
        self._skip_silent = bool(options["skip_silent_groups"])
        self.last_counts: dict[str, float] = {}
        """The counts of the latest batch, by the names of the metrics."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        expected = batch_size * self._sessions[partition_id]
        batch, counts = self._without_excluded(batch, expected)
        if partition_id == "train":
            batch = self._without_silent(batch, counts)
        self.last_counts = counts
        return batch, {**metrics, **counts}

    def _without_excluded(self, batch: KVBatchMeta, expected: int) -> tuple[KVBatchMeta, dict[str, float]]:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        extras = [dict(getattr(one, "data", one)) for one in _listed(data["extra_fields"])]
        reasons: Counter[str] = Counter()
        why: dict[str, str] = {}
        keep: list[int] = []
        for place, extra in enumerate(extras):
            reason = str(extra.get("excluded") or "")
            if not reason:
                keep.append(place)
                continue
            reasons[reason] += 1
            why.setdefault(reason, str(extra.get("why", "")))
        arrived = len({session_of(key) for key in batch.keys})
        if arrived < expected:
            reasons["lost"] += expected - arrived
            why["lost"] = "Their agent loops ended with an error; see the log of the workers."
        excluded = sum(reasons.values())
        counts: dict[str, float] = {
            "rollout/trajectories": float(expected - excluded),
            "rollout/excluded": float(excluded),
            "rollout/excluded_share": excluded / expected,
        }
        counts.update({f"rollout/excluded/{reason}": float(number) for reason, number in sorted(reasons.items())})
        if excluded:
            said = "; ".join(f"{number} x {reason}: {why[reason]}" for reason, number in reasons.most_common())
            log.warning("%d of %d trajectories have no reward and are left out. %s", excluded, expected, said)
            if excluded > self._limit * expected or not keep:
                raise TooManyExcluded(
                    f"{excluded} of {expected} trajectories have no reward, more than the limit of {self._limit:.0%} "
                    f"(vrag.excluded_limit), so the run ends here; the latest checkpoint stays. {said}"
                )
        return _kept(batch, keep), counts

    def _without_silent(self, batch: KVBatchMeta, counts: dict[str, float]) -> KVBatchMeta:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["rm_scores"])
        last = {
            session_of(key): float(row.sum()) for key, row in zip(batch.keys, data["rm_scores"].unbind(), strict=True)
        }
        silent = silent_groups(list(last.values()), [group for group, _ in last])
        counts["rollout/silent_groups"] = float(len(silent))
        counts["rollout/groups"] = float(len({group for group, _ in last}))
        keep = [place for place, key in enumerate(batch.keys) if session_of(key)[0] not in silent]
        # A step has to have something to go over, even where it teaches nothing.
        return _kept(batch, keep) if self._skip_silent and keep else batch


def _listed(values: Any) -> list[Any]:
    return list(values.tolist()) if hasattr(values, "tolist") else list(values)


def _kept(batch: KVBatchMeta, places: list[int]) -> KVBatchMeta:
    if len(places) == len(batch.keys):
        return batch
    kept = set(places)
    tq.kv_clear(
        keys=[key for place, key in enumerate(batch.keys) if place not in kept], partition_id=batch.partition_id
    )
    return KVBatchMeta(
        partition_id=batch.partition_id,
        keys=[batch.keys[place] for place in places],
        tags=[batch.tags[place] for place in places],
    )
