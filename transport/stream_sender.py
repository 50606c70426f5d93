"""StreamSender: the instance's end of a token stream.

Owns the line to the manager: hello after every connection, sending within the credit, re-sending, redialling
after silence. `token_ring.SendRing` decides which frames may be sent.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from numpy.typing import ArrayLike

from gleaner.transport import stream_control, token_frame
from gleaner.transport.carrier import Carrier, Line, LineEvent
from gleaner.transport.keys import NodeKeys
from gleaner.transport.refusal import BadField, FrameError, Refusals
from gleaner.transport.stream_control import Ack, Have, Hello, Refused, Resend
from gleaner.transport.token_frame import ROW_BYTES
from gleaner.transport.token_ring import LostByReceiver, SendRing
from gleaner.transport.wire import Peer
from gleaner.transport.zmq_carrier import ZmqCarrier

RING_FRAMES = 4096  # about a minute and a half of decoding at 45 steps a second
HELLO_PERIOD_S = 0.25  # how soon silence is answered by another hello
REDIAL_S = 5.0  # a connection without an answer for so long is replaced

REFUSED_S, MAX_REFUSED_S = 0.5, 15.0
"""Pause before a receiver that did not admit this stream is dialled again; doubled each time. Our key may be
trusted by then."""


class StreamRefused(Exception):
    """The receiver refuses this incarnation of the stream, or lost frames that it had acknowledged."""


@dataclass(frozen=True, slots=True)
class SenderLimits:
    """How many frames are kept until they are acknowledged, and the period of hellos in a silence."""

    ring_frames: int = RING_FRAMES
    hello_period_s: float = HELLO_PERIOD_S


SENDER_LIMITS = SenderLimits()


class StreamSender:
    """The instance's end. Runs on the running loop; keeps frames while there is no connection.

    `on_refused(why)` is called once when the receiver refuses this incarnation; nothing is sent after that.
    """

    def __init__(
        self,
        stream: str,
        incarnation: int,
        *,
        limits: SenderLimits = SENDER_LIMITS,
        on_refused: Callable[[str], None] | None = None,
        keys: NodeKeys | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        self._stream = stream
        self._incarnation = incarnation
        self._ring: SendRing[list[bytes]] = SendRing(limits.ring_frames)
        self._on_refused = on_refused
        self._keys = keys
        self._carrier = carrier or ZmqCarrier()
        self._period_s = limits.hello_period_s
        self._refusals = Refusals(f"stream {stream}#{incarnation}")
        self._to: Peer | None = None
        self._line: Line | None = None
        self._room = asyncio.Event()
        self._acked_before = 0
        self._loop = asyncio.get_running_loop()
        self._silent_since = self._loop.time()
        self._redial_s = REDIAL_S
        self._refused_s = REFUSED_S
        self._timer: asyncio.TimerHandle | None = None  # while something is expected of the receiver
        self._leave_keys = keys.allowed.subscribe(self._on_keys) if keys is not None else None
        self._why_refused = ""
        self._closed = False

    @property
    def full(self) -> bool:
        """The ring takes no frame now: pause decoding."""
        return self._ring.full

    @property
    def unacknowledged(self) -> int:
        """Frames in the ring."""
        return self._ring.unacknowledged

    @property
    def last_seq(self) -> int:
        """Number of the newest frame; 0 before the first."""
        return self._ring.last_seq

    @property
    def resent(self) -> int:
        """Frames that were sent again."""
        return self._ring.resent

    @property
    def refused(self) -> Counter[str]:
        """Refused input by reason."""
        return self._refusals.by_reason

    def connect(self, to: Peer) -> None:
        """Send to this receiver from now on; call it again when the receiver has restarted elsewhere. Raises
        ValueError for an address that cannot be dialled."""
        self._disconnect()
        self._to = to
        self._silent_since = self._loop.time()
        self._redial_s = REDIAL_S
        self._look_later()
        name = f"{self._stream[:40]}#{self._incarnation}"
        self._line = self._carrier.dial(to, name, self._keys, self._on_frames, self._on_event)

    def send(self, slots: ArrayLike, tokens: ArrayLike, logprobs: ArrayLike, flags: ArrayLike) -> bool:
        """Take one decode step's rows. False: the ring is full (or the stream refused), nothing was taken."""
        return self.send_packed(token_frame.pack_columns(slots, tokens, logprobs, flags))

    def send_packed(self, columns: bytes) -> bool:
        """The same for columns that `token_frame.pack_columns` has packed already."""
        if self._closed or self._why_refused or self._ring.full:
            return False
        head = token_frame.header(
            self._stream, self._incarnation, self._ring.last_seq + 1, len(columns) // ROW_BYTES
        )
        self._ring.push([head, columns])
        self._flush()
        self._look_later()
        return True

    async def writable(self) -> None:
        """Wait until the ring takes a frame. Raises `StreamRefused`."""
        await self._until(lambda: not self._ring.full)

    async def drained(self) -> None:
        """Wait until everything is acknowledged. Raises `StreamRefused`."""
        await self._until(lambda: not self._ring.unacknowledged)

    async def close(self) -> None:
        """Close the connection; what is unacknowledged is dropped (await `drained` first to keep it)."""
        self._closed = True
        self._look_no_more()
        self._disconnect()
        self._room.set()
        if self._leave_keys is not None:
            self._leave_keys()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._why_refused or self._closed:
                raise StreamRefused(self._why_refused or "closed")
            self._room.clear()
            await self._room.wait()

    def _disconnect(self) -> None:
        self._ring.disconnected()
        if self._line is not None:
            self._line.close()
            self._line = None

    def _look_later(self) -> None:
        """Schedule the next check of the stream, unless it waits for nothing: a receiver that has everything
        and knows us need not send anything."""
        if self._timer is None and self._expects:
            self._silent_since = self._loop.time()  # until now it had nothing to send to us
            self._timer = self._loop.call_later(self._period_s, self._tick)

    @property
    def _expects(self) -> bool:
        if self._closed or self._why_refused or self._to is None:
            return False
        return not self._ring.live or self._ring.unacknowledged > 0

    def _look_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        if self._ring.live and (self._ring.sent == self._ring.acked or self._ring.acked > self._acked_before):
            self._silent_since = self._loop.time()
        elif self._to is not None and self._loop.time() - self._silent_since > self._redial_s:
            self._redial(self._to)
        else:
            self._say_hello()
        self._acked_before = self._ring.acked
        self._flush()
        if self._timer is None and self._expects:
            self._timer = self._loop.call_later(self._period_s, self._tick)

    def _redial(self, to: Peer) -> None:
        try:
            self.connect(to)
        except ValueError as error:  # its key was revoked here: it may be trusted again later
            self._refusals.count(str(to), "cannot-dial", str(error))

    def _on_keys(self, added: frozenset[str], removed: frozenset[str]) -> None:
        if self._to is None or self._why_refused:
            return
        if self._to.public_key in removed:
            self._refusals.count(str(self._to), "revoked", "its key is trusted no longer: we hang up")
            self._disconnect()
        elif self._to.public_key in added:
            self._redial(self._to)

    def _say_hello(self) -> None:
        if self._line is not None:
            hello = Hello(stream_control.MAJOR, self._stream, self._incarnation, self._ring.sent)
            self._line.send(stream_control.encode(hello))

    def _flush(self) -> None:
        while self._line is not None and (frame := self._ring.sendable()) is not None:
            if not self._line.send(frame):
                return  # the next acknowledgement or tick continues
            self._ring.advance()

    def _on_event(self, event: LineEvent) -> None:
        if event is LineEvent.LOST:
            self._ring.disconnected()
            self._look_later()
        elif event is LineEvent.REJECTED:
            self._refusals.count(str(self._to), "rejected", "the receiver does not admit our key")
            self._redial_s, self._refused_s = self._refused_s, min(2 * self._refused_s, MAX_REFUSED_S)
        else:
            self._refused_s = REFUSED_S
            self._say_hello()

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            message = stream_control.decode_from_receiver(frames)
        except FrameError as error:
            self._refusals.count(str(self._to), error.reason, str(error))
            return
        try:
            match message:
                case Have():
                    self._silent_since = self._loop.time()
                    self._ring.have(message.acked, message.delivered, message.sent, message.window)
                case Ack():
                    self._ring.acknowledge(message.seq)
                case Resend():
                    self._ring.resend(message.seq)
                case Refused():
                    self._stop(message.why)
        except (BadField, LostByReceiver) as error:
            self._refusals.count(str(self._to), error.reason, str(error))
            self._stop(str(error))
        if not self._ring.full:
            self._room.set()
        self._flush()

    def _stop(self, why: str) -> None:
        if self._why_refused:
            return
        self._why_refused = why or "refused"
        self._look_no_more()
        self._disconnect()
        self._room.set()
        if self._on_refused is not None:
            self._on_refused(self._why_refused)
