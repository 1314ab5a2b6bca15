from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search_engine.models.base import Document, Query
from tests.search_engine.models.conftest import encoded, noise, write_clip
from vrag.errors import ConfigError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from search_engine.models.reranker import INSTRUCTION, SYSTEM, load_reranker  # noqa: E402


@pytest.fixture(scope="module")
def reranker(qwen3_path: Path) -> Any:
    return load_reranker(str(qwen3_path), devices="cpu", dtype="float32")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    folder = tmp_path_factory.mktemp("pages")
    pages = []
    for seed, size in enumerate([(200, 150), (60, 300), (96, 96)]):
        path = folder / f"{seed}.png"
        noise(*size, seed).save(path)
        pages.append(Document(str(seed), text="printed on it", image=path))
    return [
        *pages,
        Document("t", text="a passage about revenue"),
        Document("v", video=write_clip(folder / "c.mp4", 12)),
        Document("e"),
    ]


def test_a_batch_scores_like_single_pairs(reranker: Any, documents: list[Document]) -> None:
    query = Query("What was the revenue?")
    alone = [float(reranker.score(query, [document]).values[0]) for document in documents]
    together = reranker.score(query, documents)
    assert not together.failed
    assert np.abs(together.values - np.array(alone)).max() < 1e-6
    assert all(0 < value < 1 for value in alone)
    assert len({round(value, 6) for value in alone}) == len(alone)


def test_the_score_is_what_the_head_leans_to(reranker: Any, qwen3_path: Path) -> None:
    """Recomputed with the whole causal model: sigmoid of the difference between the logits of yes and no."""
    from search_engine.models.checkpoint import open_checkpoint
    from search_engine.models.loading import load_model

    model = load_model(open_checkpoint(qwen3_path), torch.float32, torch.device("cpu"), head=True)
    prompt = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n<Instruct>: {INSTRUCTION}<Query>:revenue?\n<Document>:it grew"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = reranker.format.encode(prompt)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    yes, no = (reranker.format.tokenizer.token_to_id(word) for word in ("yes", "no"))
    expected = float(torch.sigmoid(logits[yes] - logits[no]))
    scored = reranker.score(Query("revenue?"), [Document("d", text="it grew")]).values[0]
    assert abs(float(scored) - expected) < 1e-5


def test_a_broken_document_fails_alone(reranker: Any, documents: list[Document], tmp_path: Path) -> None:
    query = Query("x", encoded(noise(64, 64)))
    clean = reranker.score(query, documents).values
    (tmp_path / "bad.png").write_bytes(b"nothing")
    scores = reranker.score(query, [documents[0], Document("bad", image=tmp_path / "bad.png"), *documents[1:]])
    assert list(scores.failed) == [1]
    assert scores.values[1] == 0
    assert np.abs(np.delete(scores.values, 1) - clean).max() < 1e-6
    assert reranker.score(query, []).values.shape == (0,)


def test_a_long_document_keeps_the_end_of_the_prompt(qwen3_path: Path) -> None:
    short = load_reranker(str(qwen3_path), devices="cpu", max_length=400)
    scored = short.score(Query("revenue?"), [Document("d", text="it grew " * 500)])
    assert not scored.failed
    from search_engine.models.visual import Content

    ids = short.prepare_pair(Content("revenue?"), Content("it grew " * 500)).ids
    assert len(ids) == 400
    ending = short.format.encode("<|im_end|>\n<|im_start|>assistant\n")
    assert ids[-5:] == ending[-5:]


def test_what_is_no_reranker_says_so(gve_path: Path, qwen3_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json is not of a Qwen3-VL model"):
        load_reranker(str(gve_path))
    shutil.copytree(qwen3_path, tmp_path / "m")
    with pytest.raises(ConfigError, match="no directory"):
        load_reranker(str(tmp_path / "n"))
