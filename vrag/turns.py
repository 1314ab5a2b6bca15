"""What every episode does with a turn of the model: count it against the budgets, and keep it fit for the next prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vrag.actions import clean
from vrag.episode import Generation
from vrag.events import EndReason, Usage
from vrag.messages import Message, views_of

#: A longer passage, or a longer reply in the context of the next turn, is cut.
MAX_PASSAGE_CHARS = 8_000
MAX_REPLY_CHARS = 16_000
#: For a budget of tokens at an endpoint that does not report them: a visual token of 28 x 28 pixels, and text.
_PIXELS_PER_TOKEN = 28 * 28
_CHARS_PER_TOKEN = 4


class Meter:
    """Turns, tokens and seconds of a run, and which budget is used up. ``clock`` counts seconds."""

    def __init__(self, max_seconds: float | None, max_tokens: int | None, clock: Callable[[], float]) -> None:
        self.step = 0
        """Turns of the model so far, the pending one included."""
        self.tokens = 0
        """Prompt and reply tokens, summed over the turns."""
        self._max_seconds = max_seconds
        self._max_tokens = max_tokens
        self._clock = clock
        self._started: float | None = None

    def start(self) -> None:
        """Start the clock. Raises RuntimeError the second time: an episode is one run."""
        if self._started is not None:
            raise RuntimeError("an episode can be run once")
        self._started = self._clock()

    def count(self, context: Sequence[Message], reply: Generation) -> Usage:
        """Take a turn into account."""
        views = views_of(context)
        pixels = sum(view.pixels for view in views)
        self.tokens += (reply.prompt_tokens + reply.completion_tokens) or _estimate(context, reply, pixels)
        return Usage(
            step=self.step,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            seconds=reply.seconds,
            images=len(views),
            image_pixels=pixels,
            image_bytes=sum(len(view.jpeg()) for view in views),
        )

    def spent(self) -> EndReason | None:
        """Which budget is used up, if one is."""
        if self._max_seconds is not None and self._clock() - (self._started or 0.0) >= self._max_seconds:
            return "time"
        return "tokens" if self._max_tokens is not None and self.tokens >= self._max_tokens else None

    def no_answer(self, spent: EndReason | None) -> str:
        """The sentence for a run that ends without an answer."""
        if spent == "time":
            return f"There was no answer within {self._max_seconds} seconds; allow more time."
        if spent == "tokens":
            return f"There was no answer within {self._max_tokens} tokens; allow more tokens."
        return f"The model gave no answer in {self.step} turns, not even when it was asked to."


def said(reply: Generation) -> str:
    """The reply; or the reasoning, where a server took all of it for that (it does when ``</think>`` is missing)."""
    return reply.text if reply.text.strip() else reply.reasoning


def kept_reply(reply: Generation) -> str:
    """The reply as the next prompt holds it: word for word, but for what could break that prompt.

    That is forged chat markers, characters that cannot be encoded, and sheer length: of a text that is too long, the
    beginning and the end stay.
    """
    text = clean(reply.text)
    half = MAX_REPLY_CHARS // 2
    return (text if len(text) <= MAX_REPLY_CHARS else f"{text[:half]}\n[...]\n{text[-half:]}") or "(empty)"


def _estimate(context: Sequence[Message], reply: Generation, pixels: int) -> int:
    """Roughly how many tokens a turn took."""
    characters = sum(len(turn.text) for turn in context) + len(reply.text) + len(reply.reasoning)
    return characters // _CHARS_PER_TOKEN + pixels // _PIXELS_PER_TOKEN
