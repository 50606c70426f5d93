"""Patch of SGLang 0.5.23 for a CPU: `--enable-return-routed-experts` registers its rows with CUDA.

In this test's servers that memory is plain; nothing else of SGLang is changed.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

POOL = "sglang.srt.mem_cache.pool_host.common"


class _Plain:
    """Finds and loads one module, and allocates its rows as plain tensors."""

    def __init__(self) -> None:
        self._spec: ModuleSpec | None = None
        self._finding = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != POOL or self._finding:
            return None
        self._finding = True  # the other finders are asked the same way
        self._spec = importlib.util.find_spec(name)
        assert self._spec is not None, f"SGLang has no {POOL}"
        return ModuleSpec(name, self, origin=self._spec.origin)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        assert self._spec is not None
        assert self._spec.loader is not None
        self._spec.loader.exec_module(module)
        module.ALLOC_MEMORY_FUNCS["cpu"] = _plain


def _plain(dims: tuple[int, ...], dtype: object, **_: object) -> object:
    import torch

    return torch.empty(dims, dtype=dtype)  # type: ignore[call-overload]


sys.meta_path.insert(0, _Plain())  # type: ignore[arg-type]
