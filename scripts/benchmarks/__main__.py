"""``scripts/bench NAME [options] [--json FILE]``: runs one benchmark, prints its rows as a table, writes its figures."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import scripts.benchmarks
from vrag import __version__
from vrag.errors import VragError


def names() -> list[str]:
    found = (module.name for module in pkgutil.iter_modules(scripts.benchmarks.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def machine() -> dict[str, Any]:
    """What a figure cannot be read without."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "version": __version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "machine": platform.machine(),
        "load": round(os.getloadavg()[0], 2),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as an aligned text table; floats get three decimals."""
    columns = list(dict.fromkeys(key for row in rows for key in row))

    def cell(value: Any) -> str:
        if value is None:
            return "-"
        return f"{value:.3f}" if isinstance(value, float) else str(value)

    lines = [columns, *([cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: scripts/bench NAME [options] [--json FILE]\n")
        for name in names():
            doc = importlib.import_module(f"scripts.benchmarks.{name}").__doc__ or ""
            print(f"  {name:12s} {doc.strip().splitlines()[0] if doc.strip() else ''}")
        return 0
    name = argv[0]
    if name not in names():
        print(f"There is no benchmark {name!r}. There are: {', '.join(names())}.", file=sys.stderr)
        return 2
    module = importlib.import_module(f"scripts.benchmarks.{name}")
    parser = argparse.ArgumentParser(prog=f"scripts/bench {name}", description=module.__doc__)
    module.add_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    args = parser.parse_args(argv[1:])
    try:
        figures = module.run(args)
    except VragError as error:
        print(error, file=sys.stderr)
        return 1
    figures = {"benchmark": name, "machine": machine(), **figures}
    print(table(figures["rows"]))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
