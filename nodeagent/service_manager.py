"""ServiceManager: notifications to systemd by sd_notify(3), in one datagram.

Owns the socket's address and the watchdog's time, which systemd passes in the environment. Without them
nothing is sent. Implemented here because it is a dozen lines; the binding to libsystemd is a package of C.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

READY = "READY=1"
WATCHDOG = "WATCHDOG=1"
STOPPING = "STOPPING=1"
SIGNS = 3
"""Signs of life within the watchdog's time; sd_watchdog_enabled(3) asks for two at least."""

log = logging.getLogger("nodeagent")


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """See the module. address: of its socket, "" without one; watchdog_s: 0 if it expects no signs of
    life."""

    address: str = ""
    watchdog_s: float = 0.0

    @classmethod
    def of(cls, env: MutableMapping[str, str]) -> "ServiceManager":
        """The manager described by the environment. Its variables are removed: they are for this process, not
        for its children."""
        address = env.pop("NOTIFY_SOCKET", "")
        usec, pid = env.pop("WATCHDOG_USEC", ""), env.pop("WATCHDOG_PID", "")
        ours = pid in ("", str(os.getpid()))
        return cls(address, int(usec) / 1e6 if usec.isdigit() and ours and address else 0.0)

    def notify(self, state: str) -> None:
        """Send it; a manager that does not listen is logged, and does no harm."""
        if not self.address:
            return
        path = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(state.encode(), path)
        except OSError as problem:
            log.warning("the service manager at %s did not take %s: %s", self.address, state, problem)


class SignsOfLife:
    """Reports that the loop of this process runs, `SIGNS` times in `watchdog_s`, from its making to `close`;
    nothing where `watchdog_s` is 0."""

    def __init__(self, notify: Callable[[str], None], watchdog_s: float) -> None:
        self._notify, self._every_s = notify, watchdog_s / SIGNS
        self._timer: asyncio.TimerHandle | None = None
        if watchdog_s > 0:
            self._say()

    def close(self) -> None:
        """No more of them."""
        if self._timer is not None:
            self._timer.cancel()

    def _say(self) -> None:
        self._notify(WATCHDOG)
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._say)
