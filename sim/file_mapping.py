"""FileMapping: mapping from path to content over a simulated host's files."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path

from gleaner.sim.files import SimFiles


class FileMapping(MutableMapping[Path, bytes]):
    """The files below one folder of a disk or a memory. Writing raises OSError if there is no space."""

    def __init__(self, files: SimFiles, folder: Path) -> None:
        self._files = files
        self._folder = str(folder)

    def __getitem__(self, path: Path) -> bytes:
        try:
            return self._files.read(str(path))
        except FileNotFoundError:
            raise KeyError(path) from None

    def __setitem__(self, path: Path, content: bytes) -> None:
        self._files.write(str(path), content)

    def __delitem__(self, path: Path) -> None:
        if path not in self:
            raise KeyError(path)
        self._files.delete(str(path))

    def __contains__(self, path: object) -> bool:
        return self._files.exists(str(path))

    def __iter__(self) -> Iterator[Path]:
        return iter([Path(path) for path in self._files.under(self._folder)])

    def __len__(self) -> int:
        return len(self._files.under(self._folder))
