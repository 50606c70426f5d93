"""Store of results: one JSON file a cell.

Owns the files. A result is valid if its settings and code are the present ones, or, where `any_code` is set,
the settings alone.
"""

from pathlib import Path

import msgspec

from bench.evaluation.cells import Cell
from bench.evaluation.setups import Around, setting
from bench.evaluation.simulated import CellResult, code_hash, settings_hash


class Store:
    """Args: folder: made where it is missing. around: common settings of all cells. any_code: accept results
    of other code too."""

    def __init__(self, folder: Path, around: Around, *, any_code: bool = False) -> None:
        self._folder, self._around, self._any_code = folder, around, any_code
        self.code = code_hash()
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, cell: Cell) -> CellResult | None:
        """The stored result, if it exists and is valid."""
        try:
            found = msgspec.json.decode(self._file(cell).read_bytes(), type=CellResult)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        if found.code != self.code and not self._any_code:
            return None
        return found if found.settings == settings_hash(cell, setting(cell, self._around)) else None

    def write(self, result: CellResult) -> None:
        """Write the result atomically."""
        file = self._file(result.cell)
        draft = file.with_suffix(".part")
        draft.write_bytes(msgspec.json.encode(result))
        draft.replace(file)

    def _file(self, cell: Cell) -> Path:
        return self._folder / f"{cell.name}.json"
