"""`Table`: rows of a file of problems (JSON lines, Parquet, `datasets` folder)."""

import json
import stat
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from gleaner.actors.reward import rows
from gleaner.actors.reward.source import BadTask

MAX_LINE_BYTES = 64 * 2**20


class Table(Protocol):
    """Rows of a file."""

    def __len__(self) -> int: ...
    def row(self, number: int) -> Any:
        """A row's value. Raises `rows.BadRow`."""

    def place(self, number: int) -> str:
        """The place of a row, for messages."""


class JsonLines:
    """A .jsonl file; empty lines are left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._offsets, self._lines = array("Q"), array("Q")
        offset = 0
        for number, text in enumerate(iter(lambda: self._file.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(text) > MAX_LINE_BYTES:
                raise BadTask(f"{path}: line {number} is longer than {MAX_LINE_BYTES} bytes")
            if text.strip():
                self._offsets.append(offset)
                self._lines.append(number)
            offset += len(text)

    def __len__(self) -> int:
        return len(self._offsets)

    def row(self, number: int) -> Any:
        self._file.seek(self._offsets[number])
        text = self._file.readline()
        try:
            return json.loads(text.decode("utf-8-sig" if not number else "utf-8"))
        except (ValueError, RecursionError) as error:
            raise rows.BadRow(f"no JSON: {error}") from None

    def place(self, number: int) -> str:
        return f"{self._path}: line {self._lines[number]}"


class Columns:
    """A Parquet file, or a folder that `datasets` has saved; rows are numbered from 0."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._count, self._read = _folder(path) if path.is_dir() else _parquet(path)
        except ImportError as error:
            raise BadTask(
                f"{path}: the package `{error.name}` is not installed; pip install 'gleaner[data]', or use "
                ".jsonl"
            ) from None
        except BadTask:
            raise
        except Exception as error:  # Arrow raises many kinds
            raise BadTask(f"{path}: cannot be read: {type(error).__name__}: {error}") from error

    def __len__(self) -> int:
        return self._count

    def row(self, number: int) -> Any:
        return self._read(number)

    def place(self, number: int) -> str:
        return f"{self._path}: row {number}"


def _folder(path: Path) -> tuple[int, Callable[[int], Any]]:
    import datasets

    found = datasets.load_from_disk(str(path))
    if isinstance(found, datasets.DatasetDict):
        raise BadTask(f"{path}: it holds several sets ({', '.join(found)}); name the folder of one")
    return len(found), found.__getitem__


def _parquet(path: Path) -> tuple[int, Callable[[int], Any]]:
    from pyarrow import parquet

    found = parquet.read_table(path, memory_map=True)
    return found.num_rows, lambda number: found.slice(number, 1).to_pylist()[0]


def table(path: str) -> Table:
    """The rows of a file or folder. Raises `BadTask`."""
    file = Path(path)
    try:
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode) or file.suffix == ".parquet":
            return Columns(file)
        if not stat.S_ISREG(mode):
            raise BadTask(f"{file}: is a device, pipe or socket; name a file of problems")
        if file.suffix not in (".jsonl", ".ndjson", ".json"):
            raise BadTask(f"{file}: expected a .jsonl or .parquet file, or a folder of `datasets`")
        return JsonLines(file)
    except OSError as error:
        raise BadTask(f"{file}: cannot be read: {error.strerror or error}") from error
