"""The metrics that a run through verl leaves beside its checkpoints: one line of JSON a step, one file per start."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

from vrag.errors import ConfigError


def read_metrics(folder: Path) -> dict[int, dict[str, float]]:
    """The metrics of every step, by step; the latest start's where a step was done twice.

    Raises ConfigError for a file that holds something else. A last line that was being written is left out.
    """
    by_step: dict[int, dict[str, float]] = {}
    for path in sorted(folder.glob("metrics_*.jsonl")):
        lines = path.read_text("utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            entry = _entry(line)
            if entry is not None:
                by_step[entry[0]] = entry[1]
            elif number < len(lines):
                raise ConfigError(f"{path}, line {number}, is not a line of metrics.")
    return dict(sorted(by_step.items()))


def _entry(line: str) -> tuple[int, dict[str, float]] | None:
    try:
        entry = json.loads(line)
        return int(entry["step"]), dict(entry["data"])
    except (ValueError, KeyError, TypeError):
        return None


def series(metrics: dict[int, dict[str, float]], name: str) -> list[tuple[int, float]]:
    """(step, value) of a metric where it was measured. A ``*`` in ``name`` stands for any part of a name."""
    found = []
    for step, values in metrics.items():
        hits = [value for key, value in values.items() if fnmatchcase(key, name)]
        if hits:
            found.append((step, float(hits[0])))
    return found
