"""Lets torchvision be imported next to a torch without CUDA.

The torchvision wheel of the package index is built against CUDA. Next to a CPU torch its C++ library does not load, so the
operators ``nms`` and ``qnms`` are never declared, and ``torchvision._meta_registrations`` fails with "operator
torchvision::nms does not exist". The processors of Qwen-VL import torchvision, so nothing at all would work. Here the two
schemas are declared at the one moment that it matters, when that module is about to be imported, and only when the real
operators are not there: where the library did load (any machine with a GPU), nothing is done. The operators themselves
stay absent; no processor uses them.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_NEEDS_THE_OPERATORS = "torchvision._meta_registrations"
#: A library's definitions live as long as the object does.
_kept: list[object] = []


class _Declarer(importlib.abc.MetaPathFinder):
    """Finds nothing: it only notices that the import has come to the module that needs the operators."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == _NEEDS_THE_OPERATORS:
            _declare()
        return None


def declare_when_missing() -> None:
    """Watch for the import of torchvision; costs nothing (and imports nothing) until then. Calling it again is harmless."""
    if _NEEDS_THE_OPERATORS not in sys.modules and not any(isinstance(one, _Declarer) for one in sys.meta_path):
        sys.meta_path.insert(0, _Declarer())


def _declare() -> None:
    import torch

    missing = [name for name in ("nms", "qnms") if not hasattr(torch.ops.torchvision, name)]
    if "nms" in missing:  # the real library has no qnms on every platform, but always nms
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
