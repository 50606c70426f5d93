"""The watchdog of a node agent, as a service manager has it: signs of life are expected within a time.

Owns the socket to which the agent sends them, by the protocol of sd_notify(3). What follows from a silence is
`node`'s.
"""

import contextlib
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

WATCHDOG_S = 20.0  # as WatchdogSec of the shipped unit
READY_S = 90.0  # as its TimeoutStartSec: until the first word
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
        """What the agent is told of it."""
        return {"NOTIFY_SOCKET": str(self._path), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}

    def late(self) -> str:
        """Why the agent is to be killed, in words; "" while it is well. What came since the last look is
        heard first, so that a pause of this process is no silence."""
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(MAX_BYTES):
                self._heard_s, self._ready = time.monotonic(), True
        silent_s = time.monotonic() - self._heard_s
        if silent_s <= (WATCHDOG_S if self._ready else READY_S):
            return ""
        return f"no sign of life for {silent_s:.0f} s"

    def close(self) -> None:
        """Expect nothing more."""
        self._socket.close()
        self._folder.cleanup()
