"""What to say of an error that arrives from another process as a whole traceback."""

from __future__ import annotations


def first_cause(error: BaseException) -> str:
    """The kind of the cause and the first line of what it says; Ray wraps the cause in an error of its own."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"
