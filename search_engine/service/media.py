"""The bytes of an item's image and of its thumbnail. Blocking: meant for a worker thread."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from search_engine import video
from vrag.errors import MediaError
from vrag.items import Item
from vrag.pages import open_page, view_of

JPEG_QUALITY = 80


@dataclass(frozen=True, slots=True)
class Media:
    content: bytes
    media_type: str
    etag: str


def media_type(head: bytes) -> str:
    """The type of an image by its first bytes; never one that a browser would run."""
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif"
    if head[:2] == b"BM":
        return "image/bmp"
    if head[:4] in (b"II*\x00", b"MM\x00*"):
        return "image/tiff"
    return "application/octet-stream"


def read(path: Path) -> Media:
    """The stored file. Raises :class:`OSError` when it cannot be read."""
    content = path.read_bytes()
    return Media(content, media_type(content[:16]), f'"{hashlib.sha256(content).hexdigest()[:32]}"')


class Thumbnails:
    """Small JPEGs of images, the most recently used kept in memory up to ``capacity`` bytes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[tuple[str, int], Media] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def of(self, image: Media, item: Item, side: int) -> Media:
        """``image`` with its longer side at most ``side`` pixels.

        Raises :class:`vrag.errors.MediaError` when it is no usable image, or one beyond the limits.
        """
        return self._kept_or(image.etag, side, lambda: shrink(image.content, item, side))

    def of_clip(self, clip: Path, side: int) -> Media:
        """The frame in the middle of a clip, at that size.

        Raises :class:`vrag.errors.MediaError` when it cannot be decoded, :class:`vrag.errors.ConfigError` without PyAV.
        """
        try:
            stat = clip.stat()
        except OSError as error:
            raise MediaError(f"{clip.name} cannot be read: {error.strerror}") from error
        version = hashlib.sha256(f"{clip}\0{stat.st_size}\0{stat.st_mtime_ns}".encode("utf-8", "replace")).hexdigest()
        return self._kept_or(
            f'"{version[:32]}"',
            side,
            lambda: video.thumbnail(clip, video.probe(clip).duration / 2, side, JPEG_QUALITY),
        )

    def _kept_or(self, etag: str, side: int, make: Callable[[], bytes]) -> Media:
        key = (etag, side)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        content = make()
        made = Media(content, "image/jpeg", f'"{etag.strip(chr(34))}-{side}"')
        with self._lock:
            if key not in self._kept and len(content) <= self._capacity:
                self._kept[key] = made
                self._size += len(content)
            while self._size > self._capacity:
                self._size -= len(self._kept.popitem(last=False)[1].content)
        return made


def shrink(image: bytes, item: Item, side: int) -> bytes:
    """A JPEG of the whole image, upright, its longer side at most ``side`` pixels; never enlarged."""
    page = open_page(image, item)
    width, height = page.size
    scale = min(1.0, side / max(width, height))
    return view_of(page, None, 1, max(1, int(width * scale) * int(height * scale)), quality=JPEG_QUALITY).data
