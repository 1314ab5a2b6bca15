"""What becomes of a batch between rollout and update: its figures, and the mini-batches that it is dealt to."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("verl")

from hypothesis import given
from hypothesis import strategies as st

with warnings.catch_warnings():  # what verl and Ray import from each other
    warnings.simplefilter("ignore")
    from vrag_agent.verl_plugin.replay import reward_metrics, summed
    from vrag_agent.verl_plugin.trainer import dealt


def test_a_trajectory_of_several_samples_counts_once() -> None:
    keys = ["g_0_0", "g_0_1", "g_0_2", "g_1_0"]
    infos = [{"reward_extra_info": {"correct": value}} for value in (1.0, 1.0, 1.0, 0.0)]
    found = reward_metrics(keys, infos, [0.9, 0.9, 0.9, 0.1])
    assert found == pytest.approx({"reward/total": 0.5, "reward/correct": 0.5, "rollout/samples_per_trajectory": 2.0})
    assert reward_metrics([], [], []) == {}


def test_the_batches_of_a_validation_count_together() -> None:
    first = {"rollout/trajectories": 5.0, "rollout/excluded": 1.0, "rollout/excluded_share": 1 / 6}
    second = {"rollout/trajectories": 2.0, "rollout/excluded": 0.0, "rollout/excluded_share": 0.0}
    whole = summed(summed({}, first), {**second, "rollout/excluded/judge": 0.0})
    assert (whole["rollout/trajectories"], whole["rollout/excluded"]) == (7, 1)
    assert whole["rollout/excluded_share"] == pytest.approx(1 / 8)


@given(st.data())
def test_every_mini_batch_gets_its_share_of_the_real_rows(data: st.DataObject) -> None:
    ranks, updates, micro = (data.draw(st.integers(1, 4)) for _ in range(3))
    size = updates * micro * data.draw(st.integers(1, 5))
    padding = data.draw(st.lists(st.booleans(), min_size=ranks * size, max_size=ranks * size))
    order = dealt(padding, ranks, updates)
    for rank in range(ranks):
        rows = order[rank * size : (rank + 1) * size]
        assert sorted(rows) == list(range(rank * size, (rank + 1) * size))  # nothing changes its rank, nothing is lost
        each = size // updates
        real = [sum(not padding[row] for row in rows[at : at + each]) for at in range(0, size, each)]
        assert max(real) - min(real) <= 1
