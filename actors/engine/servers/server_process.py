"""`ServerProcess`: an inference server as a child of its worker.

Owns its process: its port, its group, its end with ours, and the last lines of its log. Knows no protocol:
the wire checks its readiness. Adapter: processes and files.

Bounds: a log of `MAX_LOG_BYTES`, and as much of the previous one.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gleaner.actors.engine.servers.port import ServerDied

FIRST_PORT, PORTS = 20_000, 12_000
"""Linux gives ports from 32768 on to connections (`ip_local_port_range`)."""
PORT_TRIES = 100
MAX_LOG_BYTES = 1 << 20
TAIL_LINES = 12
TAIL_BYTES = 8 << 10
REAP_S = 2.0  # for a killed group; the kernel reaps the rest


def free_port() -> int:
    """A TCP port of the loopback interface at which no process listens now. It is outside the kernel's range
    for connections, because a server may take half a minute until it listens. Raises OSError if none was
    found."""
    for _ in range(PORT_TRIES):
        port = FIRST_PORT + secrets.randbelow(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"{PORT_TRIES} ports of 127.0.0.1 from {FIRST_PORT} on were all in use")


class ServerProcess:
    """A running server. It ends with this process, however that ends (`server_launcher`).

    Args:
        argv: its command line.
        env: beside the environment of this process, without its `PYTHONPATH`.
        log: the file for its output.
        modules: a folder of modules of ours that it may import; None for none.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, modules: Path | None = None
    ) -> None:
        self.argv, self._log = list(argv), log
        ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        path = os.pathsep.join(entry for entry in sys.path if entry)
        its_path = ["-u", "PYTHONPATH"] if modules is None else [f"PYTHONPATH={modules}"]
        launch = [
            sys.executable,
            "-P",
            "-m",
            "gleaner.actors.engine.servers.server_launcher",
            "env",
            *its_path,
        ]
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                [*launch, *self.argv],
                stdin=subprocess.PIPE,  # the launcher watches it for our end
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=log.parent,
                env={**ours, **env, "PYTHONPATH": path},
            )

    @property
    def pid(self) -> int:
        """Id of its process group, which contains the server and all its children."""
        return self._popen.pid

    def require_alive(self) -> None:
        """Raises `ServerDied` with the way in which it ended and its last output."""
        code = self._popen.poll()
        if code is not None:
            how = signal.Signals(-code).name if code < 0 else f"exit {code}"
            raise ServerDied(f"the server ended ({how}); its last lines:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines of its log."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return "(nothing)"
        return "\n".join(line[:300] for line in lines[-TAIL_LINES:]) or "(nothing)"

    def trim_log(self) -> None:
        """Keep the log within its bounds; its writer appends, and continues at the new end."""
        try:
            if self._log.stat().st_size > MAX_LOG_BYTES:
                self._log.with_suffix(".log.old").write_bytes(self._log.read_bytes()[-MAX_LOG_BYTES:])
                os.truncate(self._log, 0)
        except FileNotFoundError:
            return

    def kill(self) -> None:
        """End it and all that it started, at once; a second call does nothing."""
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def reap(self) -> None:
        """After `kill`: wait for its end, for a short time."""
        try:
            self._popen.wait(REAP_S)
        except subprocess.TimeoutExpired:
            return
        if self._popen.stdin is not None:
            self._popen.stdin.close()
