"""Carrier: the port through which data transfer opens its sockets.

Token streams and bulk transfer open sockets only here. Owns the types and the contract. Real sockets are in
`zmq_carrier`; a simulated network keeps the same promises. Control links have a port of their own (`wire`).
Knows no frame, no token and no range.

What every `Carrier` promises:
- Nothing blocks. `send` of a line or hub takes the frames or reports that it does not.
- Frames of one connection arrive in order, at most once; a broken connection loses its frames under way.
- A line connects again by itself until it is closed or rejected, under the same route.
- Bytes of a `Connection` arrive in order and complete, or the connection fails with an OSError.
- Callbacks run on the loop, one at a time; none runs after `close`.
"""

import enum
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from gleaner.transport.keys import Bulk, NodeKeys
from gleaner.transport.refusal import FrameError
from gleaner.transport.wire import Peer, Route, Sent

T = TypeVar("T")


class LineEvent(enum.Enum):
    """Events of a line's connection."""

    UP = "up"  # connected, for the first time or again
    LOST = "lost"  # the connection broke; another attempt follows
    REJECTED = "rejected"  # the listener does not admit us; no attempt follows


class Line(Protocol):
    """The dialling end of a token stream's connection."""

    def send(self, frames: Sequence[bytes]) -> bool:
        """Take a message; False when there is no connection, or too much waits on it."""

    def close(self) -> None:
        """Hang up; what is under way may be lost. A second call does nothing."""


class Hub(Protocol):
    """The listening end of token streams."""

    @property
    def local(self) -> Peer:
        """Address for lines."""

    def send(self, route: Route, frames: Sequence[bytes]) -> Sent:
        """Send to the line of `route`; NO_ROUTE when that line is gone."""

    def close(self) -> None:
        """Stop listening and break every connection. A second call does nothing."""


class Connection(Protocol):
    """One established connection of a bulk transfer. The exchange on it is one coroutine, the *talk*. `run`
    runs the talk, in a thread of its own where sockets are real, so that neither bytes nor hashes block the
    loop. A talk awaits the methods of its connection and nothing else. Those raise OSError when the
    connection broke, and TimeoutError when it stalls."""

    async def run(self, talk: Coroutine[object, object, T]) -> T:
        """Run the talk and return or raise its result. When this returns, the talk has ended, also after a
        cancellation."""

    async def receive(self, place: memoryview, stall_s: float, least_bytes: int = 1) -> int:
        """Fill `place`, for a talk, and return its length, or less if the other end has closed. TimeoutError
        when fewer than `least_bytes` arrive within `stall_s`."""

    async def send(self, data: bytes, stall_s: float) -> None:
        """Send a header, for a talk: all of it is taken when this returns."""

    async def send_content(self, head: bytes, content: memoryview, stall_s: float, least_bytes: int) -> None:
        """Send a header and a range of a published file, for a talk: all of it is taken when this returns.
        TimeoutError when fewer than `least_bytes` are taken within `stall_s`."""

    async def on_loop(self, question: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the loop and return its result, for a talk."""

    def tell(self, callback: Callable[[], None]) -> None:
        """Schedule a callback on the loop, for a talk, which need not wait for it; in order, within a few
        milliseconds, and before `run` returns. An exception of the callback ends the talk."""

    def hang_up(self) -> None:
        """End the connection, from any callback: a waiting `receive` returns what has arrived, a waiting
        `send` raises OSError."""

    def close(self) -> None:
        """Release it, where no talk runs. A second call does nothing."""


class BulkListener(Protocol):
    """Listener for pullers."""

    @property
    def endpoint(self) -> str:
        """Its address. Raises RuntimeError before `open`."""

    def open(self) -> None:
        """Listen. Raises `CannotListen`."""

    async def accept(self) -> tuple[Connection, str]:
        """The next connection and its remote address. Raises OSError when none is available now (out of
        descriptors, or the peer left already): try again."""

    def close(self) -> None:
        """Stop listening; accepted connections stay. A second call does nothing."""


class Carrier(Protocol):
    """Opens the data sockets of one process, on its running loop. See the module."""

    def dial(
        self,
        peer: Peer,
        name: str,
        keys: NodeKeys | None,
        on_frames: Callable[[list[bytes]], None],
        on_event: Callable[[LineEvent], None],
    ) -> Line:
        """A line to `peer`; `name` is made unique for other processes. Raises ValueError for an address that
        cannot be dialled; with keys also for a peer without a key, or with one revoked here."""

    def hub(
        self,
        bind: str,
        keys: NodeKeys | None,
        on_frames: Callable[[list[bytes]], None],
        *,
        hwm: int,
        on_refused: Callable[[FrameError], None],
        on_stranger: Callable[[str, str], None],
    ) -> Hub:
        """Listen for lines at `bind` ("tcp://HOST:PORT", port 0: any). `on_frames` gets each message behind
        its route; `hwm` messages may wait in each direction of a connection. Raises `RefusedToListen` or
        `CannotListen`."""

    def bulk_listener(self, host: str, port: int, keys: NodeKeys | None, bulk: Bulk) -> BulkListener:
        """A listener that is not open yet. Raises `RefusedToListen`: beyond loopback it needs keys, and
        `bulk` "clear"."""

    async def connect(self, endpoint: str) -> Connection:
        """Connect to a bulk listener. Raises OSError, or ValueError for an invalid endpoint."""

    def content(self, path: Path | str) -> memoryview:
        """The bytes of a file that is published. Raises OSError, or ValueError for an empty file."""

    def secret(self, size_bytes: int) -> bytes:
        """Unguessable bytes."""
