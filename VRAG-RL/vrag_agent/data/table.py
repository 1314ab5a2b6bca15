"""The Parquet table that the trainer reads: one row a question, one schema for every source.

verl reads ``data_source``, ``prompt``, ``ability``, ``reward_model`` and ``extra_info``, and picks the agent by ``agent_name``.
``prompt`` holds the bare question: the episode writes the real prompt around it. ``file_name`` and ``reference_page``
stand at the top level *and* in ``extra_info``, for rewards and trainers look in either place. ``extra_info.source`` is the
row of the dataset as it was, as JSON, so that no field is lost whatever a dataset brings.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrag.errors import ConfigError
from vrag_agent.data.files import write_whole
from vrag_agent.data.formats import Example

if TYPE_CHECKING:
    import pyarrow

ABILITY = "document_qa"
#: What a trainer and the rewards need of each row.
REQUIRED = (
    "data_source",
    "prompt",
    "ability",
    "reward_model",
    "extra_info",
    "agent_name",
    "file_name",
    "reference_page",
)


def schema() -> pyarrow.Schema:
    """The columns and their types; equal for all files, so that they can be concatenated."""
    import pyarrow as pa

    text, pages = pa.string(), pa.list_(pa.int64())
    return pa.schema(
        [
            ("id", text),
            ("data_source", text),
            ("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", text)])),
            ("agent_name", text),
            ("file_name", text),
            ("reference_page", pages),
            (
                "extra_info",
                pa.struct(
                    [
                        ("index", pa.int64()),
                        ("id", text),
                        ("split", text),
                        ("question", text),
                        ("answer", text),
                        ("file_name", text),
                        ("reference_page", pages),
                        ("relevant_ids", pa.list_(text)),
                        ("content_type", text),
                        ("reason_type", text),
                        ("source", text),
                    ]
                ),
            ),
        ]
    )


def row_of(example: Example, index: int, agent_name: str) -> dict[str, Any]:
    """One row; ``index`` counts within its file from 0."""
    pages = list(example.reference_page)
    return {
        "id": example.id,
        "data_source": example.data_source,
        "prompt": [{"role": "user", "content": example.question}],
        "ability": ABILITY,
        "reward_model": {"style": "rule", "ground_truth": example.answer},
        "agent_name": agent_name,
        "file_name": example.file_name,
        "reference_page": pages,
        "extra_info": {
            "index": index,
            "id": example.id,
            "split": example.split,
            "question": example.question,
            "answer": example.answer,
            "file_name": example.file_name,
            "reference_page": pages,
            "relevant_ids": list(example.relevant_ids),
            "content_type": example.content_type,
            "reason_type": example.reason_type,
            "source": json.dumps(example.source, ensure_ascii=False, default=str),
        },
    }


def write_table(path: Path, examples: Iterable[Example], agent_name: str) -> int:
    """Write a table, put in place whole or not at all; returns the number of rows. Raises ConfigError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row_of(example, index, agent_name) for index, example in enumerate(examples)]
    table = pa.Table.from_pylist(rows, schema=schema())
    data = io.BytesIO()
    pq.write_table(table, data)
    write_whole(path, data.getvalue())
    return len(rows)


def read_table(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a table. Raises ConfigError for a file that is no Parquet table."""
    import pyarrow
    import pyarrow.parquet as pq

    try:
        return list(pq.read_table(path, columns=list(columns) if columns else None).to_pylist())
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"{path} cannot be read as a Parquet table: {error}.") from None
