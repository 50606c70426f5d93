"""ListenerProbe: checks by connecting whether a TCP address still has a listener.

libzmq connects again by itself, but its monitor does not report why an attempt failed. An unreachable host (a
partition, which may heal) looks like a port without a listener (a dead process). The kernel distinguishes
them: ECONNREFUSED is an answer of the host itself. The probe sends no byte, so the listener sees a connection
that opens and closes (`mesh` does not count those). Numeric addresses only: a name would have to be resolved.
"""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable

FIRST_AGAIN_S = 0.002  # a process that dies may close its listening socket a moment after its connections
AGAIN_S = 0.02  # between two attempts at most; each pause is twice the one before


class ListenerProbe:
    """Calls `on_refused` once when no process listens at `endpoint` ("tcp://ADDRESS:PORT"), until `stop`."""

    def __init__(self, endpoint: str, on_refused: Callable[[], None]) -> None:
        self._address = _numeric(endpoint)
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._again: asyncio.TimerHandle | None = None
        self._pause_s = FIRST_AGAIN_S

    def start(self) -> None:
        """Begin to ask; nothing happens for an address that is not numeric."""
        if self._address is not None and self._again is None:
            self._pause_s = FIRST_AGAIN_S
            self._try(*self._address)

    def stop(self) -> None:
        """Ask no more."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._hang_up()

    def _try(self, family: socket.AddressFamily, address: tuple[str, int]) -> None:
        self._hang_up()
        self._again = self._loop.call_later(self._pause_s, self._try, family, address)
        self._pause_s = min(2 * self._pause_s, AGAIN_S)
        try:
            sock = self._sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            return  # out of descriptors: the grace of the link decides
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code == errno.EINPROGRESS:
            self._loop.add_writer(sock.fileno(), self._connected)
        else:
            self._known(code)

    def _connected(self) -> None:
        assert self._sock is not None
        self._loop.remove_writer(self._sock.fileno())
        self._known(self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _known(self, code: int) -> None:
        if code == errno.ECONNREFUSED:
            self.stop()
            self._on_refused()
        elif code == 0 and self._sock is not None:
            self._sock.shutdown(socket.SHUT_WR)  # an end, not a reset: closed before the next attempt

    def _hang_up(self) -> None:
        if self._sock is not None:
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            self._sock = None


def _numeric(endpoint: str) -> tuple[socket.AddressFamily, tuple[str, int]] | None:
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        number = int(port)
    except ValueError:
        return None
    if scheme != "tcp" or not 0 < number < 1 << 16:
        return None
    return socket.AF_INET6 if address.version == 6 else socket.AF_INET, (str(address), number)
