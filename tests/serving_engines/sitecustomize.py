"""In the environment of the engine tests: torchvision without its compiled part, which the CPU build of torch lacks."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class BeforeTorchvision(MetaPathFinder):
    """Declares the operators that torchvision expects, just before it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            import torch

            sys.meta_path.remove(self)
            self.library = torch.library.Library("torchvision", "DEF")
            for operator in OPERATORS:
                self.library.define(operator)
            sys.modules[__name__].library = self.library  # it must live as long as the operators


sys.meta_path.insert(0, BeforeTorchvision())
