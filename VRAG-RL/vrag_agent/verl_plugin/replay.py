"""The sampler between rollout and update: takes out what has no reward, counts it, and ends a run that loses too much.

verl's replay buffer hands out the trajectories of the groups that are done. A trajectory without a reward (the judge failed,
the retriever was down) reaches it as a sample that says why; one whose agent loop died does not reach it at all, and verl
would fill the batch up in silence. Here both are counted by their reason, and the rewards of the rest are averaged before
groups without signal are left out, so that the figures are those of all questions that were asked.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
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
        """The counts of the latest batch, by the names of the metrics; in a validation, of all its batches so far."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        fields = ["extra_fields", "rm_scores"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        extras = [dict(getattr(one, "data", one)) for one in _listed(data["extra_fields"])]
        keep, counts = self._usable(batch.keys, extras, batch_size * self._sessions[partition_id])
        scores = [float(row.sum()) for row in data["rm_scores"].unbind()]
        extras, scores = ([values[place] for place in keep] for values in (extras, scores))
        batch = _kept(batch, keep)
        if partition_id == "train":
            counts.update(reward_metrics(batch.keys, extras, scores))
            batch = self._without_silent(batch, scores, counts)
            self.last_counts = counts
        else:
            self.last_counts = summed(self.last_counts, counts)
        return batch, {**metrics, **counts}

    def _usable(
        self, keys: Sequence[str], extras: Sequence[Mapping[str, Any]], expected: int
    ) -> tuple[list[int], dict[str, float]]:
        """The places of the samples that have a reward, and the counts. Raises TooManyExcluded."""
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
        arrived = len({session_of(key) for key in keys})
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
        return keep, counts

    def _without_silent(self, batch: KVBatchMeta, scores: Sequence[float], counts: dict[str, float]) -> KVBatchMeta:
        last = {session_of(key): score for key, score in zip(batch.keys, scores, strict=True)}
        silent = silent_groups(list(last.values()), [group for group, _ in last])
        counts["rollout/silent_groups"] = float(len(silent))
        counts["rollout/groups"] = float(len({group for group, _ in last}))
        keep = [place for place, key in enumerate(batch.keys) if session_of(key)[0] not in silent]
        # A step has to have something to go over, even where it teaches nothing.
        return _kept(batch, keep) if self._skip_silent and keep else batch


def reward_metrics(
    keys: Sequence[str], extras: Sequence[Mapping[str, Any]], rewards: Sequence[float]
) -> dict[str, float]:
    """Means over trajectories (of which each may be several samples) of the parts of the reward and of what happened."""
    once = {
        session_of(key): (dict(extra.get("reward_extra_info") or {}), reward)
        for key, extra, reward in zip(keys, extras, rewards, strict=True)
    }
    if not once:
        return {}
    out = {"reward/total": sum(reward for _, reward in once.values()) / len(once)}
    for name in sorted({name for info, _ in once.values() for name in info}):
        values = [info[name] for info, _ in once.values() if name in info]
        out[f"reward/{name}"] = sum(values) / len(values)
    out["rollout/samples_per_trajectory"] = len(keys) / len(once)
    return out


def summed(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """The counts of several batches as those of one."""
    out = {name: before.get(name, 0.0) + now.get(name, 0.0) for name in {**before, **now}}
    excluded, total = out["rollout/excluded"], out["rollout/excluded"] + out["rollout/trajectories"]
    out["rollout/excluded_share"] = excluded / total
    return out


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
