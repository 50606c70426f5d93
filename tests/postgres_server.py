"""A real PostgreSQL server for tests, killed at the end.

It uses Debian's binaries and a data directory of its own. The server refuses to run as root, so it runs as
`nobody` where the tests run as root.
"""

import contextlib
import ctypes
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

PR_SET_PDEATHSIG = 1
START_S = 60.0  # machines that run tests are busy
SETTINGS = {
    "shared_buffers": "16MB",
    "max_connections": "60",
    "fsync": "off",  # the tests kill the server, not the machine
    "autovacuum": "off",
    "dynamic_shared_memory_type": "mmap",  # a killed server leaves nothing in /dev/shm
    "log_min_messages": "fatal",
}


def why_not() -> str:
    """The reason why no server can run here; "" where one can."""
    if _binaries() is None:
        return "no PostgreSQL server here (Debian's package `postgresql`): journals in it are NOT TESTED"
    return ""


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


class PostgresServer:
    """One server on `address`, at first not started. `inside`: a command that runs others in a namespace."""

    def __init__(self, address: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        binaries = _binaries()
        assert binaries is not None, why_not()
        self._binaries = binaries
        self._inside = list(inside)
        self._databases = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.root = Path(tempfile.mkdtemp(prefix="gleaner-postgres-"))
        self.address, self.port = address, _free_port()
        account = pwd.getpwnam("nobody")
        self._user: dict[str, int | str] = {}
        if os.geteuid() == 0:
            os.chown(self.root, account.pw_uid, account.pw_gid)
            self._user = {"user": account.pw_uid, "group": account.pw_gid}
        argv = [str(binaries / "initdb"), "--pgdata", str(self.root / "data"), "--auth=trust", "--no-sync"]
        argv += ["--username=gleaner", "--encoding=UTF8", "--no-locale"]
        made = subprocess.run(argv, capture_output=True, text=True, cwd=self.root, check=False, **self._user)  # type: ignore[call-overload]
        assert made.returncode == 0, made.stderr
        with (self.root / "data" / "pg_hba.conf").open("a") as hba:
            hba.write("host all all all trust\n")

    def url(self, database: str = "postgres") -> str:
        """The URL of one of its databases."""
        return f"postgresql://gleaner@{self.address}:{self.port}/{database}"

    def local_url(self, database: str = "postgres") -> str:
        """The same over the socket in the file system, which exists in every network namespace."""
        return f"postgresql://gleaner@/{database}?host={self.root}&port={self.port}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test{next(self._databases)}"
        with self.session() as db:
            db.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def session(self, database: str = "postgres") -> "psycopg.Connection[tuple[object, ...]]":
        """A session for a test's own statements, over the socket in the file system."""
        return psycopg.connect(
            host=str(self.root), port=self.port, user="gleaner", dbname=database, autocommit=True
        )

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers."""
        settings = {"listen_addresses": self.address, "unix_socket_directories": str(self.root), **SETTINGS}
        argv = [*self._inside, *self._unprivileged(), str(self._binaries / "postgres")]
        argv += ["-D", str(self.root / "data"), "-p", str(self.port)]
        argv += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        deadline = time.monotonic() + START_S
        while True:
            with (self.root / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    argv, cwd=self.root, stdout=log, stderr=log, preexec_fn=_die_with_the_tests,
                    **({} if self._inside else self._user),
                )  # type: ignore[call-overload]  # fmt: skip
            while self._process.poll() is None:
                with contextlib.suppress(psycopg.OperationalError), self.session():
                    return
                assert time.monotonic() < deadline, (self.root / "log").read_text()
                time.sleep(0.05)
            # After a kill its orphans lock the data for a moment.
            assert time.monotonic() < deadline, (self.root / "log").read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(START_S)

    def close(self) -> None:
        """Kill it and remove its files."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # at once, with its children
            try:
                self._process.wait(60.0)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def _unprivileged(self) -> list[str]:
        """In a namespace, the command that enters it must run as root; only then the server drops it."""
        if not (self._inside and self._user):
            return []
        return [
            "setpriv",
            f"--reuid={self._user['user']}",
            f"--regid={self._user['group']}",
            "--clear-groups",
            "--pdeathsig=SIGQUIT",
        ]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _die_with_the_tests() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)
