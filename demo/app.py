"""The VRAG demo: ``streamlit run demo/app.py``. Ask and watch, add your own documents, open past runs again."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:  # Streamlit puts the script's folder on the path, not the project's root
    sys.path.insert(0, ROOT)

from demo.ui import ask_page, shell  # noqa: E402
from demo.ui.settings_panel import sidebar  # noqa: E402
from vrag.settings import Settings  # noqa: E402


def main() -> None:
    shell.frame("VRAG")
    settings = sidebar(shell.base(Settings))
    ask = shell.Asking("Ask", "ask", ":material/search:", lambda: ask_page.page(settings))
    shell.navigate([ask], lambda: settings)


main()
