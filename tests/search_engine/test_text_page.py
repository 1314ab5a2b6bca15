"""The embedded default model."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_engine.models.base import Document, Embedder, Query
from search_engine.models.registry import load_model
from search_engine.models.text_page import TextPage

TEXTS = ["Wind turbines on the coast", "风力发电 报告 2024", "", "a", "1,200.5 MW"]


def documents(*texts: str | None) -> list[Document]:
    return [Document(id=str(number), text=text) for number, text in enumerate(texts)]


def test_it_is_an_embedder() -> None:
    model = load_model("text_page")
    assert isinstance(model, Embedder)
    assert (model.name, model.dimension) == ("text_page", 2048)
    assert model.fingerprint


def test_vectors_are_the_same_in_every_process() -> None:
    """No vector may depend on the salt of a process: an index outlives it."""
    code = (
        "import sys, hashlib; from tests.search_engine.test_text_page import TEXTS, documents, TextPage;"
        "sys.stdout.write(hashlib.sha256(TextPage().embed_documents(documents(*TEXTS)).vectors.tobytes()).hexdigest())"
    )
    found = set()
    for salt in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": salt}, capture_output=True, text=True, check=True
        )
        found.add(run.stdout)
    assert len(found) == 1
    assert len(found.pop()) == 64


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=120), max_size=4))
def test_vectors_are_normalised_and_independent_of_the_batch(texts: list[str]) -> None:
    model = TextPage()
    embedded = model.embed_documents(documents(*texts))
    assert embedded.vectors.shape == (len(texts), 2048)
    assert embedded.vectors.dtype == np.float32
    assert embedded.failed == {}
    norms = np.linalg.norm(embedded.vectors, axis=1)
    assert np.all((np.abs(norms - 1) < 1e-5) | (norms == 0))
    for row, text in enumerate(texts):
        alone = model.embed_documents(documents(text)).vectors[0]
        assert alone.tobytes() == embedded.vectors[row].tobytes()


def test_words_in_other_forms_and_scripts_are_near() -> None:
    model = TextPage()
    pages = model.embed_documents(
        documents("The turbines are driven by wind", "Annual price report", "风力发电机在海岸", "数据库安全")
    ).vectors
    for query, page in (("turbine wind", 0), ("reported prices", 1), ("海岸的风力发电", 2), ("安全数据库", 3)):
        assert int(np.argmax(pages @ model.embed_queries([Query(query)])[0])) == page


@pytest.mark.parametrize("text", ["", None, " \n", "?!"])
def test_nothing_to_read_gives_the_zero_vector(text: str | None) -> None:
    model = TextPage()
    assert not model.embed_documents([Document("1", text=text, context="Annual report")]).vectors.any() or text == "?!"
    assert not model.embed_queries([Query(text)]).any()
    assert model.embed_documents([]).vectors.shape == (0, 2048)


def test_the_context_of_a_page_counts() -> None:
    model = TextPage()
    page = [
        Document("1", text="42 MW", context="Coastal wind farm"),
        Document("2", text="42 MW", context="Annual price list"),
    ]
    scores = model.embed_documents(page).vectors @ model.embed_queries([Query("wind farm")])[0]
    assert scores[0] > scores[1]
