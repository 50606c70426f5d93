"""StreamReceiver: the manager's end of the token streams.

Owns the hub that all instances send to, the order of each stream, and the answers: have, ack, resend,
refused. `token_ring.ReceiveCursor` decides what happens to a frame. Does not journal.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gleaner.transport import stream_control, token_frame
from gleaner.transport.carrier import Carrier
from gleaner.transport.keys import Z85_KEY_CHARS, NodeKeys
from gleaner.transport.refusal import FrameError, Refusals
from gleaner.transport.stream_control import Ack, Have, Hello, Refused, Resend
from gleaner.transport.token_frame import PackedFrame
from gleaner.transport.token_ring import ReceiveCursor, Verdict
from gleaner.transport.wire import Peer, Route
from gleaner.transport.zap import ROUTING_MARK
from gleaner.transport.zmq_carrier import ZmqCarrier

WINDOW_FRAMES = 256  # unacknowledged frames in flight for each instance
NOBODY: Route = b""  # reply route of a stream whose instance's key was revoked
MAX_STREAMS = 4096  # incarnations of streams that a receiver remembers


@dataclass(slots=True)
class _Stream:
    cursor: ReceiveCursor
    route: Route


class StreamReceiver:
    """The manager's end. `on_frame` gets every frame of every stream once and in order; if it raises, the
    frame counts as undelivered and arrives again. `have(stream, incarnation)` returns the last journaled
    frame (0: none), or None to refuse that incarnation."""

    def __init__(
        self,
        bind: str,
        on_frame: Callable[[PackedFrame], None],
        have: Callable[[str, int], int | None],
        *,
        window: int = WINDOW_FRAMES,
        keys: NodeKeys | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        self._on_frame = on_frame
        self._have = have
        self._window = window
        self._refusals = Refusals("token streams")
        self.duplicates = 0  # repeated frames that were dropped
        self.gaps = 0  # frames that arrived too early and were dropped
        self._streams: dict[tuple[str, int], _Stream] = {}
        self._hub = (carrier or ZmqCarrier()).hub(
            bind,
            keys,
            self._on_frames,
            hwm=2 * window,
            on_refused=self._on_bad,
            on_stranger=self._on_stranger,
        )
        self._leave_keys = keys.allowed.subscribe(self._on_keys) if keys is not None else None
        self._closed = False

    @property
    def local(self) -> Peer:
        """Address for senders."""
        return self._hub.local

    @property
    def refused(self) -> Counter[str]:
        """Refused input by reason."""
        return self._refusals.by_reason

    def acknowledge(self, stream: str, incarnation: int, seq: int) -> None:
        """Frames up to `seq` are journaled: they will not be requested again. Raises ValueError for
        undelivered frames. A disconnected stream is notified when it reconnects."""
        known = self._streams.get((stream, incarnation))
        if known is not None and known.cursor.acknowledge(seq):
            if known.route == NOBODY and known.cursor.delivered == seq:
                del self._streams[stream, incarnation]
            else:
                self._answer(known.route, Ack(seq))

    def forget(self, stream: str, incarnation: int) -> None:
        """Drop the state of a stream; if it connects again, `have` decides anew."""
        self._streams.pop((stream, incarnation), None)

    async def close(self) -> None:
        """Stop receiving. Senders keep what is not acknowledged."""
        if not self._closed:
            self._closed = True
            self._hub.close()
            if self._leave_keys is not None:
                self._leave_keys()

    def _on_frames(self, frames: list[bytes]) -> None:
        route, *parts = frames
        if not route.startswith(ROUTING_MARK):
            self._refusals.count("a stranger", "no-identity", f"routing id {route[:32]!r} is not of our form")
            return
        try:
            if len(parts) == 1:
                self._on_hello(route, stream_control.decode_hello(parts))
            else:
                self._on_tokens(route, token_frame.check(parts))
        except FrameError as error:
            self._refusals.count(route.decode(errors="replace"), error.reason, str(error))

    def _on_hello(self, route: Route, hello: Hello) -> None:
        known = self._find(route, hello.stream, hello.incarnation)
        if known is not None:
            cursor = known.cursor
            self._answer(
                route,
                Have(stream_control.MAJOR, cursor.acked, cursor.delivered, hello.sent, self._window),
            )

    def _on_tokens(self, route: Route, frame: PackedFrame) -> None:
        known = self._find(route, frame.stream, frame.incarnation)
        if known is None:
            return
        cursor = known.cursor
        match cursor.judge(frame.seq, self._window):
            case Verdict.DELIVER:
                cursor.delivered_one()  # first, so that the callback may acknowledge
                try:
                    self._on_frame(frame)
                except BaseException:
                    cursor.not_delivered()
                    raise
            case Verdict.DUPLICATE:
                self.duplicates += 1
            case Verdict.GAP:
                self.gaps += 1
            case Verdict.ASK:
                self.gaps += 1
                self._answer(route, Resend(cursor.delivered + 1))
            case Verdict.OVER_CREDIT:
                self._refusals.count(route.decode(errors="replace"), "over-credit", f"frame {frame.seq}")

    def _find(self, route: Route, stream: str, incarnation: int) -> _Stream | None:
        key = (stream, incarnation)
        known = self._streams.get(key)
        if known is None:
            have = self._have(stream, incarnation)
            if have is None:
                self._refusals.count(f"{stream}#{incarnation}", "fenced", "this incarnation is not wanted")
                self._answer(route, Refused(f"incarnation {incarnation} of {stream[:100]} is not wanted"))
                return None
            if len(self._streams) >= MAX_STREAMS and not self._evict():
                self._refusals.count(stream, "too-many-streams", f"{MAX_STREAMS} have frames to journal")
                return None
            known = self._streams[key] = _Stream(ReceiveCursor(have), route)
        known.route = route
        return known

    def _evict(self) -> bool:
        for key, known in self._streams.items():
            if known.cursor.delivered == known.cursor.acked:  # `have` restores such a one exactly
                del self._streams[key]
                return True
        return False

    def _answer(self, route: Route, message: stream_control.FromReceiver) -> None:
        if route != NOBODY:  # not taken, or the sender is gone: its next hello asks again
            self._hub.send(route, stream_control.encode(message))

    def _on_keys(self, _added: frozenset[str], removed: frozenset[str]) -> None:
        """Forget the streams of revoked keys: at once, or when their delivered frames are journaled, so that
        `have` restores them exactly if the keys are trusted again."""
        for key, known in list(self._streams.items()):
            if known.route[-Z85_KEY_CHARS:].decode(errors="replace") in removed:
                known.route = NOBODY
                if known.cursor.delivered == known.cursor.acked:
                    del self._streams[key]

    def _on_bad(self, error: FrameError) -> None:
        self._refusals.count("a peer", error.reason, str(error))

    def _on_stranger(self, address: str, what: str) -> None:
        self._refusals.count(address, "unknown-key", f"{what} is not in trusted/")
