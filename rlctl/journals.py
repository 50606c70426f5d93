"""Stored journals for people and other programs: streams, plain rows, faults.

Owns the contents of `rlctl journal`'s output. Prints nothing, writes nothing, needs no actor. A row is shown
as it was written (kind, version, fields), read by the reference `msgpack` package, so that no class of ours
is needed.
"""

import base64
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack

from gleaner.actors.cluster import provider, scheduler
from gleaner.rlctl.audit import run_files as evidence
from gleaner.rlctl.audit.journal_faults import Shown, faults, known, streams
from gleaner.rlctl.errors import nothing
from gleaner.supervisor.journal.file import JournalView
from gleaner.supervisor.journal.group_commit import MAX_TAIL
from gleaner.supervisor.journal.rows import Row, StreamRows, row_checksum
from gleaner.supervisor.journal.store_choice import is_url

__all__ = ["Shown", "describe", "faults", "known", "places", "plain", "record", "records", "streams"]

DEFINED_IN = (provider, scheduler, evidence)
"""Imported for the kinds that they define: without them a newer program's rows cannot be recognised."""
MAX_DEPTH = 64  # of a message's fields; deeper ones are shown as text


def places(given: Sequence[str]) -> list[str]:
    """Files, URLs, and every journal file under the folders. Raises CommandError where an argument is
    neither."""
    found: list[str] = []
    for place in given:
        if is_url(place) or Path(place).is_file():
            found.append(place)
            continue
        files = sorted(str(path) for path in Path(place).rglob("*.sqlite"))
        if not files:
            raise nothing(
                f"{place}: no journal file, no folder with journals (*.sqlite), no postgresql:// URL"
            )
        found += files
    return found


def describe(journal: JournalView, only: str, tail: int) -> Iterator[Shown]:
    """Each stream (or those whose name contains `only`) with its newest `tail` events."""
    for name, rows in streams(journal, only):
        stored = [row for row in (rows.snapshot, *rows.events) if row is not None]
        kinds = Counter((row.kind, row.version) for row in stored)
        yield {
            "stream": name,
            "incarnation": rows.incarnation,
            "last_seq": rows.last_seq,
            "snapshot_seq": rows.base_seq if rows.snapshot is not None else None,
            "snapshot": rows.snapshot.kind if rows.snapshot is not None else None,
            "tail": len(rows.events),
            "tail_is_long": len(rows.events) > MAX_TAIL,
            "bytes": sum(len(row.body) for row in stored),
            "kinds": [
                {"kind": kind, "version": version, "count": count, "known": known(kind, version)}
                for (kind, version), count in sorted(kinds.items())
            ],
            "newest": [record(name, rows, row) for row in rows.events[max(0, len(rows.events) - tail) :]],
        }


def records(journal: JournalView, only: str) -> Iterator[Shown]:
    """Every row, stream by stream in the order of a replay."""
    for name, rows in streams(journal, only):
        if rows.snapshot is not None:
            yield record(name, rows, rows.snapshot)
        for row in rows.events:
            yield record(name, rows, row)


def record(name: str, rows: StreamRows, row: Row) -> Shown:
    """One row. `whole` is false where it fails its checksum; then `fields` may hold anything."""
    try:
        fields = plain(msgpack.unpackb(row.body, raw=False, strict_map_key=False))
    except Exception as problem:  # noqa: BLE001 (a decoder may raise anything on a damaged row)
        fields = {"not MessagePack": repr(problem)}
    if isinstance(fields, dict):
        fields.pop("type", None)
    crc = row_checksum(rows.name, row.seq, row.kind, row.version, row.body)
    return {
        "stream": name,
        "incarnation": rows.incarnation,
        "seq": row.seq,
        "what": "snapshot" if row is rows.snapshot else "event",
        "kind": row.kind,
        "version": row.version,
        "whole": crc == row.crc,
        "fields": fields,
    }


def plain(value: object, depth: int = 0) -> Any:
    """MessagePack as JSON values: bytes as {"base64": …}, numbers that JSON lacks as text."""
    if depth > MAX_DEPTH:
        return repr(value)
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)
