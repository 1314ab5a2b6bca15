"""What an index is, and whether every one of its files is the one that was written."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from search_engine.derived_index import inspect
from search_engine.index_records import FileSum, Manifest
from search_engine.index_source import open_index
from search_engine.index_store import StoredIndex, check_file, read_manifest
from search_engine.published_index import is_published
from search_engine.vector_advice import advice
from vrag.errors import IndexCorrupt


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """``damage``: a sentence for every file that is missing, truncated or altered. What is in an index is known only
    when its own files are sound: then ``documents`` are its items by the path of their file."""

    index: str
    layout: str
    name: str
    model: dict[str, Any]
    segments: int
    bytes: int
    items: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    removed_items: int = 0
    vectors: dict[str, Any] = field(default_factory=dict)
    derived: list[dict[str, Any]] = field(default_factory=list)
    documents: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(index: Path) -> IndexInfo:
    """Read an index through, sums and all.

    Raises :class:`IndexCorrupt` when not even its manifest can be read (or, for a published index, one of its files),
    :class:`IndexMismatch` when it is of a newer format.
    """
    index = Path(index)
    if is_published(index):
        return _sound(open_index(index), "published")
    try:
        return _sound(open_index(index), "segments")
    except IndexCorrupt as error:
        manifest = read_manifest(index)
        damage = _damage(index, manifest) or [str(error)]
        return IndexInfo(damage=damage, **_facts(index, manifest, "segments"))


def _sound(stored: StoredIndex, layout: str) -> IndexInfo:
    manifest = stored.manifest
    kinds: Counter[str] = Counter()
    documents: dict[str, int] = {}
    problems: list[str] = []
    present = total = 0
    for segment in stored.segments:
        kinds.update(segment.items[row].item.kind for row in map(int, np.flatnonzero(segment.alive)))
        present += int((np.any(segment.vectors, axis=1) & segment.alive).sum())
        total += len(segment.items)
        for row, record in enumerate(segment.sources):
            if row not in segment.segment.removed:
                documents[record.path] = documents.get(record.path, 0) + record.items
                problems += [f"{record.key}: {reason}" for reason in record.problems]
    states = inspect(stored.path, manifest.segments)
    derived = [
        {
            "kind": state.kind,
            "state": "damaged" if state.damage else "outdated" if state.record is None else "usable",
            "recipe": None if state.record is None else state.record.recipe,
            "vectors": 0 if state.record is None else state.record.rows,
            "bytes": 0 if state.record is None else state.record.sum.size,
            "segments_behind": state.behind,
        }
        for state in states
    ]
    precisions = sorted({str(segment.vectors.dtype) for segment in stored.segments})
    return IndexInfo(
        **_facts(stored.path, manifest, layout),
        items=kinds.total(),
        kinds=dict(sorted(kinds.items())),
        removed_items=total - kinds.total(),
        vectors={"count": present, "stored": precisions, "advice": advice(present, manifest.model.dimension)},
        derived=derived,
        documents=documents,
        problems=problems,
        damage=[state.damage for state in states if state.damage],
    )


def _facts(index: Path, manifest: Manifest, layout: str) -> dict[str, Any]:
    return {
        "index": str(index),
        "layout": layout,
        "name": manifest.name,
        "model": manifest.model.model_dump(),
        "segments": len(manifest.segments),
        "bytes": sum(file.size for segment in manifest.segments for file in segment.files.values()),
    }


def _damage(index: Path, manifest: Manifest) -> list[str]:
    found = (
        _problem(index / "segments" / segment.name / name, expected)
        for segment in manifest.segments
        for name, expected in segment.files.items()
    )
    return [problem for problem in found if problem is not None]


def _problem(path: Path, expected: FileSum) -> str | None:
    try:
        check_file(path, expected)
    except IndexCorrupt as error:
        return str(error)
    return None


def sentences(info: IndexInfo) -> list[str]:
    """The same for a reader."""
    model = info.model
    lines = [
        f"{info.name}: {info.items:,} items of {len(info.documents):,} files"
        + (f" ({', '.join(f'{count:,} {kind}' for kind, count in info.kinds.items())})" if info.kinds else ""),
        f"Model {model['name']}, {model['dimension']} dimensions; {model['fingerprint']}",
        f"{info.segments} segments, {info.bytes / 1e6:,.1f} MB, {info.removed_items:,} removed items waiting for compaction."
        + ("" if info.layout == "segments" else " Built by the published code."),
    ]
    if info.vectors.get("count"):
        lines.append(
            f"{info.vectors['count']:,} vectors, stored as {', '.join(info.vectors['stored'])}. {info.vectors['advice']}"
        )
    for derived in info.derived:
        behind = f", {derived['segments_behind']} segments behind" if derived["segments_behind"] else ""
        size = (
            f", {derived['recipe']}, {derived['vectors']:,} vectors, {derived['bytes'] / 1e6:,.1f} MB"
            if derived["recipe"]
            else ""
        )
        lines.append(f"Derived: {derived['kind']} is {derived['state']}{size}{behind}")
    if not info.damage:
        lines.append(
            "All sums are right." if info.layout == "segments" else "Its files fit together; it keeps no sums."
        )
    return lines
