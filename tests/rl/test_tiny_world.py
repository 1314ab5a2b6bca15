"""The tiny world: its pages are found by their titles, read from their pictures, and given away by nothing else."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("faiss")

import torch
from PIL import Image, ImageChops, ImageStat

from vrag.retriever import AsyncHttpRetriever, HttpRetriever
from vrag.rewards import relevant_ids
from vrag_agent.page_cache import PageCache
from vrag_agent.tiny.demonstrator import FAULTLESS, demonstrate
from vrag_agent.tiny.sft import reading
from vrag_agent.tiny.task import TinyTask, tasks_of
from vrag_agent.tiny.world import DOCUMENT, Card, World, draw, write_questions
from vrag_agent.trajectory import counts


def test_every_page_is_found_by_its_title_and_arrives_as_drawn(world: World, search_url: str) -> None:
    with HttpRetriever(search_url) as retriever:
        found = [hits[0].item for hits in retriever.search([card.title for card in world.cards], 1)]
        assert [item.id for item in found] == [card.id for card in world.cards]
        assert all(
            item.document == DOCUMENT and item.page == card.number
            for item, card in zip(found, world.cards, strict=True)
        )
        for card in world.cards[:3]:
            with Image.open(io.BytesIO(retriever.image(card.id))) as page:
                assert ImageChops.difference(page.convert("RGB"), draw(card, corners=False)).getbbox() is None
        vague = retriever.search(["red"], 3)[0]
        assert all(world.by_id[hit.item.id].colour == "red" for hit in vague)


def test_questions_are_held_out_and_give_nothing_away(world: World, tmp_path: Path) -> None:
    training, held_out = tasks_of(world.training), tasks_of(world.held_out)
    assert (len(training), len(held_out)) == (192, 64)
    assert not {one.question for one in training} & {one.question for one in held_out}
    assert not any(character.isdigit() for one in training + held_out for character in one.question)
    digits = [card.digit for card in world.cards]
    assert max(digits.count(digit) for digit in range(10)) < 45
    written = json.loads(write_questions(world, tmp_path / "val.json", world.held_out).read_text())["examples"]
    for example, task in zip(written, held_out, strict=True):
        meta = example["meta_info"]
        assert relevant_ids(meta["file_name"], meta["reference_page"]) == task.relevant
        assert (example["query"], example["reference_answer"]) == (task.question, task.answer)


@pytest.mark.parametrize(("agent", "family"), [("vrag", "qwen2_5_vl"), ("vimrag", "qwen3_vl")])
def test_demonstrations_are_episodes_over_http(
    checkpoints: dict[str, Any], world: World, search_url: str, agent: Any, family: Any
) -> None:
    template = checkpoints[family].template
    task = TinyTask(agent, family, crop=agent == "vrag")

    async def go(seed: int) -> Any:
        async with AsyncHttpRetriever(search_url) as retriever:
            return await demonstrate(task, world, PageCache(retriever), template, 40, seed)

    trajectories = asyncio.run(go(1))
    assert counts(trajectories) == {"answer": 40}
    assert [one.turns for one in asyncio.run(go(1))] == [one.turns for one in trajectories]
    assert [one.turns for one in asyncio.run(go(2))] != [one.turns for one in trajectories]
    actions = {span.action for one in trajectories for sample in one.samples for span in sample.spans}
    assert actions == ({"search", "crop", "answer"} if agent == "vrag" else {"search", "memorize", "answer"})
    for one in trajectories:
        for sample in one.samples:
            assert len(sample.prompt_ids) <= task.limits.max_prompt_tokens
            assert max(span.end - span.start for span in sample.spans) <= task.limits.max_turn_tokens
        if agent == "vimrag" and one.graph:
            nodes = [node["id"] for node in one.graph["nodes"]]
            assert nodes == ["a", "b"][: len(nodes)]
            # The second search may bring the page of the first, and then there is nothing new to build on.
            assert one.graph["answer_parents"][0] in (nodes or ["root"])
            assert len(one.samples) == len(nodes) + 1
    if agent == "vimrag":
        assert any(one.graph and len(one.graph["nodes"]) == 2 for one in trajectories)


def test_pages_are_fetched_once(world: World, search_url: str) -> None:
    fetched: list[str] = []

    class Counting(AsyncHttpRetriever):
        async def image(self, item_id: str) -> bytes:
            fetched.append(item_id)
            return await super().image(item_id)

    async def go() -> None:
        async with Counting(search_url) as retriever:
            first, second, third = [await retriever.image(f"cards_{number}") for number in (1, 2, 3)]
            fetched.clear()
            cache = PageCache(retriever, max_bytes=len(first) + max(len(second), len(third)))
            for number in (1, 2, 1, 3, 1, 2):  # 3 drops 2, which was used least lately
                await cache.image(f"cards_{number}")
            assert await cache.image("cards_1") == first
            assert len((await cache.search(["red fox"], 2))[0]) == 2

    asyncio.run(go())
    assert fetched == ["cards_1", "cards_2", "cards_3", "cards_2"]


def nearest_digit(picture: Image.Image, card: Card) -> int:
    """The digit of the drawing that the ink of the picture looks like most, wherever it stands."""

    def ink(image: Image.Image) -> Image.Image:
        return image.convert("L").crop((10, 5, 46, 51)).point(lambda value: 255 if value < 60 else 0)

    def distance(digit: int) -> float:
        drawings = [draw(replace(card, digit=digit), corners=False, rng=Random(seed)) for seed in range(16)]
        apart = [ImageChops.difference(ink(one.resize(picture.size)), ink(picture)) for one in drawings]
        return min(sum(ImageStat.Stat(one).mean) for one in apart)

    return min(range(10), key=distance)


def test_demonstrations_read_the_picture_that_they_see_and_no_two_see_the_same(
    checkpoints: dict[str, Any], world: World, search_url: str
) -> None:
    template = checkpoints["qwen2_5_vl"].template
    task = TinyTask("vrag", "qwen2_5_vl", crop=False)

    async def go() -> Any:
        async with AsyncHttpRetriever(search_url) as retriever:
            return await demonstrate(task, world, PageCache(retriever), template, 40, 5, FAULTLESS)

    by_question = {card.question: card for card in world.training}
    right_by_heart = 0
    for one in asyncio.run(go()):
        card = by_question[one.question]
        assert list(one.shown) == [card.id]
        (picture,) = one.samples[0].images
        assert int(one.answer) == nearest_digit(picture, card)
        right_by_heart += int(one.answer) == card.digit
    assert right_by_heart < 15  # one in ten, but for chance


def test_reading_is_measured_where_something_is_looked_up(
    checkpoints: dict[str, Any], world: World, search_url: str
) -> None:
    tiny = checkpoints["qwen2_5_vl"]
    task = TinyTask("vrag", "qwen2_5_vl", crop=True)

    async def go() -> Any:
        async with AsyncHttpRetriever(search_url) as retriever:
            return await demonstrate(task, world, PageCache(retriever), tiny.template, 4, 5, FAULTLESS)

    samples = [sample for one in asyncio.run(go()) for sample in one.samples]
    ids = tiny.processor.tokenizer.convert_tokens_to_ids

    class Foreseeing:
        """Finds likeliest what comes next, but for what it mistakes."""

        device = "cpu"

        def __init__(self, mistakes: dict[str, str]) -> None:
            self.mistakes = {ids(right): ids(wrong) for right, wrong in mistakes.items()}

        def eval(self) -> None:
            """Nothing to switch."""

        def __call__(self, input_ids: Any, **_: Any) -> Any:
            following = input_ids.roll(-1, 1)
            for right, wrong in self.mistakes.items():
                following[following == right] = wrong
            return SimpleNamespace(logits=100.0 * torch.nn.functional.one_hot(following, 2048))

    def read(mistakes: dict[str, str]) -> float:
        return reading(Foreseeing(mistakes), tiny.processor, samples)

    assert read({}) == pytest.approx(1)
    assert read({"<bbox>": "<answer>", "Ġfind": "Ġread"}) == pytest.approx(1)  # what it would do is another matter
    queries = [one.turns[0] for one in asyncio.run(go())]
    word = queries[0].partition("</search>")[0].split()[-1]
    assert read({f"Ġ{word}": "Ġfox" if word != "fox" else "Ġcat"}) == pytest.approx(
        1 - sum(word in one for one in queries) / 4
    )
    assert read({"28": "56"}) == pytest.approx(0)  # every region has a 28 in it
    assert reading(Foreseeing({}), tiny.processor, []) == 0.0
