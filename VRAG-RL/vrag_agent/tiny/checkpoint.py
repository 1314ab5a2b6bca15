"""A Qwen-VL of about a million random weights, as a folder in the Hugging Face layout.

    make_checkpoint("qwen2_5_vl", Path("tiny-qwen"), seed=0)

The architecture, the processor and the special tokens are those of the released models; only the sizes and the vocabulary
are small. The tokenizer knows the words of :mod:`vrag_agent.tiny.world` as single tokens, and so the parts of a tool call
that never change: what is to be learnt are decisions, not JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from vrag_agent.tiny.words import FRAGMENTS, TEXTS, WORDS

Family = Literal["qwen2_5_vl", "qwen3_vl"]

#: The special tokens of Qwen-VL, in their order.
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
#: Pixels of a patch's side. Four patches are one visual token.
PATCH = {"qwen2_5_vl": 14, "qwen3_vl": 16}
#: Visual tokens of a picture's side.
_SIDE = 2
_HIDDEN, _LAYERS, _HEADS, _VISION = 128, 3, 4, 64

#: What the released templates do with turns and pictures.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{% if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}
{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def picture_side(family: Family) -> int:
    """Pixels of the side of the square picture that the model sees without losing any: 56 or 64."""
    return _SIDE * 2 * PATCH[family]


def make_checkpoint(family: Family, folder: Path, seed: int = 0) -> Path:
    """Write model, tokenizer and processor to ``folder``; the same seed gives the same weights."""
    import torch

    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    model = _model(family, tokenizer)
    model.save_pretrained(folder)
    make_processor(family, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [*TEXTS, *(form for word in WORDS for form in (word, f" {word}", f" {word}"))] * 30
    trainer = trainers.BpeTrainer(
        vocab_size=2048, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    learnt = json.loads(bpe.to_str())["model"]
    merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in learnt["merges"]]
    tokenizer = Qwen2Tokenizer(
        vocab=learnt["vocab"],
        merges=merges,
        unk_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL),
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in FRAGMENTS])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = 4096
    return tokenizer


def make_processor(family: Family, tokenizer: Any) -> Any:
    from transformers import Qwen2VLImageProcessor

    patch, side = PATCH[family], picture_side(family)
    common: dict[str, Any] = {"patch_size": patch, "temporal_patch_size": 2, "merge_size": 2}
    sizes = {"shortest_edge": (2 * patch) ** 2, "longest_edge": side**2}
    if family == "qwen2_5_vl":
        from transformers import Qwen2_5_VLProcessor, Qwen2VLVideoProcessor

        return Qwen2_5_VLProcessor(
            image_processor=Qwen2VLImageProcessor(**common, size=sizes),
            tokenizer=tokenizer,
            video_processor=Qwen2VLVideoProcessor(**common, size=sizes),
            chat_template=CHAT_TEMPLATE,
        )
    from transformers import Qwen3VLProcessor, Qwen3VLVideoProcessor

    half: dict[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**common, **half, size=sizes),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(patch_size=patch, temporal_patch_size=2, merge_size=2),
        chat_template=CHAT_TEMPLATE,
    )


def _model(family: Family, tokenizer: Any) -> Any:
    token = tokenizer.convert_tokens_to_ids
    head = _HIDDEN // _HEADS
    rope: dict[str, Any] = {"rope_type": "default", "mrope_section": [head // 8, head * 3 // 16, head * 3 // 16]}
    rope["rope_theta"] = 10_000.0
    text: dict[str, Any] = {
        "vocab_size": (len(tokenizer) + 63) // 64 * 64,
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS // 2,
        "max_position_embeddings": 4096,
        "bos_token_id": token("<|endoftext|>"),
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
        "rope_parameters": rope,
    }
    vision: dict[str, Any] = {
        "depth": 2,
        "hidden_size": _VISION,
        "intermediate_size": 2 * _VISION,
        "num_heads": 4,
        "out_hidden_size": _HIDDEN,
    }
    ids = {
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
    }
    if family == "qwen2_5_vl":
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

        vision.update(window_size=112, fullatt_block_indexes=[0, 1])
        config: Any = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids, tie_word_embeddings=False)
        model: Any = Qwen2_5_VLForConditionalGeneration(config)
    else:
        from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

        text["head_dim"] = head
        rope["mrope_interleaved"] = True
        vision.update(patch_size=PATCH[family], deepstack_visual_indexes=[0], num_position_embeddings=64)
        config = Qwen3VLConfig(text_config=text, vision_config=vision, **ids, tie_word_embeddings=False)
        model = Qwen3VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = [token("<|im_end|>")]
    model.generation_config.pad_token_id = token("<|endoftext|>")
    return model
