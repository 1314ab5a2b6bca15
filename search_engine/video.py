"""Video files: what is in them, exact frames by number or time, thumbnails. Decoding by PyAV (FFmpeg inside its wheel).

A frame is named by its index in the order of presentation, from 0; its time is ``index / fps``, as the embedding models and
the timestamps shown to a reader count it. Rotation that a phone stores beside the picture is applied.

Only the frames asked for are turned into pixels, and a keyframe that lies between two of them is jumped to, so reading eight
frames of an hour takes about as long as reading eight frames of a minute.
"""

from __future__ import annotations

import io
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vrag.errors import ConfigError, MediaError

#: Frames larger than this are refused before any is decoded (8K has 33 million pixels).
MAX_FRAME_PIXELS = 2**26
THUMBNAIL_SIDE = 320

Frame = NDArray[np.uint8]
"""``(height, width, 3)``, RGB."""


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What a file holds: frames and their rate (frames per second), size in pixels as displayed, duration in seconds."""

    frames: int
    fps: float
    width: int
    height: int

    @property
    def duration(self) -> float:
        return self.frames / self.fps

    def time_of(self, index: int) -> float:
        """When frame ``index`` is shown, in seconds from the start."""
        return index / self.fps

    def index_at(self, seconds: float) -> int:
        """The frame on the screen at ``seconds``; before the start the first one, after the end the last."""
        if not math.isfinite(seconds):
            raise MediaError(f"{seconds} is not a time in the video; give seconds between 0 and {self.duration:.1f}.")
        return min(max(int(seconds * self.fps + 1e-6), 0), self.frames - 1)


@dataclass(frozen=True, slots=True)
class _Scan:
    """A pass over the packets, nothing decoded. ``times`` (stream ticks, ascending) is empty where packets carry none."""

    info: VideoInfo
    rotation: int
    times: tuple[int, ...] = field(repr=False)
    keyframes: tuple[int, ...] = field(repr=False)


def probe(path: Path) -> VideoInfo:
    """Count the frames of the first video stream and read its rate and size. Raises MediaError when there is none."""
    return _scan(path).info


def read_frames(path: Path, indexes: Sequence[int]) -> Iterator[tuple[int, Frame]]:
    """The frames at ``indexes`` (any order, repeats allowed), yielded once each as ``(index, frame)`` in rising order.

    Where the tail of a file cannot be decoded, the last frame that can stands in for those that cannot. Raises MediaError
    when an index lies outside the video or nothing can be decoded.
    """
    scan = _scan(path)
    wanted = sorted(set(indexes))
    if not wanted:
        return
    if wanted[0] < 0 or wanted[-1] >= scan.info.frames:
        raise MediaError(f"{path.name} has {scan.info.frames} frames; there is no frame {wanted[-1]}.")
    found = 0
    last: Frame | None = None
    with _opened(path) as container:
        decoded = _decoded_at(container, scan, wanted) if scan.times else _decoded_in_order(container, wanted)
        for index, picture in decoded:
            last = _upright(picture, scan.rotation)
            yield index, last
            found += 1
    if last is None:
        raise MediaError(f"{path.name} holds no frame that can be decoded.")
    for index in wanted[found:]:
        yield index, last


def frame_at(path: Path, seconds: float) -> Image.Image:
    """The picture on the screen at ``seconds``."""
    _, frame = next(read_frames(path, [probe(path).index_at(seconds)]))
    return Image.fromarray(frame)


def sample_indexes(frames: int, count: int) -> list[int]:
    """``count`` frame numbers spread evenly from the first to the last of ``frames``."""
    return [int(index) for index in np.linspace(0, frames - 1, max(1, min(count, frames))).round()]


def sample_at_rate(info: VideoInfo, per_second: float = 1.0, at_most: int = 64) -> list[int]:
    """Frame numbers at about ``per_second`` frames a second, spread evenly, between 1 and ``at_most`` of them."""
    return sample_indexes(info.frames, min(max(1, int(info.duration * per_second)), at_most))


def thumbnail(path: Path, seconds: float | None = None, side: int = THUMBNAIL_SIDE, quality: int = 80) -> bytes:
    """A JPEG that fits into ``side`` x ``side`` pixels, of the picture at ``seconds`` (default: a third into the clip)."""
    image = frame_at(path, probe(path).duration / 3 if seconds is None else seconds)
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _scan(path: Path) -> _Scan:
    try:
        status = path.stat()
    except OSError as error:
        raise MediaError(f"{path.name} cannot be read: {error.strerror or error}.") from error
    return _scan_cached(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _scan_cached(path: Path, modified: int, size: int) -> _Scan:
    """``modified`` and ``size`` are part of the key: a file that changed is looked at again."""
    with _opened(path) as container:
        stream = container.streams.video[0]
        rate = stream.average_rate or stream.guessed_rate
        width, height = stream.codec_context.width, stream.codec_context.height
        if not rate or rate <= 0 or width <= 0 or height <= 0:
            raise MediaError(f"{path.name} does not say its size or its frame rate; is it a whole video file?")
        if width * height > MAX_FRAME_PIXELS:
            raise MediaError(f"{path.name} has frames of {width} x {height} pixels, more than are decoded here.")
        # Packets marked "discard" (cut away by an edit list) are decoded for reference but never shown.
        packets = [packet for packet in container.demux(stream) if packet.size and not packet.is_discard]
        if not packets:
            raise MediaError(f"{path.name} holds no frames.")
        times = sorted(packet.pts for packet in packets if packet.pts is not None)
        if len(set(times)) < len(packets):
            times = []
        keyframes = sorted(packet.pts for packet in packets if packet.is_keyframe and packet.pts is not None)
    with _opened(path) as container:
        rotation = next((int(picture.rotation) for picture in container.decode(video=0)), None)
    if rotation is None:
        raise MediaError(f"{path.name} holds no frame that can be decoded.")
    if rotation % 180:
        width, height = height, width
    return _Scan(VideoInfo(len(packets), float(rate), width, height), rotation, tuple(times), tuple(keyframes))


def _decoded_at(container: Any, scan: _Scan, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """Decoded frames whose presentation times are those of ``wanted``, jumping to a keyframe in between where one lies."""
    stream = container.streams.video[0]
    reached: int | None = None
    pictures = container.decode(stream)
    for index in wanted:
        target = scan.times[index]
        place = bisect_right(scan.keyframes, target)
        keyframe = scan.keyframes[place - 1] if place else None
        if keyframe is not None and (reached is None or keyframe > reached) and index > 0:
            container.seek(keyframe, stream=stream)
            pictures = container.decode(stream)
        for picture in pictures:
            if picture.pts is None:
                continue
            reached = picture.pts
            if picture.pts >= target:
                yield index, picture
                break
        else:
            return


def _decoded_in_order(container: Any, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """The same for a file without timestamps: count."""
    remaining = iter(wanted)
    target = next(remaining, None)
    for index, picture in enumerate(container.decode(video=0)):
        if index == target:
            yield index, picture
            target = next(remaining, None)
            if target is None:
                return


def _upright(picture: Any, rotation: int) -> Frame:
    frame: Frame = picture.to_ndarray(format="rgb24")
    return np.ascontiguousarray(np.rot90(frame, rotation // 90)) if rotation % 360 else frame


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The container at ``path``; whatever FFmpeg has to complain about becomes a MediaError that names the file."""
    try:
        import av
    except ImportError as error:
        raise ConfigError('Reading video needs PyAV: pip install "vrag[video]".') from error
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise MediaError(f"{path.name} holds no video stream.")
            container.streams.video[0].thread_type = "AUTO"
            yield container
    except av.FFmpegError as error:
        raise MediaError(f"{path.name} cannot be decoded as video: {error.strerror}.") from error
