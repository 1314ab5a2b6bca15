"""Weights and tokenizer of a visual checkpoint, loaded so that nothing is silently made up.

``from_pretrained`` fills what it does not find with random numbers and only logs it; a foreign or partial file of weights would give
vectors that mean nothing. Here that is an error. Works with transformers 4.57 and 5.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from search_engine.models.checkpoint import Checkpoint, chat_template
from vrag.errors import ConfigError

#: What a template is tried on. How it renders this is what tells two templates apart, not how they are written.
_PROBE = [
    {"role": "system", "content": [{"type": "text", "text": "instruction"}]},
    {"role": "user", "content": [{"type": "video"}, {"type": "image"}, {"type": "text", "text": "text"}]},
]
#: The head of the language model is not used by an embedder and may be absent.
_OPTIONAL = ("lm_head.weight",)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 on a GPU and float32 elsewhere."""
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    choices = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name not in choices:
        raise ConfigError(f"dtype has to be auto, float32 or bfloat16, not {name!r}.")
    return choices[name]


def resolve_devices(devices: str | tuple[str, ...] | list[str] | None) -> tuple[torch.device, ...]:
    """None: every GPU there is, else the CPU. A device named twice carries two replicas."""
    if devices is None:
        devices = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count())) or ("cpu",)
    names = (devices,) if isinstance(devices, str) else tuple(devices)
    try:
        resolved = tuple(torch.device(name) for name in names)
    except RuntimeError as error:
        raise ConfigError(f"{', '.join(names)}: not a device of torch, such as cpu or cuda:0.") from error
    for device in resolved:
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"{device}: there are {torch.cuda.device_count()} GPUs that torch can use.")
    if not resolved:
        raise ConfigError("name at least one device.")
    return resolved


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    *,
    attention: str | None = None,
    head: bool = False,
) -> Any:
    """The whole causal model (its ``.model`` is what embeds), in evaluation mode on ``device``; ``head``: its head must be there.

    Raises ConfigError when a weight is missing or of another shape.
    """
    import transformers

    kind = str(checkpoint.config["model_type"])
    classes = {"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration", "qwen3_vl": "Qwen3VLForConditionalGeneration"}
    model_class = getattr(transformers, classes[kind], None)
    if model_class is None:
        raise ConfigError(
            f"{checkpoint.name} needs transformers 4.57 or newer; {transformers.__version__} is installed."
        )
    settings = copy.deepcopy(checkpoint.config)
    if int(transformers.__version__.split(".")[0]) < 5:
        _older_layout(settings)
    options: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
    where = checkpoint.path / "config.json"
    try:
        config = model_class.config_class.from_dict(settings)
    except Exception as error:  # Whatever a foreign configuration makes the library raise.
        raise ConfigError(f"{where} is not a usable configuration of {kind}: {error}") from error
    files = ", ".join(file.name for file in sorted(checkpoint.path.glob("*.safetensors"))) or "pytorch_model.bin"
    try:
        model, report = model_class.from_pretrained(
            checkpoint.path, config=config, dtype=dtype, output_loading_info=True, **options
        )
    except Exception as error:  # Shape mismatches, damaged tensors, no memory: the library's words say which.
        raise ConfigError(
            f"{checkpoint.path}: {files} cannot be loaded as what config.json describes: {error}"
        ) from error
    missing = sorted(key for key in report["missing_keys"] if head or not key.endswith(_OPTIONAL))
    odd = sorted(str(key) for key in report.get("mismatched_keys") or ())
    if missing or odd:
        some = ", ".join((missing + odd)[:3])
        raise ConfigError(
            f"{checkpoint.path}: {files} is of another model than config.json; {len(missing + odd)} weights are missing or of "
            f"another shape, such as {some}."
        )
    return model.to(device).eval()


