"""Advantages, masks and the loss against a direct evaluation of their formulas, in plain Python floats."""

from __future__ import annotations

import math
import statistics

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vrag_agent.advantages import Segment, answer_path, group_advantages, masked_segments, silent_groups
from vrag_agent.loss import LossParts, LossSettings, k3, normaliser, policy_loss

MODEST = settings(max_examples=40, deadline=None)
rewards = st.floats(0, 1, allow_nan=False)


# --- advantages


@MODEST
@given(st.lists(st.tuples(rewards, st.sampled_from("abc")), min_size=1, max_size=20), st.booleans())
def test_advantages_are_those_of_the_formula(pairs: list[tuple[float, str]], scale: bool) -> None:
    values, groups = [value for value, _ in pairs], [group for _, group in pairs]
    found = group_advantages(values, groups, scale_by_std=scale)
    for value, group, advantage in zip(values, groups, found, strict=True):
        members = [other for other, of in pairs if of == group]
        if len(members) == 1:
            assert advantage == value
            continue
        expected = value - statistics.fmean(members)
        if scale:
            expected /= statistics.stdev(members) + 1e-6
        assert advantage == pytest.approx(expected, abs=1e-6)


def test_lengths_have_to_agree() -> None:
    with pytest.raises(ValueError, match="2 rewards, but 1 groups"):
        group_advantages([1.0, 2.0], ["a"])


def test_silent_groups_are_those_of_equal_rewards() -> None:
    assert silent_groups([1, 1, 0, 1, 0.5], ["a", "a", "b", "b", "c"]) == {"a"}


# --- masks


NODES = [
    Segment("a"),
    Segment("b", ("a",), valuable=True),
    Segment("dead", ("a",)),
    Segment("c", ("b",)),
    Segment(None),
]


def test_a_right_answer_keeps_its_path_alone() -> None:
    assert masked_segments(NODES, True, ("c",)) == (False, False, True, False, False)


def test_a_wrong_answer_is_not_punished_for_a_search_that_found_something() -> None:
    assert masked_segments(NODES, False, ("c",)) == (False, True, False, False, False)


@pytest.mark.parametrize("parents", [None, (), ("unknown",)])
def test_a_right_answer_without_parents_masks_nothing(parents: tuple[str, ...] | None) -> None:
    assert not any(masked_segments(NODES, True, parents))


def test_the_path_of_an_answer_survives_cycles() -> None:
    assert answer_path({"a": ("b",), "b": ("a",)}, ("a",)) == {"a", "b"}


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Segment], tuple[str, ...]]:
    names = [f"n{number}" for number in range(draw(st.integers(0, 6)))]
    segments = [
        Segment(name, tuple(draw(st.lists(st.sampled_from(["root", *names[:at]]), max_size=3))), draw(st.booleans()))
        for at, name in enumerate(names)
    ]
    return [*segments, Segment(None)], tuple(draw(st.lists(st.sampled_from(["root", *names]), max_size=3)))


@MODEST
@given(graphs(), st.booleans())
def test_masks_are_those_of_the_formula(graph: tuple[list[Segment], tuple[str, ...]], right: bool) -> None:
    segments, answer_parents = graph
    parents = {segment.node: segment.parents for segment in segments}
    reached = set(answer_parents)
    for _ in segments:  # the closure, by brute force
        reached |= {above for name in set(reached) for above in parents.get(name, ())}
    known = {segment.node for segment in segments if segment.node} & set(answer_parents)
    found = masked_segments(segments, right, answer_parents)
    assert found[-1] is False
    for segment, masked in zip(segments[:-1], found[:-1], strict=True):
        positive = right and bool(known) and segment.node not in reached
        negative = not right and segment.valuable
        assert masked is (positive or negative)


# --- the loss


class Batch:
    """Random rows of segments; the last number of a row is its terminal segment."""

    def __init__(self, seed: int, rows: int = 3, length: int = 9) -> None:
        made = torch.Generator().manual_seed(seed)
        self.old = -torch.rand((rows, length), generator=made) * 3
        self.new = (self.old + torch.randn((rows, length), generator=made) * 0.5).requires_grad_()
        self.ref = self.old + torch.randn((rows, length), generator=made) * 0.3
        self.advantages = torch.randn((rows, 1), generator=made).expand(rows, length).clone()
        self.segments = torch.full((rows, length), -1)
        self.masked: set[tuple[int, int]] = set()
        for row in range(rows):
            place = number = 0
            while place < length - 1:
                size = int(torch.randint(1, 4, (1,), generator=made))
                self.segments[row, place : place + size] = number
                if torch.rand((1,), generator=made) < 0.3:
                    self.masked.add((row, number))
                place += size + int(torch.randint(0, 2, (1,), generator=made))  # now and then an observation
                number += 1
        self.mask = (self.segments >= 0).long()
        for row, number in self.masked:
            self.mask[row][self.segments[row] == number] = 0

    def loss(self, chosen: LossSettings, **options: object) -> LossParts:
        return policy_loss(self.new, self.old, self.advantages, self.mask, self.segments, chosen, self.ref, **options)  # type: ignore[arg-type]

    def units(self) -> dict[tuple[int, int], list[int]]:
        """Places of each segment, the masked ones too."""
        out: dict[tuple[int, int], list[int]] = {}
        for row, numbers in enumerate(self.segments.tolist()):
            for place, number in enumerate(numbers):
                if number >= 0:
                    out.setdefault((row, number), []).append(place)
        return out


