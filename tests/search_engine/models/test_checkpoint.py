from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from search_engine.models.checkpoint import chat_template, image_statistics, open_checkpoint
from search_engine.models.registry import load_model
from tests.search_engine.models import tiny
from vrag.errors import ConfigError

pytest.importorskip("tokenizers")


def safetensors(path: Path, tensors: dict[str, int]) -> Path:
    """A file with a true header and zeros for data."""
    header, end = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "F32", "shape": [size], "data_offsets": [end, end + 4 * size]}
        end += 4 * size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write_side_files(tmp_path / "model", tiny.qwen3_config())
    safetensors(tmp_path / "model" / "model.safetensors", {"a": 4})
    return tmp_path / "model"


def test_the_model_and_its_dimension_come_from_the_config_and_not_from_the_name(tmp_path: Path) -> None:
    for name, config, family in (("Qwen3-VL-x", tiny.gve_config(), "gve"), ("GVE-3B", tiny.qwen3_config(), "qwen3_vl")):
        tiny.write_side_files(tmp_path / name, config)
        safetensors(tmp_path / name / "model.safetensors", {"a": 4})
        checkpoint = open_checkpoint(str(tmp_path / name) + "/")
        assert (checkpoint.family, checkpoint.name, checkpoint.dimension) == (family, name, tiny.HIDDEN)


@pytest.mark.parametrize(("nested", "size"), [(True, 4096), (True, 2048), (False, 3584), (False, 2048)])
def test_published_dimensions(folder: Path, nested: bool, size: int) -> None:
    config = {"model_type": "qwen3_vl", "text_config": {"hidden_size": size}, "hidden_size": 1}
    flat = {"model_type": "qwen2_5_vl", "hidden_size": size}
    (folder / "config.json").write_text(json.dumps(config if nested else flat))
    assert open_checkpoint(folder).dimension == size


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"config\.json is missing"),
        (lambda f: (f / "config.json").write_text("{"), r"config\.json is not readable"),
        (lambda f: (f / "config.json").write_text("[]"), r"config\.json has to hold"),
        (lambda f: (f / "config.json").write_text('{"model_type": "llama"}'), r"config\.json is of model_type 'llama'"),
        (lambda f: (f / "config.json").write_text('{"model_type": "qwen3_vl"}'), r"config\.json does not say hidden_size"),
        (lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors is missing"),
        (lambda f: (f / "model.safetensors").write_bytes(b"<html>not found</html>"), r"model\.safetensors is not a safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-4]), r"bytes long"),
    ],
)  # fmt: skip
def test_what_is_wrong_names_the_file(folder: Path, damage: object, message: str) -> None:
    damage(folder)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=message):
        load_model(str(folder))


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    table = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(table))
    safetensors(folder / "model-00001-of-00002.safetensors", {"a": 3})
    with pytest.raises(ConfigError, match=r"model-00002-of-00002\.safetensors is missing"):
        open_checkpoint(folder)
    safetensors(folder / "model-00002-of-00002.safetensors", {"b": 3})
    assert open_checkpoint(folder).family == "qwen3_vl"


def test_an_adapter_is_not_a_model(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="Merge it"):
        open_checkpoint(folder)


def test_colours_from_either_layout_or_the_family_and_never_from_another_model(folder: Path) -> None:
    fallback = ((0.1,) * 3, (0.2,) * 3)
    assert image_statistics(open_checkpoint(folder), 16, fallback) == ((0.5,) * 3, (0.5,) * 3)
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json is of another model"):
        image_statistics(open_checkpoint(folder), 14, fallback)
    (folder / "preprocessor_config.json").unlink()
    assert image_statistics(open_checkpoint(folder), 16, fallback) == fallback
    nested = {"image_processor": {"image_mean": [0.3] * 3, "image_std": [0.4] * 3, "patch_size": 16}}
    (folder / "processor_config.json").write_text(json.dumps(nested))
    assert image_statistics(open_checkpoint(folder), 16, fallback) == ((0.3,) * 3, (0.4,) * 3)
    nested["image_processor"]["image_std"] = [0.4, 0.4, 0]
    (folder / "processor_config.json").write_text(json.dumps(nested))
    with pytest.raises(ConfigError, match=r"processor_config\.json: image_mean"):
        image_statistics(open_checkpoint(folder), 16, fallback)


def test_the_template_is_found_wherever_it_is_kept(folder: Path) -> None:
    assert chat_template(open_checkpoint(folder))[1].name == "chat_template.jinja"
    (folder / "chat_template.jinja").rename(folder / "old")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    assert chat_template(open_checkpoint(folder)) == ("x", folder / "tokenizer_config.json")
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match=r"chat_template\.jinja is missing"):
        chat_template(open_checkpoint(folder))


@pytest.mark.parametrize("name", ["/nowhere/at/all", "Qwen3-VL-Embedding-2B", "a b/c"])
def test_what_is_no_model_says_what_one_is(name: str) -> None:
    with pytest.raises(ConfigError, match="no directory"):
        load_model(name)


def test_a_file_is_not_a_checkpoint(folder: Path) -> None:
    with pytest.raises(ConfigError, match="is a file"):
        load_model(str(folder / "config.json"))
