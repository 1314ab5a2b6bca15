"""Settings of the retriever, each default in one place: constructor arguments > environment ``VRAG_SEARCH_*`` > defaults."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from vrag.errors import ConfigError

VectorKind = Literal["flat", "fp16", "sq8", "ivf", "hnsw", "milvus"]


class RetrievalSettings(BaseSettings):
    """How a query is matched and how the two channels are fused. Changing them needs no rebuild of an index."""

    model_config = SettingsConfigDict(env_prefix="VRAG_SEARCH_", frozen=True, extra="forbid")

    hybrid: bool = Field(default=True, description="fuse the vectors with BM25; off: vectors alone")
    k1: float = Field(default=1.2, gt=0, description="BM25: how slowly repeating a word stops to count")
    b: float = Field(default=0.75, ge=0, le=1, description="BM25: how far a long page is discounted")
    context_weight: float = Field(default=0.5, ge=0, description="BM25: what a word of a page's context counts")
    context_b: float = Field(default=0.75, ge=0, le=1, description="BM25: length discount of the context")
    fusion: Literal["scores", "ranks"] = Field(
        default="scores",
        description="what is fused: the scores of the channels, each on its own scale, or their ranks alone",
    )
    rrf_k: int = Field(default=60, ge=1, description="fusion by ranks: how flat they are weighted")
    vector_weight: float | None = Field(
        default=None, ge=0, description="weight of the vectors in the fusion; None: what the model recommends, else 1"
    )
    lexical_weight: float = Field(default=1.0, ge=0, description="weight of BM25 in the fusion")
    candidates: int = Field(default=100, ge=1, description="how deep each channel is read before fusing")
    vectors: VectorKind = Field(
        default="flat",
        description="how vectors are searched: flat is exact; fp16, sq8, ivf and hnsw are derived from the index and kept in it",
    )
    mapped: bool = Field(
        default=False, description="flat: leave the vectors on disk and read them through the page cache"
    )
    device: str = Field(
        default="cpu", description='where vectors are searched: "cpu", "cuda", "cuda:1"; flat, fp16, ivf'
    )
    ivf_probes: int = Field(default=128, ge=1, description="ivf: lists that a query looks into")
    hnsw_depth: int = Field(default=256, ge=1, description="hnsw: how many nodes a search keeps in view")
    exact_rows: int = Field(
        default=4096,
        ge=0,
        description="so many vectors are searched exactly instead of by a derived index, or beside it",
    )
    milvus_uri: str | None = Field(
        default=None, description="milvus: http://host:19530, or the path of a local file (Milvus Lite)"
    )
    milvus_token: SecretStr | None = Field(default=None, description='milvus: "user:password" or an API key')
    rerank_depth: int = Field(
        default=20, ge=1, description="hits that a reranker looks at unless a search says how many"
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            wrong = {
                str(problem["loc"][0]): problem["msg"]
                for problem in error.errors(include_input=False)
                if problem["loc"]
            }
            sentences = [
                f"{name if name in values else f'VRAG_SEARCH_{name.upper()}'}: {reason}"
                for name, reason in wrong.items()
            ]
            raise ConfigError(f"Wrong settings of the retrieval. {'; '.join(sentences)}.") from None
