"""Draws metrics of training runs over their steps: a panel per metric, a colour per label, a thin line per run and their mean.

    scripts/plot_runs.py GRPO=runs/seed0/verl_grpo GRPO=runs/seed1/verl_grpo GGPO=runs/seed0/verl_ggpo --output curves.svg

Needs matplotlib (``pip install matplotlib``); training itself does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vrag.errors import ConfigError, VragError
from vrag_agent.metrics_log import read_metrics, series

Curve = list[tuple[int, float]]

METRICS = ("val-core/*/mean@1=held-out questions, greedy", "reward/total=training questions, sampled")
_COLOURS = ("#2a6fbb", "#d9722b", "#3f8f4f", "#8a4fa3", "#7a7a7a")


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        runs: dict[str, list[Path]] = {}
        for one in options.runs:
            label, sign, folder = one.rpartition("=")
            runs.setdefault(label if sign else Path(folder).name, []).append(Path(folder))
        metrics = [one.partition("=") for one in options.metric or METRICS]
        panels = {title or name: _curves(runs, name) for name, _, title in metrics}
        draw(panels, options.output, options.title)
    except VragError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument(
        "runs",
        nargs="+",
        metavar="LABEL=RUN",
        help="the folder of a run (metrics_*.jsonl) or a log of the plain trainer; a label may repeat",
    )
    out.add_argument("--output", type=Path, required=True, help="the picture: .svg, .png or .pdf")
    out.add_argument("--metric", action="append", metavar="NAME[=TITLE]", help=f"default: {', '.join(METRICS)}")
    out.add_argument("--title", default="")
    return out


def _curves(runs: Mapping[str, Sequence[Path]], name: str) -> dict[str, list[Curve]]:
    found: dict[str, list[Curve]] = {}
    for label, folders in runs.items():
        for folder in folders:
            curve = series(read_metrics(folder), name)
            if not curve:
                raise ConfigError(
                    f"{folder} has no metric {name!r}: is it the folder of a run (metrics_*.jsonl), or a log?"
                )
            found.setdefault(label, []).append(curve)
    return found


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over runs at every step that all of them have."""
    values = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(one) for one in values)))
    return [(step, sum(one[step] for one in values) / len(values)) for step in steps]


def draw(panels: Mapping[str, Mapping[str, Sequence[Curve]]], output: Path, title: str) -> None:
    """Write the picture. Raises ConfigError without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("Drawing needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "vrag", "svg.fonttype": "none", "font.size": 10})
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.1), sharey=True, squeeze=False)
    for axis, (name, curves) in zip(axes[0], panels.items(), strict=True):
        _panel(axis, name, curves)
    axes[0][0].set_ylabel("reward")
    axes[0][-1].legend(frameon=False, loc="lower right")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.tight_layout()
    output.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if output.suffix == ".svg" else None
    figure.savefig(output, dpi=150, metadata=metadata)
    pyplot.close(figure)


def _panel(axis: Any, name: str, curves: Mapping[str, Sequence[Curve]]) -> None:
    for (label, runs), colour in zip(curves.items(), _COLOURS * len(curves), strict=False):
        for curve in runs:
            axis.plot(*zip(*curve, strict=True), color=colour, linewidth=0.8, alpha=0.4)
        mean = mean_curve(runs)
        if mean:
            text = label if len(runs) == 1 else f"{label} (mean of {len(runs)})"
            axis.plot(*zip(*mean, strict=True), color=colour, linewidth=2, label=text)
    axis.set_title(name, loc="left", fontsize=10)
    axis.set_xlabel("step")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_ylim(0, 1.02)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
