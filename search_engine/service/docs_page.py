"""``/docs``: the endpoints on one plain page, made of the OpenAPI description; nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
h2{font:600 1.05rem ui-monospace,monospace;margin:2.2rem 0 .2rem;border-top:1px solid #d9dee6;padding-top:1rem}
h2 b{display:inline-block;min-width:3.6rem;color:#0b5cad}
table{border-collapse:collapse;width:100%;margin:.4rem 0}td{padding:.15rem .8rem .15rem 0;vertical-align:top}
td:first-child{font-family:ui-monospace,monospace;white-space:nowrap}code{background:#f1f4f8;padding:0 .2rem}
.muted{color:#5b6675}
@media (prefers-color-scheme:dark){body{background:#12161c;color:#dde3ea}h2{border-color:#2b333d}h2 b{color:#7ab8f5}
code{background:#1e252e}.muted{color:#93a0af}}
"""


def render(schema: dict[str, Any]) -> str:
    """The page for an OpenAPI description."""
    info = schema["info"]
    operations = "".join(
        _operation(schema, method, path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))} "
        'The same for programs: <a href="openapi.json">openapi.json</a>.</p>'
        f"{operations}</body></html>"
    )


def _operation(schema: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = [
        (p["name"], _kind(p.get("schema", {})), p.get("description") or p.get("schema", {}).get("description", ""))
        for p in operation.get("parameters", ())
        if p["in"] != "header"
    ]
    answers = [
        (code, "", answer.get("description", ""))
        for code, answer in sorted(operation.get("responses", {}).items())
        if code != "200"
    ]
    body = list(_body(schema, operation))
    return (
        f"<h2><b>{escape(method.upper())}</b> {escape(path)}</h2><p>{escape(operation.get('summary', ''))}. "
        f"{_text(operation.get('description', ''))}</p>"
        f"{_table('Parameters', parameters)}{_table('Body (JSON)', body)}{_table('Besides 200', answers)}"
    )


def _body(schema: dict[str, Any], operation: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    model = schema["components"]["schemas"].get(content.get("$ref", "").rpartition("/")[2], {})
    required = model.get("required", ())
    for name, field in model.get("properties", {}).items():
        kind = _kind(field) + (", required" if name in required else "")
        yield name, kind, field.get("description", "")


def _kind(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_kind(one) for one in field["anyOf"]))
    kind = str(field.get("type", ""))
    return f"{kind} of {_kind(field['items'])}" if kind == "array" and field.get("items") else kind


def _text(markdown: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(markdown)).replace("\n\n", "</p><p>")


def _table(title: str, rows: list[tuple[str, str, str]]) -> str:
    if not rows:
        return ""
    cells = "".join(
        f'<tr><td>{escape(name)}</td><td class="muted">{escape(kind)}</td><td>{_text(about)}</td></tr>'
        for name, kind, about in rows
    )
    return f'<div class="muted">{title}</div><table>{cells}</table>'
