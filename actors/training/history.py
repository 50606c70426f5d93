"""`HistoryWriter` and readers of a run's history, `history.jsonl`.

The report and the live view are made from it.

Owns writing and reading them, one JSON object a line; the records are `records`. Does not decide when
something is recorded, and computes nothing. One process writes a file at a time; any number may follow it. A
line that was torn by a kill has no line end: the writer drops it, the readers wait for its rest.

Times: `t_s` is seconds since the run began; after a resume it goes on from the last record.
"""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gleaner.actors.training.account import Meter
from gleaner.actors.training.records import (
    AnyRecord,
    End,
    Eval,
    FirstInstance,
    Node,
    Phase,
    Record,
    Restart,
    Run,
    Sample,
    Step,
    Verifier,
    began_s,
    hosts_after,
    served_after,
)
from gleaner.actors.training.usage import ResourceUsage
from gleaner.supervisor import JournalFull

__all__ = [
    "MAX_LINE_BYTES",
    "AnyRecord",
    "End",
    "Eval",
    "FirstInstance",
    "HistoryError",
    "HistoryFollower",
    "HistoryFull",
    "HistoryWriter",
    "Node",
    "Phase",
    "Record",
    "Restart",
    "Run",
    "Sample",
    "Step",
    "Verifier",
    "read_history",
]

MAX_LINE_BYTES = 1 << 20
"""A record is a few hundred bytes, a whole config a few thousand; anything this long is no history."""


class HistoryError(ValueError):
    """A history that cannot be read; `str` names file, line and remedy."""


class HistoryFull(JournalFull, OSError):
    """The disk of the history is full. The actor is suspended, as by a full disk of its journal."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyRecord)


class HistoryWriter:
    """A `History` in a file: appends records; each is handed to the operating system before `write` returns.

    Opening an existing file resumes it: `last_t_s` is the time of its last whole record (0.0 for a new file),
    `last_step` its last step (0: none), `served` whether an instance served since it began, `step_began_s`
    when the step after the last one began, `hosts` those that it has as up. Raises HistoryError for a file
    that is no history, OSError if it cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = file = Path(path)
        self.last_t_s = 0.0
        self.last_step = 0
        self.served = False
        self.step_began_s: float | None = None
        self.hosts: Mapping[str, str] = {}
        self._meter = Meter()
        end = 0
        if file.exists():
            follower = HistoryFollower(file)
            for record in follower.poll():
                self._follow(record)
            end = follower.offset
        self._file = file.open("ab", buffering=0)
        self._file.truncate(end)  # drop a torn last line

    @property
    def used(self) -> ResourceUsage:
        """The account of the run up to its last record."""
        return self._meter.used

    def write(self, record: AnyRecord) -> None:
        """Append one record. Raises HistoryError for one that could not be read back, HistoryFull if there is
        no space; then nothing is written."""
        line = _encoder.encode(record)
        try:
            _decoder.decode(line)
        except msgspec.ValidationError as error:  # a NaN, for example, which JSON turns into null
            raise HistoryError(
                f"{self._file.name}: a record that cannot be read back: {error}: {record}"
            ) from error
        end = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line + b"\n") != len(line) + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as problem:
            self._file.truncate(end)
            raise HistoryFull(f"{self.path}: {problem.strerror}: free space there") from problem
        self._follow(record)

    def close(self) -> None:
        """Close the file; nothing is lost without it."""
        self._file.close()

    def _follow(self, record: AnyRecord) -> None:
        self._meter.observe(record)
        self.last_t_s = max(self.last_t_s, record.t_s)
        self.served = served_after(record, self.served)
        self.step_began_s = began_s(record, self.step_began_s)
        self.hosts = hosts_after(record, self.hosts)
        if isinstance(record, Step):
            self.last_step = max(self.last_step, record.step)


class HistoryFollower:
    """Reads a history that another process still writes. `poll` never waits."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.offset = 0
        """Bytes of whole lines read so far."""
        self._line = 0

    def poll(self) -> list[AnyRecord]:
        """Records that became whole since the last call; none while the file does not exist.

        Raises HistoryError for a whole line that is no record. A file that shrank below what was read (a
        writer dropped a torn line that never counted) is read on from the same offset.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                lines = file.readlines()
        except FileNotFoundError:
            return []
        if lines and not lines[-1].endswith(b"\n"):
            self._refuse_if_endless(lines.pop())
        records = []
        for line in lines:
            self._line += 1
            self.offset += len(line)
            try:
                records.append(_decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise HistoryError(
                    f"{self.path}:{self._line}: not a record of a run: {error}; "
                    "remove this line, or take the history of another run"
                ) from error
        return records

    def _refuse_if_endless(self, torn: bytes) -> None:
        if len(torn) > MAX_LINE_BYTES:
            raise HistoryError(
                f"{self.path}:{self._line + 1}: a line beyond {MAX_LINE_BYTES} bytes; no history"
            )


def read_history(path: str | Path) -> list[AnyRecord]:
    """Every whole record of a file, in order. Raises HistoryError also where the file does not exist."""
    file = Path(path)
    if not file.is_file():
        raise HistoryError(f"{file}: no such file; a run writes it when it begins")
    return HistoryFollower(file).poll()
