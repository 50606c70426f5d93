"""Choice of the journal store by its place: a file path or a database URL.

PostgreSQL's client (the extra `postgres`) is imported only if a URL needs it.
"""

from contextlib import AbstractContextManager
from pathlib import Path

from gleaner.supervisor.errors import JournalError
from gleaner.supervisor.journal.file import JournalView, view_file

SCHEMES = ("postgresql://", "postgres://")


def is_url(place: str) -> bool:
    """Whether `place` names a database, not a file."""
    return place.startswith(SCHEMES)


def view(place: str | Path) -> AbstractContextManager[JournalView]:
    """Read the journal at `place`, without ever writing to it. Raises JournalError and its kinds."""
    if not is_url(str(place)):
        return view_file(Path(place))
    need_client(str(place))
    from gleaner.supervisor.journal.postgres_view import view_database

    return view_database(str(place))


def need_client(url: str) -> None:
    """Raises JournalError where PostgreSQL's client is not installed."""
    try:
        import psycopg  # noqa: F401
    except ImportError as problem:
        raise JournalError(f"{url}: needs PostgreSQL's client: pip install 'gleaner[postgres]'") from problem
