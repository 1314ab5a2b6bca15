"""Settings of the retriever, each default in one place: constructor arguments > environment ``VRAG_SEARCH_*`` > defaults."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class RetrievalSettings(BaseSettings):
    """How a query is matched and how the two channels are fused. Changing them needs no rebuild of an index."""

    model_config = SettingsConfigDict(env_prefix="VRAG_SEARCH_", frozen=True, extra="forbid")

    hybrid: bool = Field(default=True, description="fuse the vectors with BM25; off: vectors alone")
    k1: float = Field(default=1.2, gt=0, description="BM25: how slowly repeating a word stops to count")
    b: float = Field(default=0.75, ge=0, le=1, description="BM25: how far a long page is discounted")
    context_weight: float = Field(default=0.5, ge=0, description="BM25: what a word of a page's context counts")
    context_b: float = Field(default=0.75, ge=0, le=1, description="BM25: length discount of the context")
    rrf_k: int = Field(default=60, ge=1, description="reciprocal rank fusion: how flat the ranks are weighted")
    vector_weight: float | None = Field(
        default=None, ge=0, description="weight of the vectors in the fusion; None: what the model recommends, else 1"
    )
    lexical_weight: float = Field(default=1.0, ge=0, description="weight of BM25 in the fusion")
    candidates: int = Field(default=100, ge=1, description="how deep each channel is read before fusing")
