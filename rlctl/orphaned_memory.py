"""Orphaned shared memory of dead runs.

Owns the report. `gleaner.nodeagent.job_memory` decides what may be freed.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gleaner.nodeagent import job_memory
from gleaner.rlctl.columns import Column, Table, fitted
from gleaner.rlctl.preflight import size

COLUMNS = (
    Column("folder"),
    Column("weights", right=True),
    Column("host copies", right=True),
    Column("freed", right=True),
    Column("kept because", spare=1),
)


class OrphanedFolder(msgspec.Struct):
    """A folder. `freed_bytes`: bytes freed, or that would be freed. `kept`: why a part of it stays."""

    path: str
    image_bytes: int
    state_bytes: int
    freed_bytes: int
    kept: str


class OrphanedMemory(msgspec.Struct):
    """All folders of this user's runs. `dry`: nothing was changed."""

    folders: list[OrphanedFolder]
    freed_bytes: int
    dry: bool


def clean(root: Path, quiet_s: float, *, whole: bool, dry: bool) -> OrphanedMemory:
    """Free the images of dead runs; `whole`: their host copies too. `dry`: only report what would be freed.
    `quiet_s`: a run with a change in this time is not dead."""
    folders = [_cleaned(one, quiet_s, whole, dry) for one in job_memory.found(root, quiet_s)]
    return OrphanedMemory(folders, sum(one.freed_bytes for one in folders), dry)


def _cleaned(one: job_memory.JobFolder, quiet_s: float, whole: bool, dry: bool) -> OrphanedFolder:
    freed, kept = 0, one.used
    if not one.used:
        freed = one.image_bytes + (one.state_bytes if whole else 0)
        if not dry:
            freed = job_memory.free(one, quiet_s, whole=whole)
            kept = "" if freed or not one.path.exists() else "a process opened it just now"
        if one.state_bytes and not whole:
            kept = "its run can be resumed from them (--all)"
    return OrphanedFolder(str(one.path), one.image_bytes, one.state_bytes, freed, kept)


def table(folders: Sequence[OrphanedFolder], width: int) -> Table:
    """A line for each."""
    rows = [
        [one.path, size(one.image_bytes), size(one.state_bytes), size(one.freed_bytes), one.kept]
        for one in folders
    ]
    return fitted(COLUMNS, rows, width)
