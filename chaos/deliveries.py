"""Hears what the control links of all processes hand up to their actors, by the numbers that the sender gave.

Owns the hook into `transport.link_hearing`. Judges nothing: `chaos.invariants.links` does.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from transport.control_frame import Data
from transport.envelope import Envelope
from transport.link_end import LinkEnd
from transport.link_hearing import Hearing, OnEnvelope
from transport.link_table import LinkTable
from transport.link_upkeep import Upkeep
from transport.wire import Route

Session = tuple[int, int, int]
"""The process that hears, by the order of their starts, and the lives of the two ends: of the one that hears,
of the one that sends. A life is a number that its own process never had before."""
Told = Callable[[Session, LinkEnd, Data, Sequence[int]], None]
"""The session, the end that heard, the frame, and the numbers of what was handed up; never none."""


@contextmanager
def deliveries(told: Told) -> Iterator[None]:
    """Within this, `told` hears of every frame of which something was handed up."""
    plain_init, plain_data = Hearing.__init__, Hearing._data
    handed: list[Envelope] = []  # of the frame that is heard now
    processes: dict[Hearing, int] = {}

    def init(hearing: Hearing, table: LinkTable, upkeep: Upkeep, deliver: OnEnvelope) -> None:
        def hand_up(route: Route, envelope: Envelope) -> bool:
            handed.append(envelope)
            return deliver(route, envelope)

        processes[hearing] = len(processes)
        plain_init(hearing, table, upkeep, hand_up)

    def data(hearing: Hearing, end: LinkEnd, frame: Data, size_bytes: int) -> None:
        handed.clear()
        try:
            plain_data(hearing, end, frame, size_bytes)
        finally:
            if handed:
                session = processes[hearing], end.life, frame.life
                told(session, end, frame, numbers_of(frame, handed))

    Hearing.__init__, Hearing._data = init, data  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Hearing.__init__, Hearing._data = plain_init, plain_data  # type: ignore[method-assign]


def numbers_of(frame: Data, handed: Sequence[Envelope]) -> Sequence[int]:
    """The sender's numbers of envelopes of a frame. Raises ValueError for one that is not of it."""
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
