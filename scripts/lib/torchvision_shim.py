"""Makes a torchvision that was built for CUDA importable beside a CPU build of torch; for trying third-party servers only.

Such a torchvision looks for two operators that its own library would register, and gives up when they are unknown. Naming them is
enough for its transforms; the operators themselves stay absent. Copied into an environment's site-packages, with a ``.pth`` file
that imports it.
"""

import importlib.abc
import sys


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        import torch

        if torch.version.cuda is None:
            library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            torch._torchvision_shim = library
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
