"""Observer of envelopes that control links deliver to actors, by sender's number.

Covers all processes. Owns the hook into `gleaner.transport.link_receiver`. Judges nothing:
`gleaner.chaos.invariants.links` does.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gleaner.transport.control_frame import Data
from gleaner.transport.envelope import Envelope
from gleaner.transport.link_end import LinkEnd
from gleaner.transport.link_receiver import FrameReceiver, OnEnvelope
from gleaner.transport.link_table import LinkTable
from gleaner.transport.link_upkeep import Upkeep
from gleaner.transport.wire import Route

Session = tuple[int, int, int]
"""The receiving process, numbered by start order, and the lives of the two ends: of the receiver, of the
sender. A life is a number that its process never had before."""
Told = Callable[[Session, LinkEnd, Data, Sequence[int]], None]
"""The session, the receiving end, the frame, and the numbers of the delivered envelopes; never none."""


@contextmanager
def deliveries(notify: Told) -> Iterator[None]:
    """Within this context, `told` is called for every frame with a delivered envelope."""
    plain_init, plain_data = FrameReceiver.__init__, FrameReceiver._data
    handed: list[Envelope] = []  # of the frame that is being received
    processes: dict[FrameReceiver, int] = {}

    def init(hearing: FrameReceiver, table: LinkTable, upkeep: Upkeep, deliver: OnEnvelope) -> None:
        def hand_up(route: Route, envelope: Envelope) -> bool:
            handed.append(envelope)
            return deliver(route, envelope)

        processes[hearing] = len(processes)
        plain_init(hearing, table, upkeep, hand_up)

    def data(hearing: FrameReceiver, end: LinkEnd, frame: Data, size_bytes: int) -> None:
        handed.clear()
        try:
            plain_data(hearing, end, frame, size_bytes)
        finally:
            if handed:
                session = processes[hearing], end.life, frame.life
                notify(session, end, frame, numbers_of(frame, handed))

    FrameReceiver.__init__, FrameReceiver._data = init, data  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        FrameReceiver.__init__, FrameReceiver._data = plain_init, plain_data  # type: ignore[method-assign]


def numbers_of(frame: Data, handed: Sequence[Envelope]) -> Sequence[int]:
    """The sender's numbers of the delivered envelopes of a frame. Raises ValueError for an envelope that is
    not in it."""
    if len(handed) == len(frame.envelopes):
        return range(frame.first, frame.first + len(handed))
    at, numbers = 0, []
    for envelope in handed:
        while at < len(frame.envelopes) and frame.envelopes[at] is not envelope:
            at += 1
        if at == len(frame.envelopes):
            raise ValueError("an envelope was handed up that its frame does not hold")
        numbers.append(frame.first + at)
        at += 1
    return numbers
