"""Every failure belongs to one boundary, and every message says what to do.

    VragError
    ├── ConfigError        a setting or an argument is wrong
    ├── MediaError         bytes that are not a usable image, page or clip
    ├── RetrieverError     the search service is down, slow or answered nonsense
    ├── ModelError         the chat model is down, slow or answered nonsense
    ├── JudgeError         the judge gave no verdict (never a reward of 0)
    ├── RecordError        a run record cannot be read
    └── IndexError_        an index on disk cannot be used
        ├── IndexCorrupt   a file of it is missing, truncated or altered
        └── IndexMismatch  it was built with another model, dimension or template

A model's *reply* is never an error: any string leads to a defined step (see :mod:`vrag.actions`).
"""


class VragError(Exception):
    """Root of all errors that this project raises on purpose; ``str(error)`` is fit to show to a user."""


class ConfigError(VragError, ValueError):
    """A setting or an argument is wrong."""


class MediaError(VragError, ValueError):
    """Bytes that cannot be used as an image, a page or a clip."""


class RetrieverError(VragError):
    """The search service did not give a usable answer."""


class ModelError(VragError):
    """The chat model did not give a usable answer."""


class JudgeError(VragError):
    """The judge gave no verdict; the sample has to be left out, not scored 0."""


class RecordError(VragError, ValueError):
    """A run record cannot be read."""


class IndexError_(VragError):
    """An index on disk cannot be used."""


class IndexCorrupt(IndexError_):
    """A file of an index is missing, truncated or altered; the message names it."""


class IndexMismatch(IndexError_):
    """An index was built with another model, dimension or template; the message names both."""
