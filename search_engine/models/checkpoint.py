"""Which model a checkpoint is, told by its files and never by its name; every complaint names the file at fault.

Three layouts are read alike: the hub's (flat or nested ``config.json``, ``preprocessor_config.json``), what transformers 4 saves,
and what transformers 5 saves (``rope_parameters``, ``processor_config.json``, ``chat_template.jinja``). Only JSON and the headers of
the weights are looked at here; torch is not needed.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from search_engine.models.base import Embedder
from vrag.errors import ConfigError

Family = Literal["gve", "qwen3_vl", "sentence_text"]

#: ``model_type`` of config.json -> the embedder that reads it.
VISUAL_FAMILIES: dict[str, Family] = {"qwen2_5_vl": "gve", "qwen3_vl": "qwen3_vl"}
#: A checkpoint of the sentence-transformers library carries this file.
SENTENCE_FILE = "modules.json"

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_WANTED = ["*.json", "*.jinja", "*.txt", "*.safetensors", "*.model", "*/config.json"]
_INSTALL = 'pip install "vrag[models]"'


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory with a model in it. ``name`` is what an index remembers: the last part of the path or of the hub name."""

    path: Path
    name: str
    family: Family
    dimension: int
    config: dict[str, Any] = field(repr=False)

    def json(self, filename: str) -> dict[str, Any] | None:
        """The object in ``filename``, or None where there is no such file."""
        return _read_json(self.path / filename) if (self.path / filename).is_file() else None


def load_checkpoint(name_or_path: str, **options: Any) -> Embedder:
    """The embedder of a checkpoint. Raises ConfigError; see :func:`open_checkpoint`."""
    checkpoint = open_checkpoint(name_or_path)
    try:
        if checkpoint.family == "sentence_text":
            from search_engine.models.sentence_text import SentenceText

            return SentenceText(checkpoint, **options)
        if checkpoint.family == "gve":
            from search_engine.models.gve import GVE

            return GVE(checkpoint, **options)
        from search_engine.models.qwen3_vl import Qwen3VLEmbedding

        return Qwen3VLEmbedding(checkpoint, **options)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{name_or_path} needs a package that is missing or broken ({error.name or error}): {_INSTALL}."
        ) from error


def open_checkpoint(name_or_path: str | Path) -> Checkpoint:
    """Find a checkpoint (a directory, or a name on the Hugging Face hub, which is downloaded) and look at what it is.

    Raises ConfigError, naming the file, when one is missing, unreadable, truncated or of a model that is not known here.
    """
    path, name = _located(str(name_or_path))
    config = _read_json(path / "config.json", required="it says which model this is")
    kind = config.get("model_type")
    if kind in VISUAL_FAMILIES:
        family = VISUAL_FAMILIES[kind]
        dimension = _dimension(config, path)
        _check_weights(path)
    elif (path / SENTENCE_FILE).is_file():
        family = "sentence_text"
        dimension = _dimension(config, path)
    else:
        known = ", ".join(sorted(VISUAL_FAMILIES))
        raise ConfigError(
            f"{path / 'config.json'} is of model_type {kind!r}, which is not an embedding model known here. Known are {known}, and "
            f"any model of sentence-transformers (which has a file {SENTENCE_FILE})."
        )
    return Checkpoint(path, name, family, dimension, config)


