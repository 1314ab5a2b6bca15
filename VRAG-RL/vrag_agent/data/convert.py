"""Published question files -> the Parquet tables of training: ``python VRAG-RL/scripts/hf_dataset_convert.py --help``.

    slidevqa_train=train.jsonl  vidoseek=vidoseek.json@test   ->   overall_train.parquet, overall_test.parquet

One table per split, named by the split that the data itself has. Beside them ``convert_report.json`` says how many rows of
which file were kept, and how many were dropped for which reason; each drop is named with its line on the terminal.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vrag.errors import ConfigError, VragError
from vrag_agent.data import show_progress
from vrag_agent.data.files import write_whole
from vrag_agent.data.formats import FORMATS, Example, is_split, read_examples
from vrag_agent.data.rows import Dropped
from vrag_agent.data.table import write_table

log = logging.getLogger("vrag_agent.convert")

REPORT = "convert_report.json"


@dataclass(frozen=True)
class Source:
    """A file of questions. Empty names are taken from the data itself."""

    path: Path
    data_source: str = ""
    split: str = ""

    @classmethod
    def parse(cls, text: str) -> Source:
        """``[NAME=]PATH[@SPLIT]``, as the command line writes it. Raises ConfigError for a file that is not there."""
        # NAME ends at the first "=", SPLIT begins behind the last "@"; a path that exists as it is written is that path.
        for name, rest in (("", text), text.partition("=")[::2]):
            path, _, split = rest.rpartition("@")
            if Path(rest).is_file():
                return cls(Path(rest), name)
            if is_split(split) and Path(path).is_file():
                return cls(Path(path), name, split)
        raise ConfigError(f"There is no file {rest or text}. A source is written [NAME=]PATH[@SPLIT].")


@dataclass
class Report:
    """What became of every row."""

    rows: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    """By split."""
    sources: Counter[str] = field(default_factory=Counter)
    """By data source."""
    dropped: Counter[str] = field(default_factory=Counter)
    """By reason."""
    without_pages: int = 0
    files: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "kept": dict(self.kept),
            "sources": dict(self.sources),
            "dropped": dict(self.dropped),
            "kept_without_reference_pages": self.without_pages,
            "files": self.files,
        }


def convert(
    sources: Sequence[Source],
    output: Path,
    *,
    form: str = "auto",
    agent_name: str = "vrag",
    require_pages: bool = False,
    prefix: str = "overall",
) -> Report:
    """Write one table per split into ``output``. Raises ConfigError where a file is unusable or nothing is left.

    ``require_pages`` drops questions without a reference page, for a reward that scores the retrieval.
    """
    report = Report()
    kept: dict[str, list[Example]] = {}
    seen: dict[tuple[str, str], str] = {}
    for source in sources:
        for example in read_examples(source.path, source.data_source, source.split, form):
            report.rows += 1
            problem = _problem(example, seen, require_pages)
            if problem is not None:
                log.warning("%s", problem)
                report.dropped[problem.reason] += 1
            elif isinstance(example, Example):
                kept.setdefault(example.split, []).append(example)
                report.kept[example.split] += 1
                report.sources[example.data_source] += 1
                report.without_pages += not example.relevant_ids
    if not kept:
        raise ConfigError(f"Not one of {report.rows} rows can be used: {dict(report.dropped)}.")
    for split, examples in kept.items():
        path = output / f"{prefix}_{split}.parquet"
        write_table(path, examples, agent_name)
        report.files.append(path.name)
    write_whole(output / REPORT, json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n")
    return report


def _problem(row: Example | Dropped, seen: dict[tuple[str, str], str], require_pages: bool) -> Dropped | None:
    if isinstance(row, Dropped):
        return row
    if require_pages and not row.relevant_ids:
        return Dropped(row.place, "no reference page")
    key = (row.data_source, row.id)
    if key in seen:
        return Dropped(row.place, "id used before", f"{row.id!r}, {seen[key]}")
    seen[key] = row.place
    return None


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="hf_dataset_convert.py",
        description="Convert question files (ViDoSeek, SlideVQA, MMLongBench-Doc, plain JSON, JSONL or Parquet) to training tables.",
    )
    out.add_argument(
        "sources",
        nargs="+",
        metavar="[NAME=]PATH[@SPLIT]",
        help="a file; NAME becomes data_source, SPLIT is needed where neither the rows nor the file's name say it",
    )
    out.add_argument("--output", type=Path, required=True, help="folder for overall_<split>.parquet and the report")
    out.add_argument("--format", choices=FORMATS, default="auto", help="of the files (default: told by each row)")
    out.add_argument(
        "--agent-name", default="vrag", help="the agent loop that trains on the rows (default: %(default)s)"
    )
    out.add_argument("--require-pages", action="store_true", help="drop questions without a reference page")
    out.add_argument("--prefix", default="overall", help="of the tables' names (default: %(default)s)")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    show_progress()
    try:
        report = convert(
            [Source.parse(text) for text in args.sources],
            args.output,
            form=args.format,
            agent_name=args.agent_name,
            require_pages=args.require_pages,
            prefix=args.prefix,
        )
    except VragError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n")
    return 0
