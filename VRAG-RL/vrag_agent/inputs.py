"""Token ids and pictures as the tensors that a Qwen-VL model takes, padded on either side.

No position ids: the model computes its m-RoPE positions from ``mm_token_type_ids``, the grids and the attention mask, for a
padded row as for a single one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from vrag.errors import ConfigError

if TYPE_CHECKING:
    import torch


def model_inputs(
    processor: Any,
    rows: Sequence[tuple[Sequence[int], Sequence[Image.Image]]],
    *,
    padding: Literal["left", "right"],
    device: Any = None,
) -> dict[str, torch.Tensor]:
    """``rows`` of (ids with expanded image tokens, pictures) as ``input_ids``, ``attention_mask``, ``mm_token_type_ids``
    (all B x L) and, where there are pictures, ``pixel_values`` (patches x values) and ``image_grid_thw`` (pictures x 3).

    Raises ConfigError where the image tokens of a row are not those of its pictures.
    """
    import torch

    tokenizer = processor.tokenizer
    image_id = tokenizer.convert_tokens_to_ids(processor.image_token)
    length = max(len(ids) for ids, _ in rows)
    input_ids = torch.full((len(rows), length), tokenizer.pad_token_id, dtype=torch.long)
    attention_mask = torch.zeros((len(rows), length), dtype=torch.long)
    for number, (ids, _) in enumerate(rows):
        place = slice(length - len(ids), length) if padding == "left" else slice(0, len(ids))
        input_ids[number, place] = torch.tensor(ids, dtype=torch.long)
        attention_mask[number, place] = 1
    is_image = input_ids == image_id
    out = {"input_ids": input_ids, "attention_mask": attention_mask, "mm_token_type_ids": is_image.long()}
    images = [image for _, row in rows for image in row]
    expected = [0] * len(rows)
    if images:
        seen = processor.image_processor(images=images, return_tensors="pt")
        out["pixel_values"], out["image_grid_thw"] = seen["pixel_values"], seen["image_grid_thw"]
        tokens = iter((seen["image_grid_thw"].prod(-1) // processor.image_processor.merge_size**2).tolist())
        expected = [sum(next(tokens) for _ in row) for _, row in rows]
    if is_image.sum(-1).tolist() != expected:
        raise ConfigError(f"Rows with {is_image.sum(-1).tolist()} image tokens have pictures of {expected} tokens.")
    return out if device is None else {name: value.to(device) for name, value in out.items()}
