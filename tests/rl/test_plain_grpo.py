"""The plain trainer: what is masked, what is excluded, what a step does, and that it learns."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("faiss")

import torch

from tests.servers import dead_url
from vrag.errors import ConfigError, VragError
from vrag.retriever import AsyncHttpRetriever
from vrag.rewards import Reward
from vrag.settings import SearchSettings
from vrag_agent.hf_model import HfModel
from vrag_agent.loss import LossSettings
from vrag_agent.page_cache import PageCache
from vrag_agent.plain_grpo import GrpoSettings, Rollout, _rows, _update, figures, train, validate
from vrag_agent.scoring import Scored, Task
from vrag_agent.tiny.demonstrator import FAULTLESS, Habits, demonstrate
from vrag_agent.tiny.sft import SftSettings, fine_tune
from vrag_agent.tiny.task import TinyTask, tasks_of
from vrag_agent.tiny.world import World
from vrag_agent.trajectory import Trajectory


def demonstrations(
    tiny: Any, task: TinyTask, world: World, url: str, number: int, habits: Habits | None = None
) -> list[Trajectory]:
    async def go() -> list[Trajectory]:
        async with AsyncHttpRetriever(url) as retriever:
            return await demonstrate(task, world, PageCache(retriever), tiny.template, number, 3, habits)

    return asyncio.run(go())


def rollouts_of(trajectories: list[Trajectory], world: World, totals: list[float | None]) -> list[Rollout]:
    tasks = {task.question: task for task in tasks_of(world.training)}
    out = []
    for trajectory, total in zip(trajectories, totals, strict=True):
        reward = None if total is None else Reward(float(total > 0.5), 1.0, 0.0, total)
        scored = Scored(reward, "" if reward else "retriever", "" if reward else "down")
        for sample in trajectory.samples:
            sample.logprobs = [-1.0 * bit for bit in sample.response_mask]
        out.append(Rollout(tasks[trajectory.question], trajectory, scored))
    return out


@pytest.fixture(scope="module")
def vimrag_rollouts(checkpoints: dict[str, Any], world: World, search_url: str) -> list[Rollout]:
    task = TinyTask("vimrag", "qwen3_vl")
    habits = Habits(guess=0.0, right_query=0.5, colour_only=0.0, search_again=1.0)
    found = demonstrations(checkpoints["qwen3_vl"], task, world, search_url, 8, habits)
    totals: list[float | None] = [1.0, 0.0, 1.0, None, 0.0, 1.0, 0.0, 1.0]
    return rollouts_of(found, world, totals)


def test_ggpo_masks_dead_ends_of_right_answers_and_good_searches_of_wrong_ones(vimrag_rollouts: list[Rollout]) -> None:
    plain, nothing = _rows(vimrag_rollouts, 4, False)
    rows, masked = _rows(vimrag_rollouts, 4, True)
    assert nothing == (0, 0)
    assert len(plain) == len(rows) == sum(len(one.trajectory.samples) for one in vimrag_rollouts if one.scored.reward)
    assert masked[0] > 0
    assert masked[1] == sum(map(lambda a, b: sum(a.mask) - sum(b.mask), plain, rows))
    at = 0
    for one in vimrag_rollouts:
        if one.scored.reward is None:
            continue
        graph = one.trajectory.graph
        assert graph is not None
        for sample in one.trajectory.samples:
            row = rows[at]
            at += 1
            assert row.sample is sample
            assert (row.advantage > 0) == one.scored.reward.right
            for span in sample.spans:
                node = next((node for node in graph["nodes"] if node["id"] == span.node), None)
                off = node is not None and (
                    node["id"] not in graph["answer_parents"]
                    if one.scored.reward.right
                    else bool(set(node["retrieved"]) & one.task.relevant)
                )
                assert set(row.mask[span.start : span.end]) == {0 if off else 1}
            assert [number >= 0 for number in row.segments] == [bool(bit) for bit in sample.response_mask]


def test_figures_count_every_trajectory(vimrag_rollouts: list[Rollout]) -> None:
    found = figures(vimrag_rollouts)
    assert (found["trajectories"], found["excluded"], found["ended"]) == (8, 1, {"answer": 8})
    assert found["reward"] == found["accuracy"] == pytest.approx(4 / 7)


@pytest.mark.parametrize("loss", [LossSettings(kl_coef=0.1), LossSettings("sequence", "segment-mean")])
def test_micro_batches_change_nothing(
    checkpoints: dict[str, Any], vimrag_rollouts: list[Rollout], loss: LossSettings
) -> None:
    tiny = checkpoints["qwen3_vl"]
    rows, _ = _rows(vimrag_rollouts, 4, True)
    after = []
    for micro_batch in (3, 64):
        model = copy.deepcopy(tiny.model)
        reference = copy.deepcopy(tiny.model) if loss.kl_coef else None
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=1e-2)
        settings = GrpoSettings(micro_batch=micro_batch, loss=loss)
        found = _update(model, tiny.processor, reference, optimizer, parameters, rows, settings)
        assert found["samples"] == len(rows)
        after.append((found, torch.cat([parameter.detach().flatten() for parameter in parameters])))
    assert after[0][0] == pytest.approx(after[1][0], rel=1e-3, abs=1e-5)
    assert torch.allclose(after[0][1], after[1][1], atol=1e-6)
    before = torch.cat([parameter.detach().flatten() for parameter in tiny.model.parameters()])
    assert not torch.allclose(before, after[0][1], atol=1e-6)


def test_a_step_without_signal_changes_nothing(checkpoints: dict[str, Any], vimrag_rollouts: list[Rollout]) -> None:
    tiny = checkpoints["qwen3_vl"]
    equal = [replace(one, scored=Scored(Reward(1.0, 1.0, 0.0, 1.0))) for one in vimrag_rollouts]
    rows, masked = _rows(equal, 4, True)
    assert (rows, masked) == ([], (0, 0))
    model = copy.deepcopy(tiny.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    found = _update(model, tiny.processor, None, optimizer, list(model.parameters()), rows, GrpoSettings())
    assert found["grad_norm"] == 0.0
    for before, after in zip(tiny.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(before, after)


def test_a_retriever_that_is_down_ends_the_run_with_its_reason(checkpoints: dict[str, Any], world: World) -> None:
    tiny = checkpoints["qwen2_5_vl"]
    task = TinyTask("vrag", "qwen2_5_vl", crop=False)

    async def go() -> None:
        settings = SearchSettings(search_url=f"{dead_url()}/search", search_retries=0)
        async with AsyncHttpRetriever(settings) as retriever, Searching(tiny.model, tiny.processor) as policy:
            around = task.surroundings(retriever, tiny.template)
            async for _ in train(policy, tasks_of(world.training), around, GrpoSettings(questions=2, group=2)):
                raise AssertionError("no step can be done")

    class Searching(HfModel):
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            from vrag_agent.driver import Sampled

            return Sampled(tiny.template.encode_turn("<search> red fox</search>"))

    with pytest.raises(VragError, match=r"4 of 4 trajectories have no reward.*Nothing answers"):
        asyncio.run(go())


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="group"):
        GrpoSettings(group=0)


def test_grpo_learns_to_search_and_to_read(checkpoints: dict[str, Any], world: World, search_url: str) -> None:
    """The whole way in small: demonstrations, fine-tuning, 20 steps of GRPO; on questions that were never asked before."""
    tiny = checkpoints["qwen2_5_vl"]
    task = TinyTask("vrag", "qwen2_5_vl", crop=False)
    model = copy.deepcopy(tiny.model)
    samples, probes = (
        [sample for one in demonstrations(tiny, task, world, search_url, number, habits) for sample in one.samples]
        for number, habits in ((2200, Habits()), (64, FAULTLESS))
    )
    tuned = fine_tune(model, tiny.processor, samples, probes, SftSettings(settling=60))
    assert tuned["reads"] > 0.8, tuned

    async def go() -> tuple[Any, Any, list[Any]]:
        async with AsyncHttpRetriever(search_url) as retriever, HfModel(model, tiny.processor) as policy:
            around = task.surroundings(PageCache(retriever), tiny.template)
            held_out: list[Task] = tasks_of(world.held_out)
            before = await validate(policy, held_out, around, 2)
            steps = [one async for one in train(policy, tasks_of(world.training), around, GrpoSettings(steps=20))]
            return before, await validate(policy, held_out, around, 2), steps

    before, after, steps = asyncio.run(go())
    gains = {way: after[way]["reward"] - before[way]["reward"] for way in ("greedy", "sampled")}
    assert gains["sampled"] > 0.12, (gains, before, after)
    assert max(gains.values()) > 0.2, (gains, before, after)
    for step in steps:
        assert step["trajectories"] == sum(step["ended"].values()) == 128
        assert step["excluded"] == 0
        assert abs(step["approx_kl"]) < 1e-4  # on-policy: rollout and training agree
