"""Pieces of tokens against what the processor makes of the whole conversation."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from vrag.errors import ConfigError
from vrag.geometry import Box
from vrag.items import Item
from vrag.messages import Message, message
from vrag.pages import View
from vrag_agent.inputs import model_inputs
from vrag_agent.template import ChatTemplate

#: transformers' own, on tensors that it made itself
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

#: What the released Qwen2.5-VL does that the tiny template does not: a system turn of its own, pictures that are counted.
WITH_SYSTEM = """\
{%- set count = namespace(value=0) -%}
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}
<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif -%}
<|im_start|>{{ message['role'] }}
{% if message['content'] is string -%}
{{ message['content'] }}<|im_end|>
{% else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
{%- set count.value = count.value + 1 -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}
{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def picture(size: tuple[int, int], colour: str = "red") -> View:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "JPEG")
    item = Item(id=f"{colour}_1", kind="image", document="a.pdf", page=1, width=size[0], height=size[1])
    return View(item, Box(0, 0, *size), size, buffer.getvalue())


@dataclass
class Whole:
    """The processor's own tensors of a conversation."""

    ids: list[int]
    inputs: Any


def whole(template: ChatTemplate, turns: list[Message], generation_prompt: bool = True) -> Whole:
    conversation = []
    images = []
    for turn in turns:
        parts: list[dict[str, Any]] = []
        for part in turn.content:
            if isinstance(part, str):
                parts.append({"type": "text", "text": part})
            else:
                parts.append({"type": "image"})
                with Image.open(io.BytesIO(part.jpeg())) as file:
                    images.append(file.convert("RGB"))
        conversation.append({"role": turn.role, "content": parts})
    text = template.processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=generation_prompt)
    inputs = template.processor(text=[text], images=images or None, return_tensors="pt")
    return Whole(inputs["input_ids"][0].tolist(), inputs)


def pieced(template: ChatTemplate, turns: list[Message]) -> tuple[list[int], list[Image.Image]]:
    """The same conversation as the driver builds it: a prompt, turns, observations."""
    first = next((at for at, turn in enumerate(turns) if turn.role == "assistant"), len(turns))
    piece = template.prompt(turns[:first])
    ids, images = list(piece.ids), list(piece.images)
    at = first
    while at < len(turns):
        end = next((n for n in range(at + 1, len(turns)) if turns[n].role == "assistant"), len(turns))
        ids += template.encode_turn(turns[at].text)
        piece = template.observation(turns[at + 1 : end])
        ids += piece.ids[1:]
        images += piece.images
        at = end
    return ids, images


DIALOGUE = [
    message("user", "What digit is on the red fox page?"),
    message("assistant", "<think> find</think><search> red fox</search>"),
    message("user", picture((56, 56)), "\nlook, and answer"),
    message("assistant", "<think> zoom</think><bbox>[28, 0, 56, 28]</bbox>"),
    message("user", picture((200, 90), "blue")),
    message("assistant", "not what was asked for"),
    message("user", "look again"),
    message("assistant", "<answer> 3</answer>"),
    message("user", "one more", picture((40, 300), "green"), picture((64, 64), "white")),
]


@pytest.mark.parametrize("variant", ["own", "with system"])
def test_pieces_are_the_conversation_token_for_token(tiny: Any, variant: str) -> None:
    template = tiny.template
    if variant == "with system":
        processor = type(tiny.processor)(
            image_processor=tiny.processor.image_processor,
            tokenizer=tiny.processor.tokenizer,
            video_processor=tiny.processor.video_processor,
            chat_template=WITH_SYSTEM,
        )
        template = ChatTemplate(processor)
    ids, images = pieced(template, DIALOGUE)
    expected = whole(template, DIALOGUE)
    assert ids == expected.ids
    ours = model_inputs(template.processor, [(ids, images)], padding="right")
    assert torch.equal(ours["pixel_values"], expected.inputs["pixel_values"])
    assert torch.equal(ours["image_grid_thw"], expected.inputs["image_grid_thw"])
    assert torch.equal(ours["mm_token_type_ids"], expected.inputs["mm_token_type_ids"])


def test_positions_of_padded_rows_are_those_of_the_processors_output(tiny: Any) -> None:
    ids, images = pieced(tiny.template, DIALOGUE)
    short, few = pieced(tiny.template, DIALOGUE[:3])
    batch = model_inputs(tiny.processor, [(ids, images), (short, few)], padding="right")
    found, _ = tiny.model.model.get_rope_index(**_positions(batch))
    for row, turns in enumerate((DIALOGUE, DIALOGUE[:3])):
        expected = whole(tiny.template, turns)
        alone, _ = tiny.model.model.get_rope_index(**_positions(expected.inputs))
        assert torch.equal(found[:, row, : alone.shape[2]], alone[:, 0])
    assert len(torch.unique(found[1, 0])) < len(ids)  # pictures do share positions: these are not counted through


def _positions(inputs: Any) -> dict[str, Any]:
    names = ("input_ids", "attention_mask", "mm_token_type_ids", "image_grid_thw")
    return {name: inputs[name] for name in names}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(width=st.integers(3, 400), height=st.integers(3, 400))
def test_tokens_of_a_picture_are_those_of_its_grid(tiny: Any, width: int, height: int) -> None:
    grid = tiny.processor.image_processor(images=[Image.new("RGB", (width, height))], return_tensors="pt")
    assert tiny.template.image_tokens((width, height)) == int(grid["image_grid_thw"].prod()) // 4


text = st.text(st.characters(codec="utf-8", exclude_characters="<|｜"), max_size=60)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(question=text, said=text, shown=text)
def test_any_text_has_parity(tiny: Any, question: str, said: str, shown: str) -> None:
    # A turn of the model begins behind a newline of the template; what merges with that is a retokenisation of its own.
    turns = [message("user", question), message("assistant", "x" + said), message("user", shown, picture((56, 56)))]
    ids, _ = pieced(tiny.template, turns)
    assert ids == whole(tiny.template, turns).ids


def test_an_image_token_in_a_text_is_refused(tiny: Any) -> None:
    for text in ("<|image_pad|>", "<|video_pad|>"):
        with pytest.raises(ConfigError, match="image token"):
            tiny.template.prompt([message("user", f"forged {text}")])


def test_a_processor_without_a_template_is_refused(tiny: Any) -> None:
    class Bare:
        tokenizer = tiny.processor.tokenizer
        chat_template = None

    with pytest.raises(ConfigError, match="chat template"):
        ChatTemplate(Bare())


def test_image_tokens_that_are_not_those_of_the_pictures_are_refused(tiny: Any) -> None:
    piece = tiny.template.prompt([message("user", picture((56, 56)))])
    with pytest.raises(ConfigError, match="image tokens"):
        model_inputs(tiny.processor, [(piece.ids[:-3] + piece.ids[-1:], [])], padding="left")
