"""`reasoning_gym` without matplotlib, which takes half of the time of its import.

One of its datasets uses cellpylib, which imports matplotlib for plots; no dataset makes one. Import
`reasoning_gym` by this module: without matplotlib it takes a second of processor time, and 25 MB less.
"""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import NoReturn

_PLOTTING = (
    "matplotlib",
    "matplotlib.animation",
    "matplotlib.collections",
    "matplotlib.pyplot",
    "mpl_toolkits",
    "mpl_toolkits.mplot3d",
)


class _Placeholder(ModuleType):
    """A module whose functions only raise."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # the import system's own attributes
            raise AttributeError(name)

        def unavailable(*_args: object, **_kwargs: object) -> NoReturn:
            raise RuntimeError(f"{self.__name__}.{name}: reasoning_gym was imported without matplotlib")

        return unavailable


@contextlib.contextmanager
def _without_plotting() -> Iterator[None]:
    """Within the block an import of matplotlib gives placeholders, unless it was imported before."""
    if "matplotlib" in sys.modules:
        yield
        return
    sys.modules.update({name: _Placeholder(name) for name in _PLOTTING})
    try:
        yield
    finally:
        for name in _PLOTTING:
            del sys.modules[name]


with _without_plotting():
    from reasoning_gym.dataset import ProceduralDataset
    from reasoning_gym.factory import DATASETS, create_dataset
    from reasoning_gym.utils import extract_answer

__all__ = ["DATASETS", "ProceduralDataset", "create_dataset", "extract_answer"]
