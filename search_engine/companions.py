"""Files that belong to another one and are no documents of their own. Only names are looked at here."""

from __future__ import annotations

from pathlib import Path

#: Where the records of page images lie, beside the images. Hidden, so that no folder is indexed with them.
RECORDS = ".pages"
#: Transcripts by suffix, best first: the first two say when each line is spoken.
TRANSCRIPTS = (".srt", ".vtt", ".txt")
TIMED = TRANSCRIPTS[:2]


def record_path(image: Path) -> Path | None:
    """Where the record of a page image ``report_3.jpg`` is looked for: ``.pages/report/3.json``; None for other names."""
    name, _, page = image.stem.rpartition("_")
    if not (name and page.isascii() and page.isdigit()):
        return None
    return image.parent / RECORDS / name / f"{page}.json"


def transcript_of(video: Path) -> Path | None:
    """The transcript beside a video: the same name with another suffix."""
    candidates = (video.with_suffix(cased) for suffix in TRANSCRIPTS for cased in (suffix, suffix.upper()))
    return next((path for path in candidates if path.is_file()), None)
