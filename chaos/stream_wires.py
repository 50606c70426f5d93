"""Observer of token streams on the simulated network: credit that is granted, frames that arrive.

Owns the hooks at the carrier's port, where bytes pass, and at the intake of the manager, which gets what the
receiver delivers; the states of sender and receiver are not read. Judges nothing:
`gleaner.chaos.invariants.credit` does.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gleaner.actors.rollout.journal.frame_intake import Intake
from gleaner.chaos.invariants.stream_facts import CreditGranted, Fate, FrameArrived
from gleaner.sim.network_carrier import SimCarrier
from gleaner.transport import stream_control, token_frame
from gleaner.transport.carrier import Hub
from gleaner.transport.keys import NodeKeys
from gleaner.transport.refusal import FrameError
from gleaner.transport.stream_control import Ack, Have, Refused
from gleaner.transport.token_frame import PackedFrame
from gleaner.transport.wire import Peer, Route, Sent

OnFrames = Callable[[list[bytes]], None]
Notify = Callable[[CreditGranted | FrameArrived], None]


@contextmanager
def stream_wires(notify: Notify, now_s: Callable[[], float]) -> Iterator[None]:
    """Within this context, `notify` is called for each grant that a hub sends, and for each token frame that
    arrives at one, after it was handled."""
    plain_hub, plain_take = SimCarrier.hub, Intake.take
    taken: list[PackedFrame] = []  # of the frame that is being handled
    numbers = itertools.count()

    def take(intake: Intake, frame: PackedFrame) -> None:
        taken.append(frame)
        plain_take(intake, frame)

    def hub(
        carrier: SimCarrier,
        bind: str,
        keys: NodeKeys | None,
        on_frames: OnFrames,
        *,
        hwm: int,
        on_refused: Callable[[FrameError], None],
        on_stranger: Callable[[str, str], None],
    ) -> Hub:
        seen = _SeenHub(next(numbers), on_frames, taken, notify, now_s)
        seen.plain = plain_hub(
            carrier, bind, keys, seen.received, hwm=hwm, on_refused=on_refused, on_stranger=on_stranger
        )
        return seen

    SimCarrier.hub, Intake.take = hub, take  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        SimCarrier.hub, Intake.take = plain_hub, plain_take  # type: ignore[method-assign]


class _SeenHub:
    """A `Hub` in front of another one, `plain`."""

    plain: Hub

    def __init__(
        self,
        number: int,
        on_frames: OnFrames,
        taken: list[PackedFrame],
        notify: Notify,
        now_s: Callable[[], float],
    ) -> None:
        self._number, self._on_frames, self._taken = number, on_frames, taken
        self._notify, self._now_s = notify, now_s
        self._streams: dict[Route, tuple[str, int]] = {}  # by the last hello of each route
        self._windows: dict[Route, int] = {}
        self._refused = False

    @property
    def local(self) -> Peer:
        return self.plain.local

    def close(self) -> None:
        self.plain.close()

    def received(self, frames: list[bytes]) -> None:
        """A message of a line."""
        route, *parts = frames
        frame = None
        try:
            if len(parts) == 1:
                hello = stream_control.decode_hello(parts)
                self._streams[route] = hello.stream, hello.incarnation
            else:
                frame = token_frame.check(parts)
        except FrameError:
            pass  # the receiver refuses it, too
        if frame is None:
            self._on_frames(frames)
            return
        self._taken.clear()
        self._refused = False
        self._on_frames(frames)
        delivered = [(one.stream, one.incarnation, one.seq) for one in self._taken]
        fate: Fate = "dropped"
        if (frame.stream, frame.incarnation, frame.seq) in delivered:
            fate = "delivered"
        elif self._refused:
            fate = "refused"
        self._notify(
            FrameArrived(self._now_s(), self._number, frame.stream, frame.incarnation, frame.seq, fate)
        )

    def send(self, route: Route, frames: Sequence[bytes]) -> Sent:
        sent = self.plain.send(route, frames)
        message = stream_control.decode_from_receiver(list(frames))
        if isinstance(message, Refused):
            self._refused = True
        stream = self._streams.get(route)
        if sent is not Sent.OK or stream is None:
            return sent
        if isinstance(message, Have):
            self._windows[route] = message.window
            upto = message.acked + message.window
            self._notify(CreditGranted(self._now_s(), self._number, *stream, upto, message.delivered))
        elif isinstance(message, Ack) and route in self._windows:
            self._notify(
                CreditGranted(self._now_s(), self._number, *stream, message.seq + self._windows[route])
            )
        return sent
