"""Once and in order: delivery on control links, by numbers of delivered envelopes.

Owns the count by session. The envelopes already known are counted here anew, from the frames; no line of
`gleaner.transport.session` is used.
"""

from collections.abc import Iterable

from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Fact, FrameDelivered

MAX_SESSIONS = 4096
"""Sessions that are remembered, the newest: a run has hundreds."""


class OnceAndInOrder(Check):
    """See the module."""

    fact_kinds = (FrameDelivered,)
    name = "once and in order"
    promise = "a control link hands up each message once, in the order in which it was sent, none left out"
    meaning = (
        "If this fails, an order is carried out twice, or after a later one, or never without a report "
        "that its link ended: everything above the links relies on that."
    )

    def __init__(self) -> None:
        self._due: dict[tuple[int, ...], int] = {}

    def see(self, fact: Fact) -> Iterable[str]:
        if not isinstance(fact, FrameDelivered):
            return ()
        due = self._due.pop(fact.session, 1)
        self._due[fact.session] = max(due, fact.first + fact.count)
        if len(self._due) > MAX_SESSIONS:
            del self._due[next(iter(self._due))]
        if fact.first > due:
            return (
                f"message {fact.numbers[0]} of {fact.link} was handed up, those from {due} to "
                f"{fact.first - 1} never were",
            )
        if fact.numbers[0] < due:
            return (
                f"message {fact.numbers[0]} of {fact.link} was handed up again: all up to {due - 1} had been",
            )
        return ()
