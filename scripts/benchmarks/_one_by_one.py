"""What a plain script does: open a picture, resize it, build the prompt, run the model, take the next one.

The yardstick of :mod:`scripts.benchmarks.embed`, written against transformers alone and sharing nothing with the embedders of
this project but the checkpoint, so that its vectors check theirs. Pictures and texts of Qwen3-VL-Embedding.
"""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

SYSTEM = "Represent the user's input."
PATCH, SIDE = 16, 32
#: The ids stand for the vision tokens in the prompt; 32 x 32 pixels make one.
IMAGE, START, END = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"


class OneByOne:
    """Embeds one item at a time. ``limits``: visual tokens of a picture, at least and at most."""

    def __init__(self, path: str, dtype: Any, device: Any, limits: tuple[int, int]) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoModel

        self.model = AutoModel.from_pretrained(path, dtype=dtype).to(device).eval()
        self.tokenizer = Tokenizer.from_file(str(Path(path) / "tokenizer.json"))
        self.device, self.limits = device, limits
        self.takes_kinds = "mm_token_type_ids" in inspect.signature(self.model.forward).parameters

    def image(self, path: Path) -> Any:
        import numpy as np
        import torch
        from PIL import Image

        with Image.open(path) as opened:
            picture = opened.convert("RGB")
        width, height = self._size(*picture.size)
        pixels = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), np.float32) / 127.5 - 1
        # Two by two patches follow each other; a still picture is both frames of its pair.
        rows, columns = height // SIDE, width // SIDE
        blocks = pixels.reshape(rows, 2, PATCH, columns, 2, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
        patches = np.repeat(blocks.reshape(rows * columns * 4, 3, 1, PATCH, PATCH), 2, axis=2)
        inputs = {
            "pixel_values": torch.from_numpy(patches.reshape(len(patches), -1)).to(self.device),
            "image_grid_thw": torch.tensor([[1, height // PATCH, width // PATCH]], device=self.device),
        }
        return self._vector(START + IMAGE * (rows * columns) + END, inputs)

    def text(self, text: str) -> Any:
        return self._vector(text, {})

    def _size(self, width: int, height: int) -> tuple[int, int]:
        least, most = (tokens * SIDE**2 for tokens in self.limits)
        wide, high = max(SIDE, round(width / SIDE) * SIDE), max(SIDE, round(height / SIDE) * SIDE)
        if wide * high > most:
            shrink = math.sqrt(width * height / most)
            wide, high = (max(SIDE, math.floor(side / shrink / SIDE) * SIDE) for side in (width, height))
        elif wide * high < least:
            grow = math.sqrt(least / (width * height))
            wide, high = (math.ceil(side * grow / SIDE) * SIDE for side in (width, height))
        return wide, high

    def _vector(self, content: str, inputs: dict[str, Any]) -> Any:
        import torch

        prompt = (
            f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
        )
        ids = torch.tensor([self.tokenizer.encode(prompt, add_special_tokens=False).ids], device=self.device)
        if self.takes_kinds:
            inputs["mm_token_type_ids"] = (ids == self.model.config.image_token_id).long()
        with torch.inference_mode():
            states = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **inputs)
        return torch.nn.functional.normalize(states.last_hidden_state[0, -1].float(), dim=-1).cpu().numpy()
