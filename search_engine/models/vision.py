"""From pictures and clips to the patches that Qwen's vision towers read, and the packing of inputs into batches.

Pixel for pixel what ``qwen-vl-utils`` and the checkpoints' own processors compute, with Pillow and torch alone (no torchvision).
A picture is looked at twice: its header says how many visual tokens it will take, so that batches can be planned; its pixels
are decoded when its batch is due.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from search_engine.models.resizing import Area, ImageSource, open_image, rgb_at, smart_resize
from search_engine.video import VideoInfo, probe, read_frames
from vrag.errors import MediaError

#: Patches are merged two by two, and frames are taken in pairs: 2 x 2 patches of 2 frames make one visual token.
MERGE = 2
PAIR = 2


@dataclass(frozen=True, slots=True)
class Sampling:
    """How many frames of a clip are looked at: ``fps`` a second, at least ``least`` and at most ``most`` (which wins)."""

    fps: float
    least: int
    most: int

    def count(self, info: VideoInfo) -> int:
        """An even number, never more than there are; a clip of a single frame shows it twice."""
        least, most = math.ceil(self.least / PAIR) * PAIR, math.floor(self.most / PAIR) * PAIR
        count = min(max(info.frames / info.fps * self.fps, least), most, info.frames)
        return max(PAIR, math.floor(count / PAIR) * PAIR)


@dataclass(frozen=True, slots=True)
class Visual:
    """A picture or a clip, planned but not decoded.

    ``grid`` counts patches: (pairs of frames, rows, columns). ``load()`` gives them as ``(pairs * rows * columns, values)`` of
    uint8, in the order in which 2 x 2 neighbours follow each other. ``times`` are the seconds of the pairs of a clip, and
    ``sampled_fps`` how many of its frames a second are seen.
    """

    grid: tuple[int, int, int]
    load: Callable[[], torch.Tensor] = field(repr=False)
    times: tuple[float, ...] = ()
    sampled_fps: float = 0.0

    @property
    def tokens(self) -> int:
        return self.grid[0] * self.tokens_per_pair

    @property
    def tokens_per_pair(self) -> int:
        return self.grid[1] * self.grid[2] // MERGE**2


def plan_image(source: ImageSource, patch: int, areas: Sequence[Area]) -> Visual:
    """A still picture, resized to each of ``areas`` in turn (GVE resizes twice). It fills both frames of its pair."""
    factor = patch * MERGE
    opened = open_image(source)
    sizes = []
    size = opened.size
    for area in areas:
        size = smart_resize(*size, factor, area)
        sizes.append(size)
    if opened is not source:
        opened.close()

    def load() -> torch.Tensor:
        return patchify(_pixels(rgb_at(source, sizes))[None], patch)

    return Visual((1, size[1] // patch, size[0] // patch), load)


def plan_clip(path: Path | str, patch: int, sampling: Sampling, area_of: Callable[[int], Area]) -> Visual:
    """A video file, sampled evenly; ``area_of(frames)`` gives the limits of one frame when so many are shown."""
    path = Path(path)
    info = probe(path)
    count = sampling.count(info)
    # torch's float32 linspace, because its rounding decides which frame is taken.
    indexes = torch.linspace(0, info.frames - 1, count).round().long().tolist()
    size = smart_resize(info.width, info.height, patch * MERGE, area_of(count))

    def load() -> torch.Tensor:
        frames = {
            index: _resize_frame(torch.from_numpy(frame).permute(2, 0, 1), size)
            for index, frame in read_frames(path, indexes)
        }
        return patchify(torch.stack([frames[index] for index in indexes]), patch)

    return Visual(
        (count // PAIR, size[1] // patch, size[0] // patch),
        load,
        _pair_times([index / info.fps for index in indexes]),
        count / info.frames * info.fps,
    )


def plan_frames(
    sources: Sequence[ImageSource], patch: int, first: Area, most_frames: int, area_of: Callable[[int], Area]
) -> Visual:
    """A clip given as pictures, taken to be two frames a second; more than ``most_frames`` are thinned out evenly.

    As ``qwen-vl-utils`` does it: every frame is first resized on its own (limits ``first``, sides a multiple of *twice* the usual
    factor), then all are resized together. Frames of other shapes than the first take on its size.
    """
    if not sources:
        raise MediaError("a clip needs at least one frame.")
    if len(sources) > most_frames:
        sources = [sources[i] for i in np.linspace(0, len(sources) - 1, most_frames, dtype=int)]
    factor = patch * MERGE
    opened = open_image(sources[0])
    still = smart_resize(*opened.size, factor * 2, first)
    if opened is not sources[0]:
        opened.close()
    count = math.ceil(len(sources) / PAIR) * PAIR
    size = smart_resize(*still, factor, area_of(count))

    def load() -> torch.Tensor:
        frames = [_resize_frame(_pixels(rgb_at(source, [still])), size) for source in sources]
        return patchify(torch.stack(frames + frames[-1:] * (count - len(frames))), patch)

    rate = 2.0
    times = _pair_times([index / rate for index in range(count)])
    return Visual((count // PAIR, size[1] // patch, size[0] // patch), load, times, rate)


def patchify(frames: torch.Tensor, patch: int) -> torch.Tensor:
    """``(frames, 3, height, width)`` uint8 to ``(patches, 3 * 2 * patch * patch)``; a single frame is shown twice."""
    if frames.shape[0] % PAIR:
        frames = torch.cat([frames, frames[-1:]])
    count, channels, height, width = frames.shape
    pairs, rows, columns = count // PAIR, height // patch, width // patch
    split = frames.reshape(pairs, PAIR, channels, rows // MERGE, MERGE, patch, columns // MERGE, MERGE, patch)
    ordered = split.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(pairs * rows * columns, channels * PAIR * patch * patch)


def normalised(patches: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """uint8 patches as the vision tower expects them: 0..1, less the mean, over the deviation of each colour; float32."""
    repeats = patches.shape[1] // len(mean)
    centre = torch.tensor(mean, device=patches.device).repeat_interleave(repeats)
    spread = torch.tensor(std, device=patches.device).repeat_interleave(repeats)
    return (patches.float() / 255 - centre) / spread


def plan_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Pack inputs of ``lengths`` tokens into batches of at most ``budget`` tokens, padding counted.

    Longest first, so that neighbours are alike and little is padded, and what does not fit into memory shows at once. An input
    longer than the budget is a batch of its own.
    """
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not batches or room < 1:
            batches.append([])
            room = max(1, budget // max(1, lengths[index]))
        batches[-1].append(index)
        room -= 1
    return batches


def _pair_times(times: Sequence[float]) -> tuple[float, ...]:
    return tuple((times[i] + times[i + 1]) / 2 for i in range(0, len(times), PAIR))


def _pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def _resize_frame(frame: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """``(3, height, width)`` uint8, bicubic with antialiasing: bit for bit torchvision's ``resize``."""
    if (frame.shape[2], frame.shape[1]) == size:
        return frame
    resized = F.interpolate(frame[None].float(), size=size[::-1], mode="bicubic", antialias=True)
    return resized[0].clamp(0, 255).round().to(torch.uint8)
