"""The data of training, from published datasets to demonstrations; needs neither torch nor verl (but for ``sft``).

rows       the rows of a file; what is no row is a reason
files      files that are whole or not there
formats    rows of ViDoSeek, SlideVQA, MMLongBench-Doc and plain JSON, read as one kind of example
table      the Parquet table that the trainer reads
convert    examples -> tables                                 scripts/hf_dataset_convert.py
experts    a strong model, and a grounding model beside it, as one chat model
construct  questions -> correct trajectories by the experts   scripts/data_construct_pipeline.py
balance    which of the correct ones are kept
dialogue   trajectories -> SFT dialogues with pictures        scripts/cot_convert_sft.py
sft        SFT dialogues -> a checkpoint                      scripts/sft.py
"""

from __future__ import annotations

import logging


def show_progress() -> None:
    """Let the commands of this package speak on the terminal: their own lines, and only the warnings of others."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("vrag_agent").setLevel(logging.INFO)
