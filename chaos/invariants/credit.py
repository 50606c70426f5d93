"""Stream credit: a sender uses all of its credit, and no more.

Owns nothing: the receiver counts the frames that it drops because they are beyond the credit, and none of our
own senders may have one.
"""

from collections.abc import Iterable

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.rollout import RolloutFigures
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Fact, MessagePassed
from gleaner.transport.token_ring import Verdict


class CreditCounts(Check):
    """See `promise`."""

    fact_kinds = (MessagePassed,)
    message_kinds = (RolloutFigures,)
    name = "stream credit"
    promise = "no frame of an instance is dropped as one beyond its credit"
    meaning = (
        "If this fails, sender and receiver count differently: each full window costs a re-send, and a "
        "hello period in which nothing arrives."
    )

    def __init__(self) -> None:
        self._found = False

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, MessagePassed) and isinstance(figures := fact.message, RolloutFigures):
            dropped = figures.refused.get(Verdict.OVER_CREDIT.value, 0)
            if dropped and fact.source == MANAGER and not self._found:
                self._found = True
                yield f"{fact.process} dropped {dropped} frames that were beyond their credit"
