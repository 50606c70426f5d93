"""PostgresLease: a lease in the database, one holder at a time, growing terms.

Each term is greater than all before. Owns the row of one lease. Time is the database's clock. Blocking, one
connection: call it from one thread at a time. The fence is not here: every transaction of a journal checks
the term (`postgres`), so a holder that was frozen past its lease writes nothing, even if it does not
know. Source: Chubby's sequencers (Burrows, OSDI 2006), and M. Kleppmann, "How to do distributed locking"
(2016).
"""

import contextlib
from typing import NamedTuple

import psycopg

from gleaner.supervisor.errors import JournalAway, JournalError
from gleaner.supervisor.journal.postgres_layout import Database, LeaseTerm, connect, prepare, translated


class LeaseHolder(NamedTuple):
    """The holder of the lease, its term, and the seconds left (of the database's clock)."""

    holder: str
    term: int
    left_s: float


class PostgresLease:
    """The lease `name` of the cluster whose journals are in the database of `url`.

    Args:
        url: as of the journals. name: of the lease.
        holder: a description of this process, for others to read.
        lease_s: how long it lasts without a renewal.
    """

    def __init__(self, url: str, name: str, holder: str, lease_s: float) -> None:
        self.name, self.holder, self.lease_s = name, holder, lease_s
        self._url = url
        self._db: Database | None = None
        self._prepared = False

    def acquire(self) -> LeaseTerm | None:
        """Take the lease if it is free; None if it is held. Raises JournalAway, JournalError.

        If a write of the last holder blocks the lease's row, end that write for the next try."""
        try:
            return self._try_to_acquire()
        except _Blocked:
            self._end_writes()
            raise

    def _try_to_acquire(self) -> LeaseTerm | None:
        row = self._one(
            "INSERT INTO gleaner.leases AS held"
            " VALUES (%s, 1, %s, clock_timestamp() + %s * interval '1 second')"
            " ON CONFLICT (name) DO UPDATE SET term=held.term + 1, holder=excluded.holder,"
            " expires=excluded.expires WHERE held.expires < clock_timestamp() RETURNING term",
            (self.name, self.holder, self.lease_s),
        )
        return None if row is None else LeaseTerm(self.name, int(str(row[0])))

    def _end_writes(self) -> None:
        """End the sessions that hold the row of a lease that ran out. One that was cut off in the middle of a
        request has no time limit in the server: it would hold the row until TCP gives up, after hours."""
        self._one(
            "SELECT count(pg_terminate_backend(locks.pid)) FROM pg_locks AS locks, gleaner.leases AS held"
            " WHERE held.name=%s AND held.expires < clock_timestamp() AND locks.granted"
            " AND locks.relation='gleaner.leases'::regclass AND locks.mode='RowShareLock'"
            " AND locks.pid <> pg_backend_pid()",
            (self.name,),
        )

    def renew(self, term: LeaseTerm) -> bool:
        """Extend the lease to `lease_s` from now; False if a newer term began. Raises as `acquire`."""
        row = self._one(
            "UPDATE gleaner.leases SET expires=clock_timestamp() + %s * interval '1 second'"
            " WHERE name=%s AND term=%s RETURNING term",
            (self.lease_s, term.name, term.term),
        )
        return row is not None

    def release(self, term: LeaseTerm) -> None:
        """Give the lease up, if it is held under `term`: waiting processes need not wait on. Raises as
        `acquire`."""
        self._one(
            "UPDATE gleaner.leases SET expires=clock_timestamp() - interval '1 second'"
            " WHERE name=%s AND term=%s RETURNING term",
            (term.name, term.term),
        )

    def look(self) -> LeaseHolder | None:
        """Its holder; None if it never had one. Raises as `acquire`."""
        row = self._one(
            "SELECT holder, term, extract(epoch FROM expires - clock_timestamp())::float8"
            " FROM gleaner.leases WHERE name=%s",
            (self.name,),
        )
        return None if row is None else LeaseHolder(str(row[0]), int(str(row[1])), float(str(row[2])))

    def close(self) -> None:
        """Close the connection."""
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(psycopg.Error):
                db.close()

    def _one(self, statement: str, values: tuple[object, ...]) -> tuple[object, ...] | None:
        try:
            return self._connected().execute(statement.encode(), values).fetchone()
        except psycopg.Error as problem:
            self.close()  # made anew with the next call
            error = translated(self._url, problem)
            if isinstance(problem, psycopg.errors.QueryCanceled):
                error = _Blocked(str(error))
            raise error from problem

    def _connected(self) -> Database:
        if self._db is None:
            db = connect(self._url)
            try:
                if not self._prepared:
                    prepare(db, self._url)
                    self._prepared = True
                # A renewal that waits for longer than this is of no use.
                db.execute(f"SET statement_timeout={int(self.lease_s * 1000 / 3)}")
            except (psycopg.Error, JournalError):
                db.close()
                raise
            self._db = db
        return self._db


class _Blocked(JournalAway):
    """Another session holds the lease's row for longer than a statement may take."""
