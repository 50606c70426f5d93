"""Import fix for PyPI's torchvision beside PyTorch without CUDA.

SGLang imports torchvision and never uses it here. Its compiled operators are linked to CUDA and do not load;
then its import fails, because it registers meta kernels for two unknown operators. This module declares them
before. A .pth file imports it in every process of the environment.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

declared: list[object] = []


class DeclareOperators:
    """A finder that finds nothing; at the import of torchvision it declares the operators, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for name in ("nms", "qnms"):
                schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                library.define(schema)  # type: ignore[no-untyped-call]
            declared.append(library)
        return None


sys.meta_path.insert(0, DeclareOperators())
