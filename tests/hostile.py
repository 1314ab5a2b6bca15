"""Real files for tests, made on the spot: good ones whose content is known, and hostile ones.

Every factory writes one file and returns its path.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pymupdf
from PIL import Image, ImageDraw, ImageFont


def pdf(path: Path, pages: Sequence[str], size: tuple[float, float] = (300, 200), font: str = "helv") -> Path:
    """A PDF with one line of text on each page, its baseline starting at (40, 60) points."""
    with pymupdf.open() as document:
        for text in pages:
            page = document.new_page(width=size[0], height=size[1])
            page.insert_text((40, 60), text, fontsize=16, fontname=font)
        document.save(path)
    return path


def scanned_pdf(path: Path, text: str, hidden: str | None = None) -> Path:
    """A page that is only a picture of ``text``; ``hidden`` lies under it as an invisible text layer."""
    picture = path.with_suffix(".scan.png")
    image_of(picture, text, (800, 300))
    with pymupdf.open() as document:
        page = document.new_page(width=400, height=150)
        page.insert_image(page.rect, filename=str(picture))
        if hidden:
            page.insert_text((20, 75), hidden, fontsize=16, render_mode=3)
        document.save(path)
    picture.unlink()
    return path


def encrypted_pdf(path: Path) -> Path:
    with pymupdf.open() as document:
        document.new_page().insert_text((72, 72), "secret")
        document.save(path, encryption=pymupdf.PDF_ENCRYPT_AES_256, owner_pw="owner", user_pw="user")
    return path


def pdf_of_objects(path: Path, objects: Sequence[bytes]) -> Path:
    """A PDF of the given objects, numbered from 1; the first is the catalogue."""
    body = b"%PDF-1.7\n"
    offsets = []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start = len(body)
    body += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    body += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    body += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    path.write_bytes(body)
    return path


def empty_pdf(path: Path) -> Path:
    """A well-formed PDF without any page."""
    return pdf_of_objects(path, [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [] /Count 0 >>"])


def half_broken_pdf(path: Path) -> Path:
    """Three pages; the second is a branch of the page tree that contains itself."""
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 100] >>"
    return pdf_of_objects(
        path,
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R 4 0 R 5 0 R] /Count 3 >>",
            page,
            b"<< /Type /Pages /Parent 2 0 R /Kids [4 0 R] /Count 1 >>",
            page,
        ],
    )


def endless_pdf(path: Path, good_pages_before: int = 0, good_pages_behind: int = 0) -> Path:
    """A tiny PDF with one page that takes years to draw: forms that draw each other ten times, twelve levels deep."""
    levels = 12
    good, endless = b"<< /Length 22 >>\nstream\n0 0 20 20 re f 1 0 0 rg\nendstream", 5
    sheet = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 100] /Contents %d 0 R /Resources %s >>"
    forms = []
    for level in range(levels):
        draw = b"/F Do " * 10 if level < levels - 1 else b"0 0 20 20 re f"
        inner = b"/XObject << /F %d 0 R >>" % (endless + level + 1) if level < levels - 1 else b""
        forms.append(
            b"<< /Type /XObject /Subtype /Form /BBox [0 0 200 100] /Resources << %s >> /Length %d >>\nstream\n%s\nendstream"
            % (inner, len(draw), draw)
        )
    pages = [sheet % (3, b"<< >>")] * good_pages_before
    pages += [sheet % (4, b"<< /XObject << /F %d 0 R >> >>" % endless)]
    pages += [sheet % (3, b"<< >>")] * good_pages_behind
    first = endless + levels
    kids = b" ".join(b"%d 0 R" % (first + index) for index in range(len(pages)))
    return pdf_of_objects(
        path,
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
            good,
            b"<< /Length 5 >>\nstream\n/F Do\nendstream",
            *forms,
            *pages,
        ],
    )


def bomb_png(path: Path, side: int = 30_000) -> Path:
    """A PNG of some kilobytes that claims ``side`` x ``side`` pixels and holds them, all black."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = bytes(1 + side // 8 + (side % 8 > 0))
    rows = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path


def image_of(path: Path, text: str, size: tuple[int, int] = (600, 160), mode: str = "RGB", **save: object) -> Path:
    """A white picture with ``text`` in black, its top left corner at (40, 50), 40 pixels high."""
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).text((40, 50), text, fill="black", font=ImageFont.load_default(40))
    (image if mode == "RGB" else image.convert(mode)).save(path, **save)
    return path
