"""Planted bug: production source, changed in memory at import, never on disk.

Owns the import hook. `mutations` has the bugs. The hook must be installed before the changed module is
imported, so it is meant for processes of its own (`gleaner.chaos.worker`), and it imports nothing of ours.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType


@dataclass(frozen=True, slots=True)
class Edit:
    """`old` occurs exactly once in the source of `module`; `new` replaces it."""

    module: str
    old: str
    new: str


class CannotPlant(ValueError):
    """An edit does not fit the present source: the text is missing, or occurs twice, or the module is
    loaded."""


def changed(source: str, edits: Sequence[Edit]) -> str:
    """The source with the edits applied. Raises CannotPlant."""
    for edit in edits:
        count = source.count(edit.old)
        if count != 1:
            raise CannotPlant(f"{edit.module}: occurs {count} times, expected once: {edit.old!r}")
        source = source.replace(edit.old, edit.new)
    return source


def source_of(module: str) -> tuple[str, Path]:
    """The source of a module, found without importing it or its package (a package's own imports would be
    too early). Raises CannotPlant."""
    relative = Path(*module.split(".")).with_suffix(".py")
    for folder in sys.path:
        path = Path(folder or ".") / relative
        if path.is_file():
            return path.read_text(encoding="utf-8"), path
    raise CannotPlant(f"{module}: no such module on sys.path")


def plant(edits: Sequence[Edit]) -> None:
    """From now on these modules are imported with the edits. Raises CannotPlant for an edit that does not
    fit."""
    for module in {edit.module for edit in edits}:
        if module in sys.modules:
            raise CannotPlant(f"{module} is imported already: plant before anything else")
    sys.meta_path.insert(0, _Planter(compiled(edits)))


def compiled(edits: Sequence[Edit]) -> dict[str, tuple[CodeType, str]]:
    """Code and path of each module with its edits. Raises CannotPlant for an edit that does not fit."""
    by_module: dict[str, list[Edit]] = {}
    for edit in edits:
        by_module.setdefault(edit.module, []).append(edit)
    codes = {}
    for module, wanted in by_module.items():
        source, path = source_of(module)
        codes[module] = (compile(changed(source, wanted), str(path), "exec"), str(path))
    return codes


class _Planter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the changed modules before the other finders do."""

    def __init__(self, codes: dict[str, tuple[CodeType, str]]) -> None:
        self._codes = codes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See MetaPathFinder."""
        if fullname not in self._codes:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=self._codes[fullname][1])

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """See Loader."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """See Loader."""
        code, path = self._codes[module.__name__]
        module.__file__ = path
        exec(code, module.__dict__)
