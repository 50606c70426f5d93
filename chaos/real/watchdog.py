"""Watchdog of a node agent, as in a service manager, with timed signs of life.

Owns the socket to which the agent sends them, by the protocol of sd_notify(3). `node` acts on a silence.
"""

import contextlib
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

WATCHDOG_S = 20.0  # as WatchdogSec of the shipped unit
READY_S = 90.0  # as its TimeoutStartSec: until the first message
MAX_BYTES = 4096  # of one datagram; ours have a dozen


class Watchdog:
    """See the module; for the agent that is started next."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gleaner-")  # a short path: sockets need one
        self._path = Path(self._folder.name) / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._socket.bind(str(self._path))
        self._heard_s = time.monotonic()
        self._ready = False

    @property
    def env(self) -> Mapping[str, str]:
        """Environment that gives the agent its address and interval."""
        return {"NOTIFY_SOCKET": str(self._path), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}

    def late(self) -> str:
        """Why the agent must be killed, as text; "" while it is well. Messages since the last call are read
        first, so that a pause of this process does not count as silence."""
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(MAX_BYTES):
                self._heard_s, self._ready = time.monotonic(), True
        silent_s = time.monotonic() - self._heard_s
        if silent_s <= (WATCHDOG_S if self._ready else READY_S):
            return ""
        return f"no sign of life for {silent_s:.0f} s"

    def close(self) -> None:
        """Expect no more signs."""
        self._socket.close()
        self._folder.cleanup()
