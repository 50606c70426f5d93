"""PostgresJournal: journals in PostgreSQL, for a head that can fail over.

Owns the statements and the connection of one process. The promises are those of the port. The transaction
that writes checks the fence of incarnations, and that of the lease's term where the writer holds one: a head
that lost its lease writes nothing, even if it does not know. A connection that broke is made anew with the
next call. The commit under way then fails, though it may have been stored: a replay shows it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psycopg

from gleaner.supervisor.errors import Fenced, JournalAway
from gleaner.supervisor.journal.group_commit import Committed, GroupCommit, Write
from gleaner.supervisor.journal.postgres_layout import (
    Database,
    LeaseTerm,
    connect,
    prepare,
    translated,
    without_password,
)
from gleaner.supervisor.journal.postgres_view import TRIAL, read_stream
from gleaner.supervisor.journal.rows import StreamRows, row_checksum, snapshot_seq

T = TypeVar("T")

PROBE_BYTES = 64 << 10


class PostgresKeeper:
    """A `group_commit.Keeper`; the arguments are those of `PostgresJournal`."""

    def __init__(self, url: str, space: str, lease: LeaseTerm | None) -> None:
        self.place = f"{without_password(url)} ({space})"
        self._url, self._space, self._lease = url, space, lease
        self._db: Database | None = connect(url)
        prepare(self._db, url)

    def claim(self, stream: str, incarnation: int) -> None:
        """See `Keeper`."""

        def claim(db: Database) -> None:
            held, last_seq, base_seq = self._heads(db, [stream])[stream]
            if held > incarnation:
                raise Fenced(
                    f"{self.place}: {stream} was opened by incarnation {held}, this is {incarnation}"
                )
            self._set_heads(db, {stream: (incarnation, last_seq, base_seq)})

        self._transaction(claim)

    def commit(self, writes: Sequence[Write]) -> list[Committed | Exception]:
        """See `Keeper`."""
        return self._transaction(lambda db: self._apply(db, writes))

    def read(self, stream: str) -> StreamRows:
        """See `Keeper`."""
        with self._connected() as db:
            return read_stream(db, self._space, stream) or StreamRows(stream, 0, 0, 0, None, ())

    def force_out(self) -> None:
        """See `Keeper`. A server does so with each commit, where `fsync` and `synchronous_commit` are on."""

    def probe(self) -> None:
        """See `Keeper`."""
        row = (self._space, TRIAL, 0, "", 0, bytes(PROBE_BYTES), 0)

        def write(db: Database) -> None:
            db.execute("DELETE FROM gleaner.snapshots WHERE space=%s AND stream=%s", row[:2])
            db.execute("INSERT INTO gleaner.snapshots VALUES (%s, %s, %s, %s, %s, %s, %s)", row)

        self._transaction(write)

    def low(self) -> str:
        """See `Keeper`. The free space of another host is not known here."""
        return ""

    def newest_incarnation(self) -> int:
        """See `Keeper`; in any space of the database."""
        with self._connected() as db:
            row = db.execute("SELECT max(incarnation) FROM gleaner.streams").fetchone()
            return 0 if row is None or row[0] is None else int(row[0])

    def close(self) -> None:
        """See `Keeper`."""
        if self._db is not None:
            self._db.close()

    # -- rows --

    def _apply(self, db: Database, writes: Sequence[Write]) -> list[Committed | Exception]:
        heads = self._heads(db, sorted({write.stream for write in writes}))
        results: list[Committed | Exception] = []
        rows: dict[str, list[tuple[object, ...]]] = {}
        snapshots: dict[str, tuple[object, ...]] = {}
        changed = set()
        for write in writes:
            stream = write.stream
            held, last_seq, base_seq = heads[stream]
            if held > write.incarnation:
                text = f"{self.place}: {stream} belongs to incarnation {held}, this is {write.incarnation}"
                results.append(Fenced(text))
                continue
            if write.is_snapshot:
                base_seq = last_seq = snapshot_seq(last_seq, base_seq)
                kind, version, body = write.rows[0]
                crc = row_checksum(stream, last_seq, kind, version, body)
                snapshots[stream] = (self._space, stream, last_seq, kind, version, body, crc)
                rows.pop(stream, None)  # the rows that it replaces need not be written
            else:
                for kind, version, body in write.rows:
                    last_seq += 1
                    crc = row_checksum(stream, last_seq, kind, version, body)
                    row = (self._space, stream, last_seq, kind, version, body, crc)
                    rows.setdefault(stream, []).append(row)
            heads[stream] = (write.incarnation, last_seq, base_seq)
            changed.add(stream)
            results.append(Committed(last_seq, last_seq - base_seq))
        if snapshots:
            names = (self._space, list(snapshots))
            db.execute("DELETE FROM gleaner.events WHERE space=%s AND stream=ANY(%s)", names)
            db.execute("DELETE FROM gleaner.snapshots WHERE space=%s AND stream=ANY(%s)", names)
            _insert(db, "snapshots", list(snapshots.values()))
        _insert(db, "events", [row for of_stream in rows.values() for row in of_stream])
        self._set_heads(db, {stream: heads[stream] for stream in changed})
        return results

    def _heads(self, db: Database, streams: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        """Incarnation, last and base of each, locked to the end of the transaction, in one order for all."""
        found = self._locked(db, streams)
        missing = [stream for stream in streams if stream not in found]
        if missing:  # made first: what does not exist cannot be locked
            db.execute(
                "INSERT INTO gleaner.streams (space, name, incarnation, last_seq, base_seq)"
                " SELECT %s, unnest(%s::text[]), 0, 0, 0 ON CONFLICT DO NOTHING",
                (self._space, missing),
            )
            found = self._locked(db, streams)
        return found

    def _locked(self, db: Database, streams: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        found = db.execute(
            "SELECT name, incarnation, last_seq, base_seq FROM gleaner.streams"
            " WHERE space=%s AND name=ANY(%s) ORDER BY name FOR UPDATE",
            (self._space, list(streams)),
        )
        return {name: (incarnation, last, base) for name, incarnation, last, base in found}

    def _set_heads(self, db: Database, heads: dict[str, tuple[int, int, int]]) -> None:
        columns = [
            list(column) for column in zip(*((name, *head) for name, head in heads.items()), strict=True)
        ]
        if columns:
            db.execute(
                "UPDATE gleaner.streams AS s SET incarnation=n.incarnation, last_seq=n.last_seq,"
                " base_seq=n.base_seq, written=now()"
                " FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])"
                " AS n(name, incarnation, last_seq, base_seq) WHERE s.space=%s AND s.name=n.name",
                (*columns, self._space),
            )

    # -- the connection --

    def _transaction(self, work: Callable[[Database], T]) -> T:
        """Run `work` in one transaction, all or nothing, and only under the lease. Raises Fenced,
        JournalError.

        A connection that proves broken before the commit was requested has changed nothing: then the
        transaction is tried once more, on a new one.
        """
        try:
            return self._try_transaction(work)
        except _NothingDone:
            return self._try_transaction(work)

    def _try_transaction(self, work: Callable[[Database], T]) -> T:
        known, asked = self._db, False
        try:
            with self._connected() as db, db.transaction():
                if self._lease is not None:
                    self._check_lease(db, self._lease)
                result = work(db)
                asked = True
        except JournalAway as problem:
            if known is not None and self._db is None and not asked:
                raise _NothingDone(str(problem)) from problem
            raise
        return result

    def _check_lease(self, db: Database, lease: LeaseTerm) -> None:
        """Share the lease's row until the commit: a newer term begins before this transaction or after it."""
        row = db.execute(
            "SELECT term, holder FROM gleaner.leases WHERE name=%s FOR SHARE", (lease.name,)
        ).fetchone()
        if row is None or row[0] != lease.term:
            now = "nobody" if row is None else f"{row[1]} under term {row[0]}"
            raise Fenced(
                f"{self.place}: the lease {lease.name} is held by {now}, this writes under term {lease.term}"
            )

    @contextmanager
    def _connected(self) -> Iterator[Database]:
        """The connection, replaced if it broke. Raises JournalError for errors within."""
        if self._db is None:
            self._db = connect(self._url)
        db = self._db
        try:
            yield db
        except psycopg.Error as problem:
            error = translated(self._url, problem)
            if db.closed or db.broken:
                error = JournalAway(str(error))  # whatever the server reported as it went away
            if isinstance(error, JournalAway):
                self._db = None
                db.close()
            raise error from problem