def direct(batch: Batch, chosen: LossSettings) -> tuple[float, float]:
    """Loss and KL written down as the papers write them."""

    def surrogate(ratio: float, advantage: float) -> float:
        cut = min(max(ratio, 1 - chosen.clip_low), 1 + chosen.clip_high)
        return min(ratio * advantage, cut * advantage)

    new, old, ref = batch.new.tolist(), batch.old.tolist(), batch.ref.tolist()
    gains: dict[tuple[int, int], dict[int, float]] = {}
    kls: dict[tuple[int, int], dict[int, float]] = {}
    for (row, number), places in batch.units().items():
        if (row, number) in batch.masked:
            continue
        mean = sum(new[row][place] - old[row][place] for place in places) / len(places)
        for place in places:
            difference = new[row][place] - old[row][place] if chosen.ratio == "token" else mean
            advantage = float(batch.advantages[row, place])
            gains.setdefault((row, number), {})[place] = surrogate(math.exp(difference), advantage)
            gap = ref[row][place] - new[row][place]
            kls.setdefault((row, number), {})[place] = math.exp(gap) - gap - 1

    def total(values: dict[tuple[int, int], dict[int, float]]) -> float:
        if chosen.aggregation == "segment-mean":
            return sum(sum(one.values()) / len(one) for one in values.values()) / len(batch.units())
        rows: dict[int, list[float]] = {}
        for (row, _), one in values.items():
            rows.setdefault(row, []).extend(one.values())
        if chosen.aggregation == "sequence-mean":
            return sum(sum(one) / len(one) for one in rows.values()) / max(1, len(rows))
        return sum(sum(one) for one in rows.values()) / max(1, sum(map(len, rows.values())))

    return -total(gains), total(kls)


@MODEST
@given(
    st.integers(0, 10_000),
    st.sampled_from(["token", "sequence"]),
    st.sampled_from(["token-mean", "sequence-mean", "segment-mean"]),
)
def test_the_loss_is_that_of_the_formula(seed: int, ratio: str, aggregation: str) -> None:
    batch = Batch(seed)
    chosen = LossSettings(ratio, aggregation, 0.2, 0.28, None, kl_coef=0.1)  # type: ignore[arg-type]
    parts = batch.loss(chosen)
    policy, kl = direct(batch, chosen)
    assert float(parts.policy) == pytest.approx(policy, abs=1e-5)
    assert float(parts.kl) == pytest.approx(kl, abs=1e-5)
    assert parts.loss.item() == pytest.approx(policy + 0.1 * kl, abs=1e-5)


@MODEST
@given(st.integers(0, 10_000), st.sampled_from(["token", "sequence"]), st.sampled_from(["token-mean", "segment-mean"]))
def test_masked_tokens_get_a_gradient_of_exactly_zero(seed: int, ratio: str, aggregation: str) -> None:
    batch = Batch(seed)
    batch.loss(LossSettings(ratio, aggregation, kl_coef=0.5)).loss.backward()  # type: ignore[arg-type]
    assert batch.new.grad is not None
    assert torch.equal(batch.new.grad[batch.mask == 0], torch.zeros(int((batch.mask == 0).sum())))


def test_where_all_is_masked_there_is_no_loss_and_no_gradient() -> None:
    batch = Batch(1)
    batch.mask = torch.zeros_like(batch.mask)
    for aggregation in ("token-mean", "sequence-mean", "segment-mean"):
        batch.new.grad = None
        parts = batch.loss(LossSettings("sequence", aggregation, kl_coef=0.5))  # type: ignore[arg-type]
        parts.loss.backward()
        assert parts.loss.item() == 0
        assert batch.new.grad is not None
        assert not batch.new.grad.any()


