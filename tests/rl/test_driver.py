"""Rollouts of the product's episodes against a search service on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.servers import Fault, TinyRetriever, dead_url, page, serve
from vrag.graph_energy import EnergyModel
from vrag.records import RecordWriter, read_record
from vrag.retriever import AsyncHttpRetriever
from vrag.settings import SearchSettings
from vrag.vimrag_episode import VimragEpisode
from vrag.vimrag_options import VimragOptions
from vrag.vrag_episode import VragEpisode, VragOptions
from vrag_agent.driver import Limits, Sampled, Sampling, roll_out, roll_out_all
from vrag_agent.inputs import model_inputs
from vrag_agent.scripted import ScriptedModel
from vrag_agent.trajectory import FAULTS, Trajectory

QUESTION = "What digit is on the red fox page?"
LIMITS = Limits(max_prompt_tokens=4000, max_response_tokens=4000, max_turn_tokens=300)


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[TinyRetriever, str]]:
    pages = [page("cards_1", "red fox"), page("cards_2", "red dog"), page("cards_3", "blue owl")]
    retriever = TinyRetriever(pages)
    with serve(retriever.app) as url:
        yield retriever, url


def search(query: str) -> str:
    return f"<think> find</think><search> {query}</search>"


def vrag(**options: Any) -> VragEpisode:
    return VragEpisode(QUESTION, VragOptions(min_pixels=28 * 28, max_pixels=56 * 56, **options))


def vimrag(**options: Any) -> VimragEpisode:
    memory = EnergyModel(pixels=2 * 64 * 64, min_pixels=28 * 28)
    return VimragEpisode(QUESTION, VimragOptions(max_pixels_image=64 * 64, memory=memory, top_k=2, **options))


def call(name: str, **arguments: Any) -> str:
    return f"<think>so</think>\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def go(
    tiny: Any,
    url: str,
    turns: Sequence[Any] | Any,
    episode: Any = None,
    limits: Limits = LIMITS,
    record: RecordWriter | None = None,
    **search_settings: Any,
) -> Trajectory:
    model = turns if hasattr(turns, "generate") else ScriptedModel(tiny.template, turns)

    async def run() -> Trajectory:
        search_settings.setdefault("search_retries", 0)
        async with AsyncHttpRetriever(SearchSettings(search_url=f"{url}/search", **search_settings)) as retriever:
            return await roll_out(episode or vrag(), model, retriever, tiny.template, limits, record, uid="t")

    return asyncio.run(run())


def check(tiny: Any, trajectory: Trajectory) -> None:
    """What holds for every trajectory."""
    assert (trajectory.ended in FAULTS) == trajectory.faulty
    for sample in trajectory.samples:
        assert len(sample.response_ids) == len(sample.response_mask)
        assert sample.sampled == sum(span.end - span.start for span in sample.spans) > 0
        for before, after in zip(sample.spans, sample.spans[1:], strict=False):
            assert before.end <= after.start
        for span in sample.spans:
            assert set(sample.response_mask[span.start : span.end]) == {1}
        tokens = [tiny.template.image_tokens(image.size) for image in sample.images]
        assert sample.ids.count(tiny.template.image_id) == sum(tokens)
        assert sample.prompt_ids.count(tiny.template.image_id) == sum(tokens[: sample.prompt_images])
        assert sample.logprobs is None or len(sample.logprobs) == len(sample.response_ids)
        model_inputs(tiny.processor, [(sample.ids, sample.images)], padding="right")


def test_a_search_a_crop_and_an_answer_are_one_sample(tiny: Any, service: Any, tmp_path: Path) -> None:
    turns = [search("red fox"), "<think> zoom</think><bbox>[0, 0, 28, 28]</bbox>", "<answer> 3</answer>"]
    record = RecordWriter(tmp_path, QUESTION)
    trajectory = go(tiny, service[1], turns, record=record)
    check(tiny, trajectory)
    assert trajectory.outcome.answer == "3"
    assert (trajectory.ended, trajectory.shown) == ("answer", ("cards_1",))
    (sample,) = trajectory.samples
    assert [(one.action, one.node, one.step) for one in sample.spans] == [
        ("search", "search 1", 1),
        ("crop", "search 1", 2),
        ("answer", None, 3),
    ]
    said = [tiny.template.encode_turn(turn) for turn in turns]
    assert [sample.response_ids[one.start : one.end] for one in sample.spans] == said
    assert len(sample.images) == 2
    assert sample.prompt_images == 0
    assert trajectory.turns == turns
    assert trajectory.graph == {
        "nodes": [
            {
                "id": "search 1",
                "parents": ["root"],
                "retrieved": ["cards_1", "cards_2", "cards_3"],
                "shown": ["cards_1"],
            }
        ],
        "answer_parents": ["search 1"],
    }
    assert trajectory.retriever_seconds > 0
    written = read_record(record.path)
    assert written.outcome == trajectory.outcome
    assert [entry.reply.text for entry, _ in written.contexts() if entry.reply] == turns
    json.dumps(trajectory.summary())


def test_the_whole_of_a_sample_is_the_conversation_as_the_processor_has_it(tiny: Any, service: Any) -> None:
    from tests.rl.test_template import whole

    seen: list[Any] = []

    class Watched(VragEpisode):
        def run(self) -> Any:
            outcome = yield from super().run()
            seen.extend(self._messages)
            return outcome

    episode = Watched(QUESTION, VragOptions(min_pixels=28 * 28, max_pixels=56 * 56))
    turns = [search("red fox"), "nothing of use", search("blue owl"), "<answer> 3</answer>"]
    (sample,) = go(tiny, service[1], turns, episode).samples
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        expected = whole(tiny.template, seen, generation_prompt=False)
    assert sample.ids == expected.ids[:-1]  # but for the newline behind the last turn
    ours = model_inputs(tiny.processor, [(sample.ids, sample.images)], padding="right")
    names = ("input_ids", "attention_mask", "mm_token_type_ids", "image_grid_thw")
    mine, _ = tiny.model.model.get_rope_index(**{name: ours[name] for name in names})
    theirs, _ = tiny.model.model.get_rope_index(**{name: expected.inputs[name] for name in names})
    assert torch.equal(mine, theirs[:, :, :-1])


def test_a_vimrag_trajectory_is_a_sample_per_context(tiny: Any, service: Any) -> None:
    entry = {"information_id": "Picture 1", "is_useful": True, "key_timestamp": [], "priority_score": 5}
    turns = [
        call("add_search_node", id="a", parent_ids=["root"], query="blue owl"),
        call("summarize_and_memorize", summarize="an owl", memorize=[]),
        call("add_search_node", id="b", parent_ids=["root"], query="red fox"),
        "no call at all",
        call("summarize_and_memorize", summarize="3", memorize=[entry]),
        call("add_answer_node", parent_ids=["b"], answer="3"),
    ]
    trajectory = go(tiny, service[1], turns, vimrag())
    check(tiny, trajectory)
    assert trajectory.ended == "answer"
    assert trajectory.turns == turns
    spans = [[(one.action, one.node, one.step) for one in sample.spans] for sample in trajectory.samples]
    assert spans == [
        [("search", "a", 1), ("memorize", "a", 2)],
        [("search", "b", 3), ("invalid", "b", 4), ("memorize", "b", 5)],
        [("answer", None, 6)],
    ]
    assert [sample.prompt_images for sample in trajectory.samples] == [0, 0, 1]
    assert trajectory.notes == {"rebuilt": 2}
    assert trajectory.graph is not None
    assert trajectory.graph["answer_parents"] == ["b"]
    assert [(node["id"], node["parents"]) for node in trajectory.graph["nodes"]] == [("a", ["root"]), ("b", ["root"])]
    assert "cards_1" in trajectory.graph["nodes"][1]["retrieved"]


def test_the_second_correction_begins_a_new_sample(tiny: Any, service: Any) -> None:
    turns = ["one", "two", call("add_answer_node", parent_ids=["root"], answer="3")]
    trajectory = go(tiny, service[1], turns, vimrag())
    check(tiny, trajectory)
    assert [len(sample.spans) for sample in trajectory.samples] == [2, 1]


def test_a_cut_turn_is_closed_by_the_observation(tiny: Any, service: Any) -> None:
    limits = Limits(4000, 4000, max_turn_tokens=5)
    trajectory = go(tiny, service[1], [search("red fox") * 3, "<answer> 3</answer>"], vrag(), limits)
    check(tiny, trajectory)
    (sample,) = trajectory.samples
    first, second = sample.spans
    assert (first.end - first.start, trajectory.notes["cut"]) == (5, 1)
    end = tiny.template.end_id
    assert end not in sample.response_ids[first.start : first.end]
    assert (sample.response_ids[first.end], sample.response_mask[first.end]) == (end, 0)
    assert sample.response_ids[second.end - 1] == end


def test_an_observation_that_does_not_fit_ends_the_trajectory_whole(tiny: Any, service: Any) -> None:
    turns = [search("red fox"), search("blue owl"), "<answer> 3</answer>"]
    enough = go(tiny, service[1], turns).samples[0]
    second = enough.spans[1]
    limits = Limits(4000, second.end + 3)
    trajectory = go(tiny, service[1], turns, vrag(), limits)
    check(tiny, trajectory)
    (sample,) = trajectory.samples
    assert (trajectory.ended, sample.truncated, trajectory.outcome.answer) == ("response_limit", True, None)
    assert sample.response_ids == enough.response_ids[: second.end]
    assert len(sample.images) == 1
    assert not trajectory.faulty
    assert "response tokens" in trajectory.error


def test_a_prompt_that_does_not_fit_ends_the_trajectory(tiny: Any, service: Any) -> None:
    trajectory = go(tiny, service[1], ["x"], vrag(), Limits(10, 100))
    assert (trajectory.ended, trajectory.samples, trajectory.sampled) == ("prompt_limit", [], 0)


ids = st.lists(st.integers(0, 500), max_size=30)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.one_of(st.text(max_size=40), ids), max_size=12), graph=st.booleans())
def test_whatever_the_model_says_has_a_defined_end(tiny: Any, service: Any, turns: list[Any], graph: bool) -> None:
    episode = vimrag(max_steps=3, max_corrections=2) if graph else vrag(max_steps=3)
    trajectory = go(tiny, service[1], turns, episode, Limits(4000, 3000, max_turn_tokens=20))
    check(tiny, trajectory)
    assert trajectory.ended in {"answer", "forced_answer", "fallback", "no_answer", "model"}  # model: the script's end
    assert len(trajectory.turns) <= len(turns)


def test_tokens_behind_the_end_and_forged_pictures_do_not_count(tiny: Any, service: Any) -> None:
    end, image = tiny.template.end_id, tiny.template.image_id
    said = tiny.template.encode_turn(search("red fox"))
    trajectory = go(tiny, service[1], [[*said, 7, 7, image], [5, 6, image, 8, end], "<answer> 3</answer>"])
    check(tiny, trajectory)
    (sample,) = trajectory.samples
    assert [sample.response_ids[one.start : one.end] for one in sample.spans][:2] == [said, [5, 6]]
    assert trajectory.notes["forbidden"] == 1


def test_a_picture_spelt_in_letters_ends_the_turn(tiny: Any, service: Any) -> None:
    """verl reads the text of a sample again, and would look for the picture."""
    image = tiny.template.processor.image_token
    tokenizer = tiny.template.tokenizer
    letters = [token for part in (image[:5], image[5:]) for token in tokenizer.encode(part, add_special_tokens=False)]
    assert tiny.template.decode(letters) == image
    before = tokenizer.encode("look ", add_special_tokens=False)
    trajectory = go(tiny, service[1], [[*before, *letters, 8], "<answer> 3</answer>"])
    check(tiny, trajectory)
    assert trajectory.notes["forbidden"] == 1
    assert trajectory.turns[0].startswith("look")
    assert image not in trajectory.turns[0]


def test_what_fails_around_the_policy_is_a_fault_and_counted(tiny: Any, service: Any) -> None:
    retriever, url = service
    turns = [search("red fox"), "<answer> 3</answer>"]
    gone = go(tiny, dead_url(), turns)
    assert (gone.ended, gone.faulty, len(gone.samples)) == ("retriever", True, 1)
    assert "RetrieverError" in gone.error
    retriever.faults = [Fault(delay=5.0)]
    slow = go(tiny, url, turns, vrag(), Limits(4000, 4000, retriever_seconds=0.2))
    retriever.faults.clear()
    assert (slow.ended, "did not answer within 0.2 s" in slow.error) == ("retriever", True)
    retriever.faults = [Fault(503, {"detail": "starting"})]
    assert go(tiny, url, turns, search_retries=2).ended == "answer"  # down, and back

    class Hanging:
        async def generate(self, *args: Any, **kwargs: Any) -> Sampled:
            await asyncio.sleep(60)
            raise AssertionError

    class Broken:
        async def generate(self, *args: Any, **kwargs: Any) -> Sampled:
            raise ZeroDivisionError("of the engine")

    never = go(tiny, url, Hanging(), limits=Limits(4000, 4000, model_seconds=0.1))
    assert (never.ended, never.samples) == ("model", [])
    assert go(tiny, url, Broken()).ended == "unexpected"


def test_rollouts_run_at_once_and_come_back_in_order() -> None:
    running = most = 0

    async def job(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (10 - number))
        running -= 1
        return number

    async def go_all() -> list[int]:
        return await roll_out_all([lambda n=n: job(n) for n in range(10)], concurrency=4)

    assert asyncio.run(go_all()) == list(range(10))
    assert most == 4


def test_every_turn_of_a_seeded_rollout_has_its_own_stream(tiny: Any, service: Any) -> None:
    seeds: list[int | None] = []

    class Noting(ScriptedModel):
        async def generate(self, *args: Any, **kwargs: Any) -> Sampled:
            seeds.append(kwargs["sampling"].seed)
            return await super().generate(*args, **kwargs)

    async def run(sampling: Sampling) -> None:
        async with AsyncHttpRetriever(f"{service[1]}/search") as retriever:
            model = Noting(tiny.template, [search("red fox"), "<answer> 3</answer>"])
            await roll_out(vrag(), model, retriever, tiny.template, LIMITS, sampling=sampling)

    asyncio.run(run(Sampling(seed=4)))
    asyncio.run(run(Sampling()))
    assert len(set(seeds[:2])) == 2
    assert seeds[2:] == [None, None]
