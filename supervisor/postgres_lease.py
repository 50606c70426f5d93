"""A lease in the database: at most one holder at a time, each under a term greater than all before.

Owns the row of one lease. Time is the database's clock. Blocking, one connection: call it from one thread at
a time. What makes it a fence is not here: every transaction of a journal checks the term
(`postgres_journal`), so a holder that was frozen past its lease writes nothing, whatever it believes. Source:
Chubby's sequencers (Burrows, OSDI 2006), and M. Kleppmann, "How to do distributed locking" (2016).
"""

import contextlib
from typing import NamedTuple

import psycopg

from supervisor.errors import JournalAway, JournalError
from supervisor.postgres_layout import Database, LeaseTerm, connect, prepare, translated


class HeldBy(NamedTuple):
    """Who has the lease, under which term, and for how long still (seconds, of the database's clock)."""

    holder: str
    term: int
    left_s: float


class PostgresLease:
    """The lease `name` of the cluster whose journals are in the database of `url`.

    Args:
        url: as of the journals. name: of the lease.
        holder: who we are, for others to read.
        lease_s: how long it lasts without a renewal.
    """

    def __init__(self, url: str, name: str, holder: str, lease_s: float) -> None:
        self.name, self.holder, self.lease_s = name, holder, lease_s
        self._url = url
        self._db: Database | None = None
        self._prepared = False

    def acquire(self) -> LeaseTerm | None:
        """Take the lease if nobody has it; None where somebody has. Raises JournalAway, JournalError.

        Where a write of the last holder stands in the way it is ended for the next try."""
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
        """Have it for another `lease_s` from now; False where a newer term began. Raises as `acquire`."""
        row = self._one(
            "UPDATE gleaner.leases SET expires=clock_timestamp() + %s * interval '1 second'"
            " WHERE name=%s AND term=%s RETURNING term",
            (self.lease_s, term.name, term.term),
        )
        return row is not None

    def release(self, term: LeaseTerm) -> None:
        """Give it up, if it is held under `term`: whoever waits need not wait on. Raises as `acquire`."""
        self._one(
            "UPDATE gleaner.leases SET expires=clock_timestamp() - interval '1 second'"
            " WHERE name=%s AND term=%s RETURNING term",
            (term.name, term.term),
        )

    def look(self) -> HeldBy | None:
        """Who has it; None where nobody ever had. Raises as `acquire`."""
        row = self._one(
            "SELECT holder, term, extract(epoch FROM expires - clock_timestamp())::float8"
            " FROM gleaner.leases WHERE name=%s",
            (self.name,),
        )
        return None if row is None else HeldBy(str(row[0]), int(str(row[1])), float(str(row[2])))

    def close(self) -> None:
        """Let go of the connection."""
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
    """Somebody holds the lease's row for longer than a statement may take."""
