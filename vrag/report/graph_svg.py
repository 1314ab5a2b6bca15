"""The memory graph as a drawing: a small layered layout (Sugiyama, Tagawa and Toda, 1981) and SVG without any script.

Every node stands one layer below the lowest of its parents; an edge that skips layers gets a bend in each of them, so
that it goes around the nodes there; a few sweeps put each node near the mean of its neighbours, which undoes most
crossings; then the layers are spread without overlaps.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from vrag.memory_graph import ANSWER, ROOT, MemoryGraph
from vrag.report.model import plain

#: Sizes in the units of the drawing, which are pixels at its natural size.
WIDTH, HEIGHT, GAP, LAYER_GAP, MARGIN = 196, 66, 26, 46, 12
_BEND_WIDTH = 18
_SWEEPS, _ROUNDS = 6, 12
_FONT, _SMALL = 12.5, 11.0

#: Fill, border and text by state.
_COLOURS = {
    "critical_path": ("#fff1e6", "#e85d04", "#7a2f00"),
    "memorised": ("#eef4fb", "#4a78b0", "#1f3a5c"),
    "dead_end": ("#f3f3f4", "#a3a6ad", "#6b6e76"),
    "searching": ("#fff9db", "#c9a400", "#6b5800"),
}
_LEGEND = {
    "critical_path": "critical path",
    "memorised": "memorised",
    "dead_end": "dead end",
    "searching": "not judged",
}
_BEND = "\x00bend"


@dataclass(frozen=True, slots=True)
class Layout:
    """Centres of the nodes (the bends of edges among them), the routes of the edges, and the size of it all."""

    places: dict[str, tuple[float, float]]
    routes: dict[tuple[str, str], tuple[str, ...]]
    """By parent and child: the nodes and bends that the edge passes, both ends included."""
    size: tuple[float, float]


def layout(parents: dict[str, tuple[str, ...]]) -> Layout:
    """Place the nodes of a directed acyclic graph that lists every parent before its children."""
    depth: dict[str, int] = {}
    for name, above in parents.items():
        depth[name] = 1 + max((depth[parent] for parent in above), default=-1)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, layer in depth.items():
        layers[layer].append(name)
    routes: dict[tuple[str, str], tuple[str, ...]] = {}
    up: dict[str, list[str]] = {name: [] for name in parents}
    down: dict[str, list[str]] = {name: [] for name in parents}
    for child, above in parents.items():
        for parent in above:
            bends = [f"{_BEND}\x00{layer}\x00{parent}\x00{child}" for layer in range(depth[parent] + 1, depth[child])]
            routes[parent, child] = route = (parent, *bends, child)
            for layer, bend in enumerate(bends, depth[parent] + 1):
                layers[layer].append(bend)
                up[bend], down[bend] = [], []
            for upper, lower in pairwise(route):
                down[upper].append(lower)
                up[lower].append(upper)
    _order(layers, up, down)
    x = _spread(layers, up, down)
    right = max((x[name] + _width(name) / 2 for layer in layers for name in layer), default=0.0)
    places = {
        name: (x[name] + MARGIN, MARGIN + HEIGHT / 2 + number * (HEIGHT + LAYER_GAP))
        for number, layer in enumerate(layers)
        for name in layer
    }
    height = len(layers) * (HEIGHT + LAYER_GAP) - LAYER_GAP if layers else 0
    return Layout(places, routes, (right + 2 * MARGIN, height + 2 * MARGIN))


def _order(layers: list[list[str]], up: dict[str, list[str]], down: dict[str, list[str]]) -> None:
    """Sort each layer by the mean position of the neighbours in the layer before it, downwards and upwards in turn."""
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        neighbours = up if downwards else down
        order = range(1, len(layers)) if downwards else range(len(layers) - 2, -1, -1)
        for number in order:
            before = {name: at for at, name in enumerate(layers[number - 1 if downwards else number + 1])}
            own = {name: at for at, name in enumerate(layers[number])}
            layers[number].sort(key=lambda name: _mean([before[one] for one in neighbours[name]], own[name]))


def _spread(layers: list[list[str]], up: dict[str, list[str]], down: dict[str, list[str]]) -> dict[str, float]:
    """Centres on the x axis, from 0: near the mean of the neighbours, never overlapping, the order kept."""
    x: dict[str, float] = {}
    for layer in layers:
        at = 0.0
        for name in layer:
            x[name] = at + _width(name) / 2
            at += _width(name) + GAP
    for _ in range(_ROUNDS):
        for order, neighbours in ((layers, up), (layers[::-1], down)):  # under the parents, then above the children
            for layer in order:
                _place(layer, [_mean([x[one] for one in neighbours[name]], x[name]) for name in layer], x)
    left = min((x[name] - _width(name) / 2 for layer in layers for name in layer), default=0.0)
    return {name: at - left for name, at in x.items()}


def _place(layer: list[str], wanted: list[float], x: dict[str, float]) -> None:
    """As near to ``wanted`` as the order and the gaps allow: the mean of packing from the left and from the right."""
    least: list[float] = []
    for name, at in zip(layer, wanted, strict=True):
        if least:
            before = layer[len(least) - 1]
            at = max(at, least[-1] + (_width(before) + _width(name)) / 2 + GAP)
        least.append(at)
    most: list[float] = []
    for name, at in zip(reversed(layer), reversed(wanted), strict=True):
        if most:
            after = layer[len(layer) - len(most)]
            at = min(at, most[-1] - (_width(after) + _width(name)) / 2 - GAP)
        most.append(at)
    for name, low, high in zip(layer, least, reversed(most), strict=True):
        x[name] = (low + high) / 2


def _mean(values: list[float] | list[int], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _width(name: str) -> float:
    return _BEND_WIDTH if name.startswith(_BEND) else WIDTH


def draw(graph: MemoryGraph, label: str = "Memory graph") -> str:
    """The graph as an ``<svg>`` element: the question on top, the answer below, the critical path highlighted."""
    parents = graph.parents()
    if graph.answer_parents is not None:
        parents[ANSWER] = graph.answer_parents or (ROOT,)
    plan = layout(parents)
    states = graph.states()
    path = set(graph.critical_path())
    if graph.answer_parents is not None:
        path.add(ANSWER)
    edges = [
        _edge(plan, route, on_path={parent, child} <= path, dead=states.get(child) == "dead_end")
        for (parent, child), route in sorted(plan.routes.items(), key=lambda one: set(one[0]) <= path)
    ]
    boxes = [_box(plan.places[ROOT], "Question", graph.question, "", states[ROOT], graph.question)]
    for node in graph.nodes.values():
        kept = (
            f"{len(node.memory)} kept" if node.memory else ("nothing kept" if node.summary is not None else "searching")
        )
        about = f"{node.id}\n{node.query}\n{node.summary or ''}".strip()
        boxes.append(_box(plan.places[node.id], node.id, node.query, kept, states[node.id], about))
    if graph.answer_parents is not None:
        boxes.append(_box(plan.places[ANSWER], "Answer", "", "", "critical_path", "Answer"))
    width, height = max(plan.size[0], 440.0), plan.size[1] + 26
    shift = (width - plan.size[0]) / 2
    legend = _legend(set(states.values()), height - 10)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(plain(label), quote=True)}" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, Noto Sans CJK SC, sans-serif">'
        f'<g transform="translate({shift:.1f} 0)">{"".join(edges)}{"".join(boxes)}</g>{legend}</svg>'
    )


def line(plan: Layout, route: tuple[str, ...]) -> tuple[str, str]:
    """The outlines of an edge and of its tip, as SVG path data: a smooth line from the lower edge of the parent through
    its bends to the upper edge of the child."""
    points = [plan.places[name] for name in route]
    (x, y), (end_x, end_y) = points[0], points[-1]
    y += HEIGHT / 2
    end_y -= HEIGHT / 2 + 7
    d = [f"M{x:.1f} {y:.1f}"]
    # A bend is a straight piece as high as the nodes beside it.
    stops = [stop for px, py in points[1:-1] for stop in ((px, py - HEIGHT / 2), (px, py + HEIGHT / 2))]
    for to_x, to_y in [*stops, (end_x, end_y)]:
        half = (to_y - y) / 2
        d.append(f"C{x:.1f} {y + half:.1f} {to_x:.1f} {to_y - half:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return " ".join(d), f"M{end_x - 5:.1f} {end_y:.1f}l5 7l5 -7z"


def _edge(plan: Layout, route: tuple[str, ...], on_path: bool, dead: bool) -> str:
    d, tip = line(plan, route)
    colour = "#e85d04" if on_path else "#a3a6ad" if dead else "#8795a8"
    dash = ' stroke-dasharray="5 4"' if dead else ""
    return (
        f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="{2.6 if on_path else 1.5}"{dash}/>'
        f'<path d="{tip}" fill="{colour}"/>'
    )


def _box(at: tuple[float, float], name: str, text: str, foot: str, state: str, about: str) -> str:
    fill, border, ink = _COLOURS[state]
    left, top = at[0] - WIDTH / 2, at[1] - HEIGHT / 2
    dash = ' stroke-dasharray="5 4"' if state == "dead_end" else ""
    lines = wrap(text, WIDTH - 24, _SMALL, 2 if name else 3)
    head = wrap(name, WIDTH - 24 - (measure(foot, 9.5) + 8 if foot else 0), _FONT, 1) or [""]
    parts = [
        f"<g><title>{escape(plain(about))}</title>"
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{WIDTH}" height="{HEIGHT}" rx="9" fill="{fill}" stroke="{border}" '
        f'stroke-width="{2.2 if state == "critical_path" else 1.4}"{dash}/>',
        _text(left + 12, top + 20 if lines else at[1] + 4, _FONT, ink, head[0], "600"),
    ]
    if foot:
        parts.append(_text(left + WIDTH - 10, top + 20, 9.5, ink, foot, anchor="end"))
    parts += [_text(left + 12, top + 37 + 14 * row, _SMALL, "#33363d", line) for row, line in enumerate(lines)]
    return "".join(parts) + "</g>"


def _text(x: float, y: float, size: float, colour: str, text: str, weight: str = "400", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}">{escape(plain(text))}</text>'
    )


def _legend(states: Iterable[str], y: float) -> str:
    found = set(states)
    parts, x = [], float(MARGIN)
    for state, name in _LEGEND.items():
        if state in found:
            fill, border, _ = _COLOURS[state]
            dash = ' stroke-dasharray="3 2"' if state == "dead_end" else ""
            parts.append(
                f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="16" height="11" rx="3" fill="{fill}" stroke="{border}"{dash}/>'
            )
            parts.append(_text(x + 22, y, 11, "#55585f", name))
            x += 22 + measure(name, 11) + 20
    return "".join(parts)


def wrap(text: str, width: float, size: float, most: int) -> list[str]:
    """The text in at most ``most`` lines of an estimated ``width``; what does not fit is cut with an ellipsis."""
    rest = " ".join(plain(text[:600]).split())
    lines: list[str] = []
    while rest and len(lines) < most:
        if measure(rest, size) <= width:
            return [*lines, rest]
        last = len(lines) == most - 1
        room = width - (measure("…", size) if last else 0)
        end, at = 0, 0.0
        for end, sign in enumerate(rest):  # noqa: B007
            at += measure(sign, size)
            if at > room:
                break
        space = rest.rfind(" ", 0, end + 1)
        if not last and space > 0:
            end = space
        end = max(end, 1)
        lines.append(rest[:end].rstrip() + ("…" if last else ""))
        rest = rest[end:].lstrip()
    return lines


def measure(text: str, size: float) -> float:
    """Estimated width of a text in a sans-serif font: East Asian signs are square, the others about half of it."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    capital = sum(sign.isupper() or sign in "mwMW%@" for sign in text)
    return size * (wide * 1.02 + (len(text) - wide) * 0.54 + capital * 0.14)
