"""A policy whose turns somebody else decides: demonstrations, and rollouts without a model.

model = ScriptedModel(template, ["<search>red fox</search>", "<answer>3</answer>"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from PIL import Image

from vrag.errors import ModelError
from vrag_agent.driver import Sampled, Sampling
from vrag_agent.template import ChatTemplate

#: A turn as text, which is then closed; or as ids, which are taken as they are.
Turn = str | Sequence[int]


class ScriptedModel:
    """A :class:`vrag_agent.driver.TokenModel` for one trajectory: the turns in order, or a function that is asked for each.

    A script that has ended is a ModelError.
    """

    def __init__(self, template: ChatTemplate, turns: Iterable[Turn] | Callable[[], Turn]) -> None:
        self._template = template
        script: Iterator[Turn] = iter(()) if callable(turns) else iter(turns)
        self._next: Callable[[], Turn | None] = turns if callable(turns) else lambda: next(script, None)

    async def generate(
        self,
        prompt_ids: list[int],
        images: list[Image.Image],
        *,
        max_tokens: int,
        sampling: Sampling,
        request_id: str = "",
    ) -> Sampled:
        turn = self._next()
        if turn is None:
            raise ModelError("The script of this model has ended.")
        ids = self._template.encode_turn(turn) if isinstance(turn, str) else list(turn)
        if len(ids) > max_tokens:
            return Sampled(ids[:max_tokens], stop_reason="length")
        return Sampled(ids)
