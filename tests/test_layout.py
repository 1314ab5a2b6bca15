"""Imports point one way, heavy ones are lazy, and the repository speaks of the project alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FORBIDDEN = {
    "vrag": {"torch", "transformers", "faiss", "streamlit", "search_engine", "demo", "ray", "verl"},
    "search_engine": {"demo", "streamlit", "verl"},
    "demo": {"torch", "transformers", "verl", "ray"},
}
ONLY_IN = {"torch": ("search_engine/models",), "transformers": ("search_engine/models",)}
#: What the retriever may take from the library: shared records, geometry, errors.
SHARED = {"vrag", "vrag.errors", "vrag.geometry", "vrag.items", "vrag.pages", "vrag.retriever"}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_point_one_way(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"no files in {package}"
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in imports(path)
        if name.split(".")[0] in FORBIDDEN[package]
        and not str(path.relative_to(ROOT)).startswith(ONLY_IN.get(name.split(".")[0], ("//",)))
    ]
    assert wrong == []


def test_the_retriever_takes_only_shared_records() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "search_engine").rglob("*.py"))
        for name in imports(path)
        if name.split(".")[0] == "vrag" and name not in SHARED
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "package", ["vrag", "search_engine", "search_engine.search_engine", "search_engine.search_engine_api"]
)
def test_heavy_imports_are_lazy(package: str) -> None:
    code = (
        f"import sys, {package}; "
        "print(' '.join(m for m in ('torch', 'faiss', 'rapidocr', 'onnxruntime', 'fitz', 'streamlit', 'cv2') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == ""