def weights_digest(model: Any) -> str:
    """A short name for the weights, the same whatever file layout or precision they were loaded in.

    A few rows of the first and the last layer, rounded to bfloat16: fine-tuning moves them, saving again does not.
    """
    layers = model.language_model.layers
    digest = hashlib.sha256()
    for layer in (layers[0], layers[-1]):
        for weight in (layer.self_attn.q_proj.weight, layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            rows = weight.detach()[:4].to(device="cpu", dtype=torch.bfloat16)
            digest.update(rows.contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """The checkpoint's own chat template and tokenizer: from messages to the ids of a prompt."""

    tokenizer: Tokenizer
    template: Any
    digest: str
    image_token: str
    video_token: str
    frame: tuple[str, str]
    """What opens and closes a stretch of visual tokens."""

    def render(self, messages: list[dict[str, Any]]) -> str:
        return str(self.template.render(messages=messages, add_generation_prompt=True))

    def plain(self, text: str) -> str:
        """Text in which nothing reads as the place of a picture, whatever its author wrote."""
        for token in (self.image_token, self.video_token):
            text = text.replace(token, token[:1] + " " + token[1:])
        return text

    def encode(self, prompt: str) -> list[int]:
        return list(self.tokenizer.encode(prompt).ids)


def load_prompt_format(checkpoint: Checkpoint, max_length: int | None) -> PromptFormat:
    """``max_length``: where prompts are cut, in tokens; None: nowhere.

    Raises ConfigError, naming the file, when tokenizer or template are missing or belong to another model.
    """
    tokenizer, source = _tokenizer(checkpoint)
    config = checkpoint.config
    tokens = {
        key: tokenizer.id_to_token(config.get(key, -1)) if isinstance(config.get(key), int) else None
        for key in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    }
    rows = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size") or 0
    if not all(tokens.values()) or tokenizer.get_vocab_size() > rows:
        raise ConfigError(
            f"{source} is the tokenizer of another model: config.json speaks of {rows} tokens, among them those that stand for "
            "pictures and clips."
        )
    text, where = chat_template(checkpoint)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = _refuse
    if max_length is not None:
        tokenizer.enable_truncation(max_length)
    try:
        template = environment.from_string(text)
        probe = str(template.render(messages=_PROBE, add_generation_prompt=True))
        form = PromptFormat(
            tokenizer,
            template,
            hashlib.sha256(probe.encode()).hexdigest()[:12],
            str(tokens["image_token_id"]),
            str(tokens["video_token_id"]),
            (str(tokens["vision_start_token_id"]), str(tokens["vision_end_token_id"])),
        )
    except TemplateError as error:
        raise ConfigError(f"{where} is not a usable chat template: {error}") from error
    if probe.count(form.image_token) != 1 or probe.count(form.video_token) != 1:
        raise ConfigError(f"{where} is the chat template of another model: it has no place for a picture and a clip.")
    return form


def _tokenizer(checkpoint: Checkpoint) -> tuple[Tokenizer, Path]:
    source = checkpoint.path / "tokenizer.json"
    try:
        if source.is_file():
            tokenizer = Tokenizer.from_file(str(source))
        else:
            source = checkpoint.path / "vocab.json"
            if not source.is_file():
                raise ConfigError(
                    f"{checkpoint.path / 'tokenizer.json'} is missing (and vocab.json with merges.txt is, too)."
                )
            from transformers import AutoTokenizer

            tokenizer = Tokenizer.from_str(AutoTokenizer.from_pretrained(checkpoint.path).backend_tokenizer.to_str())
    except ConfigError:
        raise
    except Exception as error:  # The tokenizers library raises bare Exception.
        raise ConfigError(f"{source} is not a usable tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, source


def _older_layout(config: dict[str, Any]) -> None:
    """Undo, in place, what transformers 5 renamed in config.json, for transformers 4."""
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        rope = part.get("rope_parameters")
        if isinstance(rope, dict):
            rope = dict(part.pop("rope_parameters"))
            if "rope_theta" in rope:
                part["rope_theta"] = rope.pop("rope_theta")
            part["rope_scaling"] = rope


def _refuse(message: str) -> None:
    raise TemplateError(message)
