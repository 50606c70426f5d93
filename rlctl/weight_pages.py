"""Control pages of this host's instances, read for display.

Owns their location and display. `gleaner.actors.weights.control.page` defines the contents.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gleaner.actors.cluster.job import SHARED_MEMORY
from gleaner.actors.weights.control.file import has_writer, read_page
from gleaner.actors.weights.control.page import NONE, SUFFIX, BadPage
from gleaner.rlctl.columns import Column, Table, fitted

COLUMNS = (
    Column("page"),
    Column("state"),
    Column("serves", right=True),
    Column("next", right=True),
    Column("failed", right=True),
    Column("loads", right=True, spare=2),
    Column("pid", right=True, spare=1),
    Column("why"),
)


class PageSeen(msgspec.Struct):
    """A page. `alive`: its writer lives; of a dead writer, the state is the last one written. Versions are -1
    where there is none; roots are hexadecimal, "" there."""

    path: str
    alive: bool
    pid: int
    incarnation: int
    state: str
    version: int
    root: str
    next_version: int
    next_root: str
    failed_version: int
    failed_root: str
    tries: int
    why: str
    loads: int
    failures: int


class PagesSeen(msgspec.Struct):
    """All pages that could be read."""

    pages: list[PageSeen]


def find(path: Path | None) -> list[Path]:
    """The chosen pages: this one, those of this folder, or those of all runs on this host."""
    if path is None:
        return sorted(SHARED_MEMORY.glob(f"gleaner-*/weights/*{SUFFIX}"))
    if path.is_dir():
        return sorted(path.glob(f"*{SUFFIX}"))
    return [path] if path.exists() else []


def read(paths: Sequence[Path]) -> tuple[PagesSeen, list[str]]:
    """The contents of readable pages, and the faults of the others."""
    seen, problems = PagesSeen([]), []
    for path in paths:
        try:
            seen.pages.append(_seen(path))
        except BadPage as problem:
            problems.append(str(problem))
        except OSError as problem:
            problems.append(f"{path} cannot be read: {problem.strerror}")
    return seen, problems


def table(pages: Sequence[PageSeen], width: int) -> Table:
    """A line for each."""
    rows = []
    for page in pages:
        state = page.state if page.alive else f"{page.state}, then ended"
        versions = ["-" if it == NONE else str(it) for it in (page.version, page.next_version)]
        failed = "-" if page.failed_version == NONE else f"{page.failed_version} ({page.tries}x)"
        rows.append([page.path, state, *versions, failed, str(page.loads), str(page.pid), page.why])
    return fitted(COLUMNS, rows, width)


def _seen(path: Path) -> PageSeen:
    page = read_page(path)
    return PageSeen(
        path=str(path),
        alive=has_writer(path),
        pid=page.pid,
        incarnation=page.incarnation,
        state=page.state.name.lower().replace("_", " "),
        version=page.version,
        root=_hex(page.version, page.root),
        next_version=page.next_version,
        next_root=_hex(page.next_version, page.next_root),
        failed_version=page.failed_version,
        failed_root=_hex(page.failed_version, page.failed_root),
        tries=page.tries,
        why=page.why,
        loads=page.loads,
        failures=page.failures,
    )


def _hex(version: int, root: bytes) -> str:
    return "" if version == NONE else root.hex()
