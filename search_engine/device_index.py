"""Vectors held on a GPU: exact search as a matrix product by torch, and the lists of an IVF index by faiss-gpu.

One pass over the vectors costs their bytes over the memory bandwidth; a batch of queries shares it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_engine.candidate_index import CandidateIndex, candidates
from search_engine.models.base import Vectors
from search_engine.vector_index import load_faiss
from search_engine.vector_rows import Rows
from vrag.errors import ConfigError

#: Scores held at once (1 GB).
_SCORES = 1 << 28


class DeviceIndex(CandidateIndex):
    """All ``rows`` on one torch device, in float32 or (``half``) float16. The device finds candidates, ``rows`` score them.

    Raises :class:`ConfigError` when torch is not installed, there is no such device, or its memory is too small.
    """

    def __init__(self, rows: Rows, device: str, half: bool = False) -> None:
        try:
            import torch
        except ImportError as error:
            raise ConfigError(f"device={device} needs torch: pip install torch; or search on device=cpu") from error
        super().__init__(rows)
        self._torch = torch
        try:
            self._device = torch.device(device)
            kind = torch.float16 if half else torch.float32
            self._matrix = torch.empty((len(rows), rows.dimension), dtype=kind, device=self._device)
            first = 0
            for block in rows.blocks():
                self._matrix[first : first + len(block)] = torch.tensor(block).to(self._device, kind)
                first += len(block)
        except (RuntimeError, AssertionError) as error:  # AssertionError: a torch without CUDA
            raise ConfigError(f"the vectors cannot be put on device={device}: {error}") from error

    def _candidates(
        self,
        queries: Vectors,
        k: int,
        admitted: int,
        allowed: NDArray[np.bool_] | None,
        documents: Sequence[str] | None,
    ) -> Iterable[NDArray[np.int64]]:
        torch = self._torch
        count = min(admitted, candidates(k))
        with torch.inference_mode():
            left_out = None if allowed is None else torch.tensor(~allowed, device=self._device)
            asked = torch.tensor(queries).to(self._device, self._matrix.dtype)
            found: list[NDArray[np.int64]] = []
            for some in asked.split(max(1, _SCORES // len(self))):
                scores = some @ self._matrix.T
                if left_out is not None:
                    scores.masked_fill_(left_out, float("-inf"))
                found.extend(torch.topk(scores, count, dim=1, sorted=False).indices.cpu().numpy())
        return found


def to_gpu(index: Any, device: str) -> Any:
    """A copy of an IVF index on a GPU. Raises :class:`ConfigError` where faiss was built without, or there is none."""
    faiss = load_faiss()
    _, _, number = device.partition(":")
    if not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() == 0:
        raise ConfigError(
            f"vectors=ivf on device={device} needs faiss-gpu and a GPU that it sees (pip uninstall faiss-cpu; pip install "
            "faiss-gpu); or search on device=cpu"
        )
    try:
        resources = faiss.StandardGpuResources()
        return faiss.index_cpu_to_gpu(resources, int(number or 0), index)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"the lists cannot be put on device={device}: {error}") from error
