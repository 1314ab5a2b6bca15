"""Both agents on one page, as ``./run_demo.sh`` shows them: ``streamlit run demo/both_app.py``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:  # Streamlit puts the script's folder on the path, not the project's root
    sys.path.insert(0, ROOT)

from demo.ui import ask_page, settings_panel, shell, vimrag_page, vimrag_settings  # noqa: E402
from vrag.settings import Settings, VimragSettings  # noqa: E402


def main() -> None:
    shell.frame("VRAG and VimRAG")
    plain, graph = shell.base(Settings), shell.base(VimragSettings)

    # Each agent has settings of its own, so every page draws its sidebar itself.
    def vrag() -> None:
        ask_page.page(settings_panel.sidebar(plain))

    def vimrag() -> None:
        vimrag_page.page(vimrag_settings.sidebar(graph))

    asking = [
        shell.Asking("VRAG", "vrag", ":material/search:", vrag),
        shell.Asking("VimRAG", "vimrag", ":material/account_tree:", vimrag),
    ]
    shell.navigate(asking, lambda: settings_panel.sidebar(plain))


main()