@MODEST
@given(st.integers(0, 10_000))
def test_parts_of_a_batch_add_up_to_the_whole(seed: int) -> None:
    batch = Batch(seed, rows=4)
    for aggregation in ("token-mean", "sequence-mean", "segment-mean"):
        chosen = LossSettings("sequence", aggregation)  # type: ignore[arg-type]
        count = normaliser(batch.mask, batch.segments, chosen.aggregation)
        parts = [
            policy_loss(
                *(one[rows] for one in (batch.new, batch.old, batch.advantages, batch.mask, batch.segments)),
                chosen,
                count=count,
            ).loss.item()
            for rows in (slice(0, 1), slice(1, 4))
        ]
        assert sum(parts) == pytest.approx(batch.loss(chosen).policy.item(), abs=1e-6)


def test_the_dual_clip_bounds_what_a_bad_sample_can_do() -> None:
    one = torch.ones((1, 1))
    parts = policy_loss(one * 3, one * 0, -one, one, one.long() * 0, LossSettings(clip_c=3.0))
    assert parts.loss.item() == pytest.approx(3.0)


def test_k3_is_never_negative_and_zero_for_equal_policies() -> None:
    values = torch.linspace(-4, 0, 50)
    assert (k3(values, values.flip(0)) >= 0).all()
    assert not k3(values, values).any()


@pytest.mark.parametrize(
    "wrong", [{"ratio": "word"}, {"aggregation": "sum"}, {"clip_low": 1.5}, {"clip_high": -1}, {"clip_c": 1.0}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        LossSettings(**wrong)  # type: ignore[arg-type]


# --- parity with verl


def test_advantages_equal_those_of_verl() -> None:
    core = pytest.importorskip("verl.trainer.ppo.core_algos")
    import numpy

    values = [0.0, 1.0, 0.7, 0.7, 0.2, 0.9, 0.9, 0.3]
    groups = ["a", "a", "a", "b", "b", "c", "c", "alone"]
    for scale in (True, False):
        mask = torch.ones((len(values), 3))
        scores = torch.zeros_like(mask)
        scores[:, -1] = torch.tensor(values)
        theirs, _ = core.compute_grpo_outcome_advantage(
            scores, mask, numpy.array(groups, dtype=object), norm_adv_by_std_in_grpo=scale
        )
        assert theirs[:, 0].tolist() == pytest.approx(group_advantages(values, groups, scale_by_std=scale), abs=1e-6)


def test_the_loss_equals_that_of_verl() -> None:
    core = pytest.importorskip("verl.trainer.ppo.core_algos")
    from verl.workers.config import FSDPActorConfig, FSDPOptimizerConfig

    batch = Batch(3)
    for ours, theirs in (("token-mean", "token-mean"), ("sequence-mean", "seq-mean-token-mean")):
        config = FSDPActorConfig(
            rollout_n=2,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio=0.2,
            clip_ratio_c=3.0,
            optim=FSDPOptimizerConfig(lr=1e-6),
        )
        loss, metrics = core.compute_policy_loss_vanilla(
            batch.old, batch.new, batch.advantages, batch.mask, loss_agg_mode=theirs, config=config
        )
        parts = batch.loss(LossSettings("token", ours, clip_c=3.0))  # type: ignore[arg-type]
        assert parts.policy.item() == pytest.approx(loss.item(), abs=1e-6)
        assert float(parts.clipped) == pytest.approx(metrics["actor/pg_clipfrac"], abs=1e-6)
        gradients = [
            torch.autograd.grad(one, batch.new)[0]
            for one in (loss, batch.loss(LossSettings("token", ours, clip_c=3.0)).loss)
        ]  # type: ignore[arg-type]
        assert torch.allclose(*gradients, atol=1e-7)
    kl = core.kl_penalty(batch.new, batch.ref, "low_var_kl")
    assert torch.allclose(kl, k3(batch.new, batch.ref), atol=1e-6)


def test_ggpo_without_masks_is_grpo() -> None:
    core = pytest.importorskip("verl.trainer.ppo.core_algos")
    from verl.workers.config import FSDPActorConfig, FSDPOptimizerConfig

    batch = Batch(5)
    batch.mask, batch.masked = (batch.segments >= 0).long(), set()
    config = FSDPActorConfig(
        rollout_n=2, ppo_micro_batch_size_per_gpu=1, clip_ratio_c=1e9, optim=FSDPOptimizerConfig(lr=1e-6)
    )
    loss, _ = core.compute_policy_loss_vanilla(batch.old, batch.new, batch.advantages, batch.mask, config=config)
    parts = policy_loss(
        batch.new, batch.old, batch.advantages, batch.mask, batch.segments, LossSettings("token", "token-mean")
    )
    assert parts.loss.item() == pytest.approx(loss.item(), abs=1e-6)
