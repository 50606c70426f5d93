"""Merged logs of many processes.

Owns the files to which an actor, a process or a host writes, and the order of their lines. Of a file that is
longer than the request it reads only the end.
"""

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gleaner.actors.names import CONTROLLER, STATE

_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d{3}")
BYTES_A_LINE = 400  # more than most lines; step by which the last lines are searched backwards
MAX_READ = 1 << 20  # read at a time from one file
IN_AGENT = ("registry", "cluster", CONTROLLER, STATE)
"""Actors that live in a node agent's own process: their lines are in agent.log."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the process that wrote it, its time (or that of the line before), its text."""

    source: str
    when: str
    text: str

    def as_json(self) -> str:
        """The line as a JSON object."""
        return json.dumps({"source": self.source, "when": self.when, "text": self.text})


def files_of(nodes: Path, name: str) -> list[Path]:
    """Log files of a host, a process, an actor, or (for "") of all."""
    every = sorted([*nodes.glob("*/logs/*.log"), *nodes.glob("*/logs/*.out")])
    if not name:
        return every
    host = [file for file in every if _node(file) == name]
    if host:
        return host
    first, _, last = name.partition("/")
    exact = [file for file in every if (_node(file), file.stem) == (first, last)]
    if exact:
        return exact
    if name.startswith(IN_AGENT):
        return [file for file in every if file.stem == "agent"]
    return [file for file in every if file.stem in (first, last)]


def _node(file: Path) -> str:
    return file.parent.parent.name


class Logbook:
    """The lines of some files, from the end of what was read."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._offsets: dict[Path, int] = {}
        self._files = list(files)

    def last(self, count: int) -> list[Line]:
        """The last lines of all files together, by time; `more` returns the later ones."""
        lines: list[Line] = []
        for file in self._files:
            size = file.stat().st_size
            self._offsets[file] = max(0, size - min(MAX_READ, count * BYTES_A_LINE))
            lines += self._read(file, partial_first=self._offsets[file] > 0)
        lines.sort(key=lambda line: line.when)
        return lines[-count:] if count else []

    def more(self, files: Iterable[Path]) -> list[Line]:
        """Lines written since, by time; new files are read from their start."""
        lines = [line for file in files for line in self._read(file)]
        return sorted(lines, key=lambda line: line.when)

    def _read(self, file: Path, *, partial_first: bool = False) -> list[Line]:
        offset = self._offsets.get(file, 0)
        try:
            with file.open("rb") as opened:
                if file.stat().st_size < offset:  # it was rotated
                    offset = 0
                opened.seek(offset)
                data = opened.read(MAX_READ)
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[file] = offset + len(whole)
        texts = whole.decode(errors="replace").splitlines()[1 if partial_first else 0 :]
        written = time.strftime("%Y-%m-%d %H:%M:%S,000", time.localtime(file.stat().st_mtime))
        return _lines(f"{_node(file)}/{file.stem}", texts, written if file.suffix == ".out" else "")


def _lines(source: str, texts: Iterable[str], when: str) -> list[Line]:
    """`when`: for lines before the first one with a time; plain output has no time."""
    lines = []
    for text in texts:
        found = _TIME.match(text)
        when = found[0].replace(".", ",") if found else when
        lines.append(Line(source, when, text))
    return lines
