"""One ZeroMQ socket on the running event loop.

Owns the discipline of the edge-triggered ZMQ_FD: drain until nothing is readable, look again after a send,
yield to the loop after a budget. (`zmq.asyncio` awaits each message and is an order of magnitude slower.)
Does not own what the frames mean, nor the socket's options.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import zmq
from zmq.utils.monitor import parse_monitor_message

from gleaner.transport.refusal import FrameError

DRAIN_BUDGET = 256  # messages taken in one turn of the loop, so that others on the loop get theirs

Sock = zmq.Socket[bytes]
_EVENTS = int(zmq.EVENTS)  # plain numbers: the enums cost more than the call
_POLLIN = int(zmq.POLLIN)


class Port:
    """Delivers the messages that arrive on `sock` to `on_frames`, on the running loop (asyncio or uvloop).

    `receive` takes one message without blocking and raises `zmq.Again` when there is none; a `FrameError` of
    it goes to `on_refused`. An exception of `on_frames` goes to the loop's exception handler and never
    silences the socket.
    """

    def __init__(
        self,
        sock: Sock,
        on_frames: Callable[[list[bytes]], None],
        *,
        receive: Callable[[], list[bytes]] | None = None,
        on_refused: Callable[[FrameError], None] | None = None,
    ) -> None:
        self.sock = sock
        self._on_frames = on_frames
        self._receive = receive or self._receive_plain
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._kicked = False
        self._closed = False
        self._fd = cast(int, sock.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._drain)
        self.kick()  # the FD stays silent until a first poll found nothing

    def kick(self) -> None:
        """Poll again in the next turn: a call on the socket may have swallowed the FD's edge."""
        if not self._kicked and not self._closed:
            self._kicked = True
            self._loop.call_soon(self._drain)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send without blocking; False when the socket takes nothing now. Raises `zmq.ZMQError` otherwise."""
        if self._closed:
            return False
        try:
            self.sock.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        finally:
            if not self._kicked and self._readable():
                self.kick()
        return True

    def writable(self) -> bool:
        """Whether a send would be taken. Also makes the socket notice connections that were just made."""
        if self._closed:
            return False
        events = cast(int, self.sock.getsockopt(_EVENTS))
        if events & _POLLIN:
            self.kick()
        return bool(events & zmq.POLLOUT)

    def close(self) -> None:
        """Leave the loop and close the socket, dropping what it still held."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)  # before the FD's number can be reused
        self.sock.close(linger=0)

    def _readable(self) -> bool:
        """Whether a message is there; if not, the edge is armed again. A fifth of the price of an EAGAIN."""
        return bool(cast(int, self.sock.getsockopt(_EVENTS)) & _POLLIN)

    def _receive_plain(self) -> list[bytes]:
        return self.sock.recv_multipart(zmq.NOBLOCK)

    def _drain(self) -> None:
        self._kicked = False
        for taken in range(DRAIN_BUDGET):
            if self._closed or (taken and not self._readable()):
                return
            try:
                frames = self._receive()
            except zmq.Again:
                return  # the edge is armed again
            except FrameError as error:
                if self._on_refused is not None:
                    self._on_refused(error)
                continue
            try:
                self._on_frames(frames)
            except BaseException:
                self.kick()  # the edge is not armed: without this the socket would be deaf from now on
                raise
        self.kick()


class MonitorPort:
    """Reports connection events of a socket: `on_event(event, value)` with `zmq.Event` numbers. Must be
    closed before the watched socket."""

    def __init__(self, watched: Sock, events: int, on_event: Callable[[int, int], None]) -> None:
        self._watched = watched
        self._on_event = on_event
        self._port = Port(watched.get_monitor_socket(events), self._on_frames)

    def close(self) -> None:
        """Stop watching."""
        if not self._watched.closed:
            self._watched.disable_monitor()
        self._port.close()

    def _on_frames(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)
        self._on_event(int(event["event"]), int(event["value"]))
