"""Event-loop APIs that are forbidden in simulation (not deterministic).

Owns the list and the refusal.
"""

from collections.abc import Callable
from typing import NoReturn

REFUSED = (
    "run_in_executor",
    "call_soon_threadsafe",
    "add_reader",
    "remove_reader",
    "add_writer",
    "remove_writer",
    "add_signal_handler",
    "remove_signal_handler",
    "subprocess_exec",
    "subprocess_shell",
    "create_connection",
    "create_server",
    "create_datagram_endpoint",
    "create_unix_connection",
    "create_unix_server",
    "connect_read_pipe",
    "connect_write_pipe",
    "getaddrinfo",
    "getnameinfo",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_sendall",
    "sock_sendfile",
    "run_forever",
    "run_until_complete",
)


class NotSimulated(NotImplementedError):
    """Something was asked of a simulated process that only a real one has."""


def refusing(name: str) -> Callable[..., NoReturn]:
    """A method in the place of `name`."""

    def refuse(self: object, *_args: object, **_kwargs: object) -> NoReturn:
        raise NotSimulated(f"{self!r} called {name}: a simulated process has no threads, files or signals")

    return refuse
