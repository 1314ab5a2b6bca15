"""The transformers policy: rows of a batch against single ones, log-probabilities against a forward pass, faults."""

from __future__ import annotations

import asyncio
import copy
import functools
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from PIL import Image

from tests.rl.test_driver import service, vrag  # noqa: F401 - service is a fixture
from vrag.errors import ConfigError, ModelError
from vrag.messages import message
from vrag.retriever import AsyncHttpRetriever
from vrag_agent.driver import Limits, Sampled, Sampling, roll_out, roll_out_all
from vrag_agent.hf_model import HfModel, Request, generate_batch
from vrag_agent.inputs import model_inputs
from vrag_agent.trajectory import Trajectory


def requests(tiny: Any, **sampling: Any) -> list[Request]:
    """Rows with 0, 1 and 2 pictures, of other lengths and limits."""
    from tests.rl.test_template import picture

    out = []
    for number in range(6):
        views = [picture((56 + 20 * number, 60), colour) for colour in ("red", "blue")[: number % 3]]
        piece = tiny.template.prompt([message("user", "look again " * number, *views)])
        out.append(Request(piece.ids, piece.images, 4 + number, Sampling(**sampling, seed=number)))
    return out


def forward_logprobs(model: Any, processor: Any, ids: list[int], images: list[Image.Image]) -> list[float]:
    """log p of every id but the first, by one forward pass."""
    inputs = model_inputs(processor, [(ids, images)], padding="right")
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0, :-1].float()
    picked: list[float] = torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    return picked


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_of_a_batch_are_single_rows(tiny: Any, temperature: float) -> None:
    rows = requests(tiny, temperature=temperature)
    together = generate_batch(tiny.model, tiny.processor, rows)
    for row, reply in zip(rows, together, strict=True):
        (alone,) = generate_batch(tiny.model, tiny.processor, [row])
        assert alone.ids == reply.ids
        assert alone.logprobs == pytest.approx(reply.logprobs, abs=1e-5)
        assert 0 < len(reply.ids) <= row.max_tokens


def test_log_probabilities_are_those_of_a_forward_pass(tiny: Any) -> None:
    for row in requests(tiny, temperature=1.0, top_p=0.7, top_k=20):
        (reply,) = generate_batch(tiny.model, tiny.processor, [row])
        expected = forward_logprobs(tiny.model, tiny.processor, [*row.prompt_ids, *reply.ids], list(row.images))
        assert reply.logprobs == pytest.approx(expected[-len(reply.ids) :], abs=1e-5)


def test_picture_tokens_are_never_drawn_and_turns_end(tiny: Any) -> None:
    model = copy.deepcopy(tiny.model)
    favoured = tiny.template.image_id
    with torch.no_grad():
        model.lm_head.weight.zero_()
    eager = generate_batch(model, tiny.processor, [Request([5, 6], max_tokens=200, sampling=Sampling(seed=1))])[0]
    assert not set(eager.ids) & tiny.template.forbidden
    assert favoured in tiny.template.forbidden
    model.generation_config.eos_token_id = [eager.ids[2]]
    ended = generate_batch(model, tiny.processor, [Request([5, 6], max_tokens=200, sampling=Sampling(seed=1))])[0]
    assert (ended.ids, ended.stop_reason) == (eager.ids[:3], "stop")
    model.generation_config.eos_token_id = None
    with pytest.raises(ConfigError, match="eos_token_id"):
        generate_batch(model, tiny.processor, [Request([5, 6])])


def test_drawn_tokens_follow_the_models_distribution(tiny: Any) -> None:
    logits = torch.zeros(2, tiny.model.config.text_config.vocab_size)
    logits[:, 5], logits[:, 6] = 8.0, 9.0
    from vrag_agent.hf_model import _Draw

    rows = [Request([1], max_tokens=5000, sampling=Sampling(seed=n)) for n in range(2)]
    draw = _Draw(tiny.processor, rows, [0])
    drawn = torch.stack([draw(torch.zeros(2, 1), logits).argmax(-1) for _ in range(1500)])
    expected = torch.softmax(logits[0], -1)
    for token in (5, 6):
        assert (drawn == token).float().mean().item() == pytest.approx(expected[token].item(), abs=0.04)
    assert not torch.equal(drawn[:, 0], drawn[:, 1])


