"""What a model may do, and the parsers that read it from a reply. Pure and total: any string gives an action."""

from __future__ import annotations

from dataclasses import dataclass

from vrag.geometry import Box


@dataclass(frozen=True, slots=True)
class Search:
    query: str


@dataclass(frozen=True, slots=True)
class Crop:
    """Look closer at a region, in the pixels of the image as displayed; finite, but otherwise as the model wrote it."""

    box: Box


@dataclass(frozen=True, slots=True)
class Answer:
    text: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """A reply that holds no usable action; ``reason`` is fit to show to the model."""

    reason: str


Action = Search | Crop | Answer | Invalid
