"""Frames of a clip as JPEGs. Blocking: meant for a worker thread."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from search_engine import video
from search_engine.service.wire import ClipFrame
from vrag.pages import encode_jpeg, shown_size


def sampled(path: Path, fps: float, max_frames: int, max_pixels: int) -> list[ClipFrame]:
    """Frames at about ``fps`` a second, spread evenly over the clip. Raises MediaError, or ConfigError without PyAV."""
    return _frames(path, video.sample_at_rate(video.probe(path), fps, max_frames), max_pixels)


def at_times(path: Path, seconds: Sequence[float], max_pixels: int) -> list[ClipFrame]:
    """The frames on the screen at these times, each once, in the order of time."""
    info = video.probe(path)
    return _frames(path, [info.index_at(moment) for moment in seconds], max_pixels)


def _frames(path: Path, indexes: Sequence[int], max_pixels: int) -> list[ClipFrame]:
    info = video.probe(path)
    out: list[ClipFrame] = []
    for index, frame in video.read_frames(path, indexes):
        picture = Image.fromarray(frame)
        size = shown_size(picture.size, 1, max_pixels)
        small = picture if size == picture.size else picture.resize(size, Image.Resampling.BICUBIC)
        out.append(ClipFrame(t=info.time_of(index), image=base64.b64encode(encode_jpeg(small)).decode("ascii")))
    return out