def image_statistics(
    checkpoint: Checkpoint, patch: int, fallback: tuple[tuple[float, ...], tuple[float, ...]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of the three colours that the vision tower was trained with.

    A checkpoint without a processor file gets ``fallback``, that of its family; one with the file of another model is refused.
    """
    for filename in ("preprocessor_config.json", "processor_config.json"):
        settings = checkpoint.json(filename)
        if settings is None:
            continue
        settings = settings.get("image_processor", settings)
        if not isinstance(settings, dict) or "image_mean" not in settings:
            continue
        where = checkpoint.path / filename
        if settings.get("patch_size", patch) != patch or settings.get("merge_size", 2) != 2:
            raise ConfigError(
                f"{where} is of another model: it cuts patches of {settings.get('patch_size')} pixels, config.json says {patch}."
            )
        mean, std = _three_numbers(settings["image_mean"]), _three_numbers(settings.get("image_std"))
        if mean is None or std is None or min(std) <= 0:
            raise ConfigError(f"{where}: image_mean and image_std have to be three numbers each.")
        return mean, std
    return fallback


def chat_template(checkpoint: Checkpoint) -> tuple[str, Path]:
    """The Jinja text that turns messages into a prompt, and the file that it comes from."""
    jinja = checkpoint.path / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8"), jinja
    for filename in ("chat_template.json", "tokenizer_config.json"):
        template = (checkpoint.json(filename) or {}).get("chat_template")
        if isinstance(template, str):
            return template, checkpoint.path / filename
    raise ConfigError(
        f"{jinja} is missing (and neither chat_template.json nor tokenizer_config.json has the template)."
    )


def _located(name_or_path: str) -> tuple[Path, str]:
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path, path.resolve().name
    if path.exists():
        raise ConfigError(f"{name_or_path} is a file; give the directory of the checkpoint.")
    if not _HUB_NAME.fullmatch(name_or_path):
        raise ConfigError(
            f"There is no directory {name_or_path}. A model is 'text_page', the directory of a checkpoint, or a name on the hub such as "
            "Qwen/Qwen3-VL-Embedding-2B."
        )
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{name_or_path} is no directory, and asking the hub needs {error.name}: {_INSTALL}."
        ) from error
    try:
        return Path(snapshot_download(name_or_path, allow_patterns=_WANTED)), name_or_path.rsplit("/", 1)[1]
    except Exception as error:  # Offline, unknown, gated, no space: the hub's own words say which.
        raise ConfigError(
            f"{name_or_path} is no directory here and cannot be fetched from the hub ({_first_line(error)}). "
            "Download it elsewhere and give the directory."
        ) from error


def _read_json(path: Path, required: str = "") -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing{'; ' + required if required else ''}.") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        if path.name == SENTENCE_FILE:
            return {"modules": value}
        raise ConfigError(f"{path} has to hold a JSON object.")
    return value


def _dimension(config: dict[str, Any], path: Path) -> int:
    """``hidden_size`` of the language model: nested in ``text_config`` or, in the hub's older layout, at the top."""
    text = config.get("text_config")
    size = text.get("hidden_size") if isinstance(text, dict) else None
    size = config.get("hidden_size") if size is None else size
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"{path / 'config.json'} does not say hidden_size, the dimension of the vectors.")
    return size


def _check_weights(path: Path) -> None:
    """Every file of the weights is there and whole, by its header; nothing is loaded."""
    found = next((path / name for name in _WEIGHTS if (path / name).is_file()), None)
    if found is None:
        if (path / "adapter_config.json").is_file():
            raise ConfigError(
                f"{path / 'adapter_config.json'}: this is an adapter. Merge it into its base model and save that."
            )
        raise ConfigError(f"{path / _WEIGHTS[0]} is missing: the directory holds no weights.")
    if found.suffix != ".json":
        files = [found]
    else:
        table = _read_json(found).get("weight_map")
        if not isinstance(table, dict) or not table:
            raise ConfigError(f"{found} has no weight_map; download it again.")
        files = [path / name for name in sorted(set(table.values()))]
    for file in files:
        if not file.is_file():
            raise ConfigError(f"{file} is missing; {found.name} names it as a part of the weights.")
        if file.suffix == ".safetensors":
            _check_safetensors(file)


def _check_safetensors(file: Path) -> None:
    """The header can be read and the file is as long as it says."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > size:
                raise ValueError("the header is longer than the file")
            header = json.loads(stream.read(length))
        end = max((entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"), default=0)
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise ConfigError(f"{file} is not a safetensors file ({_first_line(error)}); download it again.") from error
    if size != 8 + length + end:
        raise ConfigError(f"{file} is {size:,} bytes long and should be {8 + length + end:,}; download it again.")


def _three_numbers(value: Any) -> tuple[float, ...] | None:
    if isinstance(value, list) and len(value) == 3 and all(isinstance(x, int | float) for x in value):
        return tuple(float(x) for x in value)
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
