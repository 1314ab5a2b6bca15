"""The metrics that a run leaves, one line of JSON a step: through verl beside its checkpoints, one file per start; of the plain trainer,
one file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vrag.errors import ConfigError


def read_metrics(path: Path) -> dict[int, dict[str, float]]:
    """The metrics of every step, by step; the latest start's where a step was done twice. ``path``: the folder of a run
    (metrics_*.jsonl), or a file.

    Raises ConfigError for a file that holds something else. A last line that was being written is left out.
    """
    by_step: dict[int, dict[str, float]] = {}
    for file in [path] if path.is_file() else sorted(path.glob("metrics_*.jsonl")):
        lines = file.read_text("utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            entry = _entry(line)
            if entry is not None:
                by_step[entry[0]] = entry[1]
            elif number < len(lines):
                raise ConfigError(f"{file}, line {number}, is not a line of metrics.")
    return dict(sorted(by_step.items()))


def _entry(line: str) -> tuple[int, dict[str, float]] | None:
    try:
        entry = json.loads(line)
        return int(entry["step"]), dict(_flat(entry.get("data", entry)))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}/")
        elif isinstance(value, int | float):
            yield f"{before}{name}", float(value)


def series(metrics: dict[int, dict[str, float]], name: str) -> list[tuple[int, float]]:
    """(step, value) of a metric where it was measured. A ``*`` in ``name`` stands for any part of a name."""
    found = []
    for step, values in metrics.items():
        hits = [value for key, value in values.items() if fnmatchcase(key, name)]
        if hits:
            found.append((step, hits[0]))
    return found
