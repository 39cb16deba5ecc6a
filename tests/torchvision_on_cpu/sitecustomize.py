"""On PYTHONPATH: the package index's torchvision, built for CUDA, imports beside a torch that was not.

It asks for two operators of its own library, which cannot be loaded there. They are declared when torchvision is
first imported, in every process that vLLM starts; nobody here calls them.
"""

import importlib.abc
import sys


class Declare(importlib.abc.MetaPathFinder):
    """Finds nothing itself."""

    libraries: list = []

    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch

        if torch.version.cuda is None and not torch._C._dispatch_has_kernel("torchvision::nms"):
            library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            self.libraries.append(library)  # it ends with the object
        return


sys.meta_path.insert(0, Declare())
