"""From the name of a model to the model: the one place that knows them all."""

from __future__ import annotations

from typing import Any

from search_engine.models.base import Embedder, PairScorer
from vrag.errors import ConfigError

TEXT_PAGE = "text_page"


def load_model(name_or_path: str, **options: Any) -> Embedder:
    """The embedder called ``name_or_path``.

    ``"text_page"`` is the embedded default (no weights, no torch). An address (``http://…``) is an embeddings server, see
    :mod:`search_engine.models.remote`. Anything else is a checkpoint: a directory, or a name on the
    Hugging Face hub; which model it is follows from its configuration, never from how it is called (see
    :mod:`search_engine.models.checkpoint`). ``options`` are handed to the model's constructor.

    Raises :class:`vrag.errors.ConfigError` when the checkpoint is not one that can be used here, or when the packages that it
    needs are not installed.
    """
    if name_or_path == TEXT_PAGE:
        from search_engine.models.text_page import TextPage

        return TextPage(**options)
    if name_or_path.startswith(("http://", "https://")):
        from search_engine.models.remote import RemoteEmbedder

        return RemoteEmbedder(name_or_path, **options)
    from search_engine.models.checkpoint import load_checkpoint

    return load_checkpoint(name_or_path, **options)


def load_pair_scorer(name_or_path: str, **options: Any) -> PairScorer:
    """The reranking model of a checkpoint: a directory, or a name on the hub (Qwen3-VL-Reranker).

    Raises :class:`vrag.errors.ConfigError` as :func:`load_model` does.
    """
    try:
        from search_engine.models.reranker import load_reranker
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'the reranker {name_or_path} needs a package that is missing or broken ({error.name or error}): pip install "vrag[models]"'
        ) from error
    return load_reranker(name_or_path, **options)
