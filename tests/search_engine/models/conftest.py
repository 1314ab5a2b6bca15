"""Checkpoints, pictures and clips for the tests of the embedding models."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.search_engine.models import tiny


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """torch as a polite guest: one thread."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def gve_path(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    pytest.importorskip("transformers")
    return tiny.write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny-gve", tiny.gve_config())


@pytest.fixture(scope="session")
def qwen3_path(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    pytest.importorskip("transformers")
    return tiny.write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny-qwen3", tiny.qwen3_config())


@pytest.fixture(scope="session")
def reference_folder() -> Path:
    """Checkpoints and vectors made with the published code: the folder that VRAG_EMBEDDER_REFERENCE names."""
    folder = os.environ.get("VRAG_EMBEDDER_REFERENCE")
    if not folder or not (Path(folder) / "reference_vectors.json").is_file():
        pytest.skip("VRAG_EMBEDDER_REFERENCE names no folder with reference_vectors.json")
    return Path(folder)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def write_clip(path: Path, frames: int, rate: int = 10, size: tuple[int, int] = (64, 48), gop: int = 5) -> Path:
    """A clip whose frame ``i`` is grey, ``(i * 7) % 256`` bright."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = *size, "yuv420p", gop
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(
                np.full((size[1], size[0], 3), index * 7 % 256, np.uint8), format="rgb24"
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path