def test_top_k_and_top_p_keep_the_likely_tokens() -> None:
    from vrag_agent.hf_model import _filter

    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    for sampling, kept in (
        (Sampling(top_k=2), 2),
        (Sampling(top_p=0.6), 2),
        (Sampling(top_p=0.5), 1),
        (Sampling(top_p=0.01), 1),
        (Sampling(top_p=0.96), 4),
        (Sampling(top_k=3, top_p=0.96), 3),
    ):
        row = logits.clone()
        _filter(row, sampling)
        assert int(torch.isfinite(row).sum()) == kept


def test_requests_that_come_together_are_one_batch(tiny: Any) -> None:
    rows = requests(tiny, temperature=1.0)

    async def go() -> tuple[list[Sampled], int]:
        async with HfModel(tiny.model, tiny.processor) as policy:
            calls = [
                policy.generate(
                    list(row.prompt_ids), list(row.images), max_tokens=row.max_tokens, sampling=row.sampling
                )
                for row in rows
            ]
            return list(await asyncio.gather(*calls)), policy.batches

    replies, batches = asyncio.run(go())
    assert batches == 1
    assert [reply.ids for reply in replies] == [r.ids for r in generate_batch(tiny.model, tiny.processor, rows)]


def test_a_failed_batch_fails_its_requests_and_no_others(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(tiny.model)
    forward = model.forward

    @functools.wraps(forward)
    def failing(*args: Any, **kwargs: Any) -> Any:
        if 5 in kwargs["input_ids"]:
            raise StopIteration  # which would never arrive through a future
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", failing)

    async def go() -> None:
        sampling = Sampling(seed=0)
        async with HfModel(model, tiny.processor, max_batch=1) as policy:
            bad = policy.generate([5, 5], [], max_tokens=2, sampling=sampling)
            wrong = policy.generate([tiny.template.image_id], [], max_tokens=2, sampling=sampling)
            good = policy.generate([7, 7], [], max_tokens=1, sampling=sampling)
            replies = await asyncio.wait_for(asyncio.gather(bad, wrong, good, return_exceptions=True), 60)
            assert [type(reply) for reply in replies] == [ModelError, ModelError, Sampled]
            waiting = asyncio.create_task(policy.generate([7] * 9, [], max_tokens=3, sampling=sampling))
            await asyncio.sleep(0)
        with pytest.raises(ModelError, match="closed"):
            await asyncio.wait_for(waiting, 60)
        with pytest.raises(ModelError, match="not open"):
            await policy.generate([7], [], max_tokens=1, sampling=sampling)

    asyncio.run(go())


def test_rollout_and_training_agree_on_log_probabilities(tiny: Any, service: Any) -> None:  # noqa: F811
    """Real rollouts: an untrained model, so most turns are invalid; the first turn is set, so that pictures come."""

    class Begun(HfModel):
        async def generate(self, *args: Any, **kwargs: Any) -> Sampled:
            if tiny.template.image_id not in args[0]:
                said = tiny.template.encode_turn("<search> red fox</search>")
                ids, images = list(args[0]), list(args[1])
                logprobs = forward_logprobs(self.model, self.processor, ids + said, images)[-len(said) :]
                return Sampled(said, logprobs)
            return await super().generate(*args, **kwargs)

    limits = Limits(2000, 2000, max_turn_tokens=20)

    async def go() -> list[Trajectory]:
        async with AsyncHttpRetriever(f"{service[1]}/search") as retriever, Begun(tiny.model, tiny.processor) as policy:
            jobs = [
                lambda n=n: roll_out(
                    vrag(max_steps=4), policy, retriever, tiny.template, limits, uid=str(n), sampling=Sampling(seed=n)
                )
                for n in range(4)
            ]
            return await roll_out_all(jobs)

    compared = 0
    for trajectory in asyncio.run(go()):
        for sample in trajectory.samples:
            assert sample.images
            assert sample.logprobs is not None
            everywhere = forward_logprobs(tiny.model, tiny.processor, sample.ids, sample.images)
            expected = everywhere[len(sample.prompt_ids) - 1 :]
            for mask, ours, theirs in zip(sample.response_mask, sample.logprobs, expected, strict=True):
                if mask:
                    assert ours == pytest.approx(theirs, abs=1e-5)
                    compared += 1
    assert compared > 100
