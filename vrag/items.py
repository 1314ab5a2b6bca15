"""What a retriever returns: pages, clips and passages by reference, never their bytes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ItemKind = Literal["image", "video", "text"]


class Item(BaseModel):
    """One thing that can be retrieved: a page or an image, a video clip, or a passage of text.

    ``id`` is unique inside an index and is what every endpoint takes: ``{document}_{page}`` for a page of a PDF, the file's
    stem for a standalone image or clip (a suffix tells equal stems apart). ``width`` and ``height`` are those of the page's
    stored image, in pixels: the *page pixels* of all boxes.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    kind: ItemKind
    document: str = Field(description="the file it comes from, e.g. report.pdf")
    page: int | None = Field(
        default=None, description="counts from 1; None for standalone images, clips and text files"
    )
    width: int | None = None
    height: int | None = None
    content: str | None = Field(default=None, description="the passage itself, for kind 'text'")
    duration: float | None = Field(default=None, description="seconds, for kind 'video'")
    metadata: dict[str, Any] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """How a person would name it: ``report.pdf, page 3``."""
        return self.document if self.page is None else f"{self.document}, page {self.page}"


class Hit(BaseModel):
    """An item with its score (higher is better, comparable within one query) for one query."""

    model_config = ConfigDict(frozen=True)

    item: Item
    score: float
