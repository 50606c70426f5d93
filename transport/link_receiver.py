"""Handling of received frames and wire events of control links.

Owns the rules that decide whether a frame is accepted. The timed consequences are in `link_upkeep`.
"""

import asyncio
from collections.abc import Callable

from gleaner.transport import control_frame
from gleaner.transport.control_frame import NONE, Ack, Data, Gone, Hello, RefusedLink, Welcome
from gleaner.transport.envelope import Envelope, Mode
from gleaner.transport.link_end import LinkEnd
from gleaner.transport.link_table import LIFE_BITS, LinkTable
from gleaner.transport.link_upkeep import Upkeep
from gleaner.transport.refusal import FrameError, UnknownVersion, WrongParts
from gleaner.transport.wire import Link, Peer, Route, Sent

OnEnvelope = Callable[[Route, Envelope], bool]

_TELL, _ASK = Mode.TELL, Mode.ASK  # looked up for every message


class FrameReceiver:
    """See the module. `deliver` answers whether a message is consumed, or held above."""

    def __init__(self, table: LinkTable, upkeep: Upkeep, deliver: OnEnvelope) -> None:
        self._table = table
        self._upkeep = upkeep
        self._deliver = deliver
        self._limits = table.limits
        self._wire = table.wire
        self._loop = asyncio.get_running_loop()

    def on_frames(self, route: Route, frames: list[bytes]) -> None:
        """One message of the wire. Raises a `FrameError` for what cannot be believed."""
        if len(frames) != 1:
            raise WrongParts(f"{len(frames)} parts, expected 1")
        end = self._table.of(route)
        try:
            frame = control_frame.decode(
                frames[0], lambda reason, detail: self._wire.refuse(route, reason, detail)
            )
        except UnknownVersion as error:
            self._other_version(route, end, error)
            raise
        if isinstance(frame, Data) and end is not None and frame.life == end.peer_life:
            self._data(end, frame, len(frames[0]))
        elif isinstance(frame, Ack) and end is not None and frame.life == end.peer_life:
            self._ack(end, frame)
        elif isinstance(frame, Hello):
            self._hello(route, end, frame)
        elif isinstance(frame, RefusedLink):
            if end is not None and end.peer is not None:
                self._wire.refuse(route, UnknownVersion.reason, frame.text[:200])
                self._table.over(end, Link.REJECTED, "rejected")
        elif end is None:
            if not isinstance(frame, Gone | Welcome):
                self._wire.send(route, [control_frame.gone(frame.life)])
        elif isinstance(frame, Welcome):
            self._welcome(end, frame)
        elif isinstance(frame, Gone):
            if frame.life == end.life:
                self._gone(end)
        elif end.peer_life:  # otherwise our WELCOME has not arrived yet
            self._wire.refuse(
                route, "other-life", f"of life {frame.life}, the session is with {end.peer_life}"
            )

    def on_wire(self, peer: Peer, link: Link) -> None:
        """The connection to a dialled peer changed."""
        end = self._table.ends.get(peer)
        if end is None:
            return
        end.since_s = self._loop.time()
        if link in (Link.DOWN, Link.REJECTED):
            self._table.over(end, link, link.value)
        elif link is Link.SUSPECT:
            end.ready = end.connected = False
            if end.state is Link.UP:
                end.state = Link.SUSPECT
                self._table.on_link(peer, Link.SUSPECT)
        else:
            end.connected = True
            if end.hello_held:
                end.hello_held = False  # the wire sends it now
            else:
                end.greet(end.since_s)
            self._upkeep.look_briskly()

    def _data(self, end: LinkEnd, frame: Data, size_bytes: int) -> None:
        end.heard_at_s = self._loop.time()
        if end.out.acknowledge(frame.ack, frame.limit):
            self._upkeep.wake(end)
        into, envelopes, route = end.into, frame.envelopes, end.route
        known = into.take(frame.first, len(envelopes))
        if frame.first > into.expected:
            if into.ask_again(end.heard_at_s, self._limits.probe_s):
                end.acknowledge(again=True)
            return
        end.untold_bytes += size_bytes
        asked, ack_due = False, known > 0  # a repeated message was not acknowledged in time
        if known:
            envelopes = envelopes[known:]
        deliver = self._deliver
        for envelope in envelopes:
            if envelope is NONE:
                ack_due = True
                continue
            if envelope.mode is _ASK:
                asked = True
            elif envelope.mode is _TELL:
                ack_due = True
            try:
                if not deliver(route, envelope):
                    into.held += 1
            except FrameError as error:
                self._wire.refuse(route, error.reason, str(error))
            except Exception as error:  # noqa: BLE001 (the rest of the batch must not go down with it)
                self._loop.call_exception_handler({"message": "delivery failed", "exception": error})
        if asked:
            self._upkeep.flush_this_turn()
        if into.held > 2 * into.window:  # a sender that obeys our limit cannot reach this
            self._wire.refuse(
                route, "over-limit", f"{into.held} messages are held, granted were {into.window}"
            )
            self._wire.send(route, [control_frame.gone(frame.life)])
            self._table.over(end, Link.DOWN, "over limit")
        elif ack_due:
            self._upkeep.owe(end, self._limits.ack_delay_s)
        elif not asked or end.ack_overdue:
            self._upkeep.owe(end, self._limits.answer_ack_s)

    def _ack(self, end: LinkEnd, frame: Ack) -> None:
        end.heard_at_s = self._loop.time()
        if end.out.acknowledge(frame.ack, frame.limit):
            self._upkeep.wake(end)
        if frame.again and end.ready:
            end.out.rewind()
            self._upkeep.flush(end)
        if frame.sent:
            end.acknowledge(again=frame.sent > end.into.received)

    def _hello(self, route: Route, end: LinkEnd | None, frame: Hello) -> None:
        if self._wire.peer_of(route) is not None:
            raise WrongParts("a listener sent HELLO")
        known = end is not None and end.peer_life == frame.life and frame.peer_life in (0, end.life)
        if end is None or not known:
            if frame.peer_life != 0 or frame.first != 1:
                self._wire.send(route, [control_frame.gone(frame.life)])
                return
            if end is not None:
                self._table.remove(end, "peer restarted")
            if self._table.diallers >= self._table.limits.max_sessions:
                diallers = self._table.diallers
                self._wire.refuse(route, "too-many-links", f"{diallers} processes have dialled already")
                return
            end = self._table.open(route)
            end.peer_life = frame.life
        end.heard_at_s = self._loop.time()
        end.out.acknowledge(frame.ack, frame.limit)
        if end.welcome() is Sent.OK:
            self._upkeep.resume(end)
        else:
            self._upkeep.look_briskly()

    def _welcome(self, end: LinkEnd, frame: Welcome) -> None:
        if end.peer is None or frame.peer_life != end.life or end.ready:
            return
        if end.peer_life not in (0, frame.life) or end.process not in (0, frame.life >> LIFE_BITS):
            self._table.over(end, Link.DOWN, "peer restarted")
            return
        end.out.acknowledge(frame.ack, frame.limit)
        end.peer_life = frame.life
        end.heard_at_s = self._loop.time()
        if end.state is not Link.UP:
            end.state = Link.UP
            self._table.on_link(end.peer, Link.UP)
        if self._table.ends.get(end.peer) is end:
            self._upkeep.resume(end)

    def _gone(self, end: LinkEnd) -> None:
        """A process that dropped our session after a long silence is alive; another process at its address
        does not know the session either."""
        if end.peer is None or not end.peer_life:
            self._table.over(end, Link.DOWN, "peer restarted")
        else:
            self._table.anew(end, "session dropped")
            self._upkeep.look_briskly()

    def _other_version(self, route: Route, end: LinkEnd | None, error: UnknownVersion) -> None:
        if end is not None and end.peer is not None:
            self._table.over(end, Link.REJECTED, "rejected")
        elif self._wire.peer_of(route) is None:
            self._wire.send(route, [control_frame.refused(str(error))])
