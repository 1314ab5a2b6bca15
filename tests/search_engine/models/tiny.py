"""Tiny checkpoints with random weights, in the layouts that are met in the wild: what the loading code is tried on.

The vocabulary is every byte, "yes", "no" and the special tokens of Qwen, so that any text has tokens and nothing is downloaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
TEMPLATE = (
    "{% for message in messages %}"
    "{% if default_system and loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HIDDEN = 32


def tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("y", "e"), ("ye", "s"), ("n", "o")]
    vocabulary = {symbol: i for i, symbol in enumerate([*symbols, *("".join(pair) for pair in merges)])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return made


def _ids() -> dict[str, int]:
    made = tokenizer()
    return {token: made.token_to_id(token) for token in SPECIAL} | {"size": made.get_vocab_size()}


def gve_config() -> dict[str, Any]:
    """The flat layout of the hub's Qwen2.5-VL checkpoints."""
    ids = _ids()
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": True,
        "vocab_size": ids["size"] + 5,
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": HIDDEN,
            "patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
    }


def qwen3_config() -> dict[str, Any]:
    """As transformers 4.57 writes it."""
    ids = _ids()
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "hidden_size": HIDDEN,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5000000.0,
            "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]},
            "tie_word_embeddings": True,
            "vocab_size": ids["size"] + 5,
        },
        "vision_config": {
            "model_type": "qwen3_vl_vision",
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": HIDDEN,
            "patch_size": 16,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
    }


def write_side_files(path: Path, config: dict[str, Any]) -> None:
    """Everything of a checkpoint but its weights."""
    path.mkdir(parents=True, exist_ok=True)
    gve = config["model_type"] == "qwen2_5_vl"
    (path / "config.json").write_text(json.dumps(config))
    tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    template = TEMPLATE.replace("default_system", "true" if gve else "false")
    if gve:
        (path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
        statistics = {
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
        }
    else:
        (path / "chat_template.jinja").write_text(template)
        statistics = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    patch = config["vision_config"]["patch_size"]
    (path / "preprocessor_config.json").write_text(json.dumps({"patch_size": patch, "merge_size": 2, **statistics}))


def build(config: dict[str, Any], seed: int = 0) -> Any:
    """A model of ``config`` with random weights, large enough that every part of a prompt tells in the vector."""
    import torch
    import transformers

    from search_engine.models.loading import _older_layout

    name = {"qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[config["model_type"]] + "ForConditionalGeneration"
    model_class = getattr(transformers, name)
    settings = json.loads(json.dumps(config))
    if transformers.__version__.startswith("4."):
        _older_layout(settings)
    generator = torch.Generator().manual_seed(seed)
    model = model_class(model_class.config_class.from_dict(settings)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def write_checkpoint(path: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """A whole checkpoint in the hub's layout."""
    from safetensors.torch import save_file

    write_side_files(path, config)
    weights = {}
    for key, value in build(config, seed).state_dict().items():
        if key == "lm_head.weight":
            continue
        if config["model_type"] == "qwen2_5_vl":
            key = key.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
        weights[key] = value.clone()
    save_file(weights, str(path / "model.safetensors"), metadata={"format": "pt"})
    return path
