"""What a run has cost so far: the sum of its usage events, for whoever shows counters or a bill."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from vrag.events import Event, Usage


@dataclass(slots=True)
class Totals:
    """Sums over the calls of the model. Prices are those of a million tokens, in whatever currency."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    images: int = 0
    image_pixels: int = 0
    image_bytes: int = 0

    @classmethod
    def of(cls, events: Iterable[Event]) -> Totals:
        totals = cls()
        for event in events:
            totals.add(event)
        return totals

    def add(self, event: Event) -> None:
        """Take an event into account; those that cost nothing change nothing."""
        if not isinstance(event, Usage):
            return
        self.calls += 1
        self.prompt_tokens += event.prompt_tokens
        self.completion_tokens += event.completion_tokens
        self.seconds += event.seconds
        self.images += event.images
        self.image_pixels += event.image_pixels
        self.image_bytes += event.image_bytes

    def cost(self, input_price: float | None, output_price: float | None) -> float | None:
        """What the tokens cost; None where no price is known."""
        if input_price is None and output_price is None:
            return None
        return (self.prompt_tokens * (input_price or 0.0) + self.completion_tokens * (output_price or 0.0)) / 1e6

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
