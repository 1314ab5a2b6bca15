"""The texts that models are given, one file each, and the only way in which values enter them.

A placeholder is ``{name}``. Values are put in by one pass over the template, so braces in a question, ``{question}``
itself among them, stay what they are; braces in a template that name no value stay as well.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from vrag.errors import ConfigError

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def load(name: str, folder: Path | None = None) -> str:
    """The text of ``{name}.txt``: from ``folder`` if it has one, else from this package. Raises ConfigError."""
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"There is no folder of prompts {folder}; leave it out for the built-in ones.")
    file = Path(folder) / f"{name}.txt" if folder is not None else None
    if file is None or not file.is_file():
        return resources.files(__package__).joinpath(f"{name}.txt").read_text("utf-8").strip()
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The prompt {file} cannot be read as UTF-8 text: {error}") from error


def fill(template: str, **values: object) -> str:
    """``template`` with each ``{name}`` of ``values`` replaced."""
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]) if found[1] in values else found[0], template)
