"""Faults of a journal: pages, streams, rows, and kinds that cannot be read.

Owns the verification that `rlctl journal verify` shows and that an audit begins with. Reads, never writes.
"""

from collections.abc import Iterator
from typing import Any

from gleaner.supervisor import JournalError
from gleaner.supervisor.journal.file import JournalView
from gleaner.supervisor.journal.rows import StreamRows
from gleaner.supervisor.message import schema_of

Shown = dict[str, Any]
"""A JSON object."""


def faults(journal: JournalView, only: str) -> Iterator[Shown]:
    """All faults: damage of the whole journal, then of each stream; then rows that this program cannot read.

    Unknown kinds are no fault: they may belong to another program.
    """
    try:
        journal.check()
    except JournalError as problem:
        yield {"stream": "", "fault": str(problem)}
    for name, rows in streams(journal, only):
        found = [{"stream": name, "fault": fault} for fault in rows.faults()]
        yield from found
        kept = [*rows.events, *([rows.snapshot] if rows.snapshot is not None else [])]
        if not found and all(known(row.kind, row.version) is not None for row in kept):
            try:
                rows.replay(journal.place)
            except JournalError as problem:
                yield {"stream": name, "fault": str(problem)}


def streams(journal: JournalView, only: str) -> Iterator[tuple[str, StreamRows]]:
    """The streams whose displayed name contains `only`."""
    for name in journal.names():
        rows = journal.rows(name) if only in name else None
        if rows is not None:
            yield name, rows


def known(kind: str, version: int) -> bool | None:
    """Whether this program understands the row; None where it does not know the kind."""
    ours = schema_of(kind)
    return None if ours is None else version <= ours
