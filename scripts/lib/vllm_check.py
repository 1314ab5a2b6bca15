"""What the checks against vLLM need in .venv-models: make a tiny checkpoint; compare a server's vectors of it with local ones."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from search_engine.models.base import Document, Query
from search_engine.models.registry import load_model
from search_engine.models.remote import RemoteEmbedder

TOLERANCE = 1e-5


def make(path: Path) -> None:
    """A Qwen3-VL with random weights, and the processor files that vLLM asks for beside them."""
    from scripts.benchmarks.embed import _random_checkpoint

    _random_checkpoint(path, "tiny")
    added = json.loads((path / "tokenizer.json").read_text())["added_tokens"]
    special = [token["content"] for token in added]
    processor = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
        "processor_class": "Qwen3VLProcessor",
    }
    files: dict[str, dict[str, object]] = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "additional_special_tokens": special,
            "model_max_length": 32_768,
        },
        "generation_config.json": {"eos_token_id": _token_id(path, "<|im_end|>")},
        "preprocessor_config.json": {**processor, "image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_preprocessor_config.json": {**processor, "video_processor_type": "Qwen3VLVideoProcessor"},
    }
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))


def _token_id(path: Path, token: str) -> int:
    added = json.loads((path / "tokenizer.json").read_text())["added_tokens"]
    return int(next(entry["id"] for entry in added if entry["content"] == token))


def compare(path: Path, url: str) -> int:
    """Text, pictures of several sizes, both; 0 when every vector agrees."""
    grain = np.random.default_rng(0).integers(0, 256, (768, 1024, 3), dtype=np.uint8)
    picture = Image.fromarray(grain)
    encoded = {}
    for size in ((1024, 768), (333, 517), (60, 40), (3000, 2200)):
        buffer = io.BytesIO()
        picture.resize(size).save(buffer, "PNG")
        encoded[size] = buffer.getvalue()
    queries = [
        Query("What is the most commonly used travel app?"),
        Query("助力证券公司上云"),
        Query("both", encoded[333, 517]),
    ]
    queries += [Query(image=data) for data in encoded.values()]
    local = load_model(str(path), dtype="float32", devices="cpu")
    with RemoteEmbedder(url, concurrency=2) as remote:
        there, here = remote.embed_queries(queries), local.embed_queries(queries)
        document = [Document("t", text="a passage")]
        there = np.vstack([there, remote.embed_documents(document).vectors])
        here = np.vstack([here, local.embed_documents(document).vectors])
    apart = np.abs(there - here).max(axis=1)
    for query, difference in zip([*queries, "document"], apart, strict=True):
        what = query if isinstance(query, str) else query.text or "picture"
        print(f"{what[:40]:42s} {difference:.1e}")
    print(f"largest difference {apart.max():.1e}, allowed {TOLERANCE:.0e}")
    return int(apart.max() > TOLERANCE)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        sys.exit(compare(Path(sys.argv[2]), sys.argv[3]))