class _NothingDone(JournalAway):
    """The connection was broken before anything was asked to be kept."""


class PostgresJournal(GroupCommit):
    """A `JournalStore` in the database of `url`.

    Args:
        url: `postgresql://user@host/database`, as libpq takes it; several hosts may be named.
        space: whose streams these are, `<job>/<process>`.
        commit_s: how long a group gathers before it is committed.
        lease: the lease under which this process may write; None: the newest incarnation may write.

    Raises: JournalAway, JournalUnreadable, JournalError.
    """

    def __init__(
        self, url: str, *, space: str, commit_s: float = 0.005, lease: LeaseTerm | None = None
    ) -> None:
        super().__init__(PostgresKeeper(url, space, lease), commit_s=commit_s)


def forget_jobs(url: str, stay: Sequence[str], count: int, *, over: str) -> list[str]:
    """Delete the journals of finished jobs, but for the `count` most recently written ones and those named in
    `stay`. Journals of an unfinished job are never deleted: it may be resumed. Returns the unfinished jobs,
    without `stay`, the most recently written first.

    A job is the first part of its spaces' names; it is finished when one of its streams has an event of the
    kind `over`. Raises JournalError.
    """
    db = connect(url)
    try:
        prepare(db, url)
        with db.transaction():
            found = db.execute(
                "SELECT split_part(space, '/', 1) FROM gleaner.streams GROUP BY 1"
                " HAVING split_part(space, '/', 1)<>ALL(%s) ORDER BY max(written) DESC",
                (list(stay),),
            )
            ended = db.execute(
                "SELECT DISTINCT split_part(space, '/', 1) FROM gleaner.events WHERE kind=%s", (over,)
            )
            known = {job for (job,) in ended}
            jobs = [job for (job,) in found]
            old = [job for job in jobs[count:] if job in known]
            for table in ("events", "snapshots", "streams"):
                db.execute(
                    f"DELETE FROM gleaner.{table} WHERE split_part(space, '/', 1)=ANY(%s)".encode(), (old,)
                )
            return [job for job in jobs if job not in known]
    except psycopg.Error as problem:
        raise translated(url, problem) from problem
    finally:
        db.close()


def _insert(db: Database, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    """All rows with one statement."""
    if not rows:
        return
    columns = [list(column) for column in zip(*rows, strict=True)]
    db.execute(
        f"INSERT INTO gleaner.{table} SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], "
        "%s::int[], %s::bytea[], %s::bigint[])",
        columns,
    )
