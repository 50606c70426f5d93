"""Layout of journals in PostgreSQL: one schema, `gleaner`, for a whole cluster.

It has all journals of all hosts. Owns the tables, their version and the migration from older ones; the
connections and their settings; the allowed content of a URL. A *space* is the counterpart of a file: the
streams of one process of one job (`cluster/agent`, `<job>/rollout`), so that a job's journals can be read and
forgotten by its name.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import Connection, sql

from gleaner.supervisor.errors import (
    JournalAway,
    JournalDamaged,
    JournalError,
    JournalFull,
    JournalUnreadable,
)
from gleaner.supervisor.journal.rows import damaged

LAYOUT = 1
CONNECT_S = 5
"""A server that does not answer within it is away."""
STATEMENT_S = 30.0
"""No statement of ours takes a second; one that takes so long waits for a client that is gone."""
IDLE_S = 2.0
"""If a host freezes in the middle of a transaction, the server ends its session after so long, which frees
its locks. It must be well below any lease."""
GONE_S = 5
"""A server notices the loss of a session's host after so long."""
_UPGRADE_LOCK = 0x676C6E72  # an arbitrary number of our own: one process upgrades at a time

Database = Connection[tuple[Any, ...]]

_TABLES = """
CREATE TABLE gleaner.streams (
    space text, name text, incarnation bigint NOT NULL, last_seq bigint NOT NULL, base_seq bigint NOT NULL,
    written timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (space, name));
CREATE TABLE gleaner.events (
    space text, stream text, seq bigint, kind text NOT NULL, version int NOT NULL, body bytea NOT NULL,
    crc bigint NOT NULL, PRIMARY KEY (space, stream, seq));
CREATE TABLE gleaner.snapshots (
    space text, stream text, seq bigint NOT NULL, kind text NOT NULL, version int NOT NULL,
    body bytea NOT NULL, crc bigint NOT NULL, PRIMARY KEY (space, stream));
CREATE TABLE gleaner.leases (
    name text PRIMARY KEY, term bigint NOT NULL, holder text NOT NULL, expires timestamptz NOT NULL);
"""


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user_and_host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{user_and_host[2]}"))


def connect(url: str) -> Database:
    """A session with our settings, in autocommit mode. Raises JournalAway, JournalError."""
    limits = {
        "statement_timeout": int(STATEMENT_S * 1000),
        "idle_in_transaction_session_timeout": int(IDLE_S * 1000),
        "tcp_keepalives_idle": 1,  # of the server's own end, which waits for two hours otherwise
        "tcp_keepalives_interval": 1,
        "tcp_keepalives_count": GONE_S - 1,
        "tcp_user_timeout": GONE_S * 1000,
    }
    settings = " ".join(f"-c {name}={value}" for name, value in limits.items())
    try:
        return psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=CONNECT_S,
            application_name="gleaner",
            options=settings,
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=10_000,
        )
    except psycopg.Error as problem:
        raise translated(url, problem) from problem


def prepare(db: Database, url: str) -> None:
    """Make or upgrade the tables. Raises JournalUnreadable, JournalError."""
    try:
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", (_UPGRADE_LOCK,))
            db.execute("CREATE SCHEMA IF NOT EXISTS gleaner")
            db.execute("CREATE TABLE IF NOT EXISTS gleaner.layout (version int NOT NULL)")
            layout = layout_of(db, url)
            for older in range(layout, LAYOUT):
                _STEPS[older](db)
            if layout == 0:
                db.execute("INSERT INTO gleaner.layout VALUES (%s)", (LAYOUT,))
            elif layout < LAYOUT:
                db.execute("UPDATE gleaner.layout SET version=%s", (LAYOUT,))
    except psycopg.Error as problem:
        raise translated(url, problem) from problem


def layout_of(db: Database, url: str) -> int:
    """The version of the tables; 0 if there are none yet. Raises JournalUnreadable."""
    row = db.execute("SELECT max(version) FROM gleaner.layout").fetchone()
    layout = 0 if row is None or row[0] is None else int(row[0])
    if layout > LAYOUT:
        raise JournalUnreadable(
            f"journal {without_password(url)} has layout {layout}, this program supports up to {LAYOUT}: run "
            "the newer program"
        )
    return layout


def translated(url: str, problem: psycopg.Error) -> JournalError:
    """The journal error for an error of the server or of the connection."""
    place = without_password(url)
    text = " ".join(str(problem).split())
    state = problem.sqlstate or ""
    if state.startswith("53") and state != "53300":  # insufficient resources; 53300: too many connections
        return JournalFull(f"{place}: {text}: free space on the server's disk")
    if state.startswith("XX"):  # data corrupted, index corrupted
        return damaged(place, text)
    if state in ("3F000", "42P01", "42703"):  # no such schema, table, column
        return JournalDamaged(f"journal {place}: {text}: its tables are not those of a journal")
    if isinstance(problem, psycopg.OperationalError | psycopg.InterfaceError) or state[:2] in (
        "57",
        "55",
        "40",
    ):
        return JournalAway(f"{place}: {text}: start the server, or mend the way to it")
    return JournalError(f"{place}: {text}")


class LeaseTerm(NamedTuple):
    """A lease that the writer holds under a term; a newer term fences its writes."""

    name: str
    term: int


def _create(db: Database) -> None:
    for statement in _TABLES.split(";")[:-1]:
        db.execute(sql.SQL(statement))


_STEPS: dict[int, Callable[[Database], None]] = {0: _create}
"""From each layout to the next one; 0: an empty database."""
