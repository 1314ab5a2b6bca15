"""Retrieval-augmented reasoning over pages, charts, slides and videos: the library that demo, evaluation and training share."""

__version__ = "0.1.0"
