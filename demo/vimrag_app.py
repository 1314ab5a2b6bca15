"""The VimRAG demo: ``streamlit run demo/vimrag_app.py``. Ask and watch the memory graph grow, open past runs again."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:  # Streamlit puts the script's folder on the path, not the project's root
    sys.path.insert(0, ROOT)

from demo.ui import shell, vimrag_page  # noqa: E402
from demo.ui.vimrag_settings import sidebar  # noqa: E402
from vrag.settings import VimragSettings  # noqa: E402


def main() -> None:
    shell.frame("VimRAG")
    chosen = sidebar(shell.base(VimragSettings))
    ask = shell.Asking("Ask", "ask", ":material/account_tree:", lambda: vimrag_page.page(chosen))
    shell.navigate([ask], lambda: chosen.settings)


main()
