"""Stream credit: a sender uses all of its credit, and no more.

Owns a count of its own: credit from the grants on the network, frames in hand from those that were delivered.
The counts of sender and receiver are not read.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Fact
from gleaner.chaos.invariants.stream_facts import CreditGranted, FrameArrived


@dataclass(slots=True)
class _Account:
    """Of one stream at one receiver. upto: the last frame that this receiver granted; in_hand: the frame up
    to which all were delivered to it or to receivers before it."""

    upto: int
    in_hand: int


class CreditCounts(Check):
    """See `promise`."""

    fact_kinds = (CreditGranted, FrameArrived)
    name = "stream credit"
    promise = "no frame is sent beyond its credit, and none within it is dropped when it is next in order"
    meaning = (
        "If this fails, sender and receiver count differently: each full window costs a re-send and a hello "
        "period in which nothing arrives, or memory grows beyond the window."
    )

    def __init__(self) -> None:
        self._granted: dict[tuple[str, int], int] = {}  # by any receiver
        self._accounts: dict[tuple[int, str, int], _Account] = {}
        self._found: set[str] = set()

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, CreditGranted):
            self._grant(fact)
        elif isinstance(fact, FrameArrived) and fact.stream not in self._found:
            for text in self._arrived(fact):
                self._found.add(fact.stream)
                yield text

    def _grant(self, fact: CreditGranted) -> None:
        stream, key = (fact.stream, fact.incarnation), (fact.receiver, fact.stream, fact.incarnation)
        self._granted[stream] = max(self._granted.get(stream, 0), fact.upto)
        account = self._accounts.get(key)
        if account is not None:
            account.upto = max(account.upto, fact.upto)
        elif fact.in_hand >= 0:
            self._accounts[key] = _Account(fact.upto, fact.in_hand)

    def _arrived(self, fact: FrameArrived) -> Iterable[str]:
        what = f"frame {fact.seq} of {fact.stream}#{fact.incarnation}"
        granted = self._granted.get((fact.stream, fact.incarnation), 0)
        if fact.seq > granted:
            yield f"{what} was sent; its credit ended at {granted}"
        account = self._accounts.get((fact.receiver, fact.stream, fact.incarnation))
        if account is None:
            return
        if fact.fate == "delivered":
            account.in_hand = max(account.in_hand, fact.seq)
        elif fact.fate == "dropped" and account.in_hand + 1 == fact.seq <= account.upto:
            yield f"{what} was dropped; it was next in order, and credit was granted up to {account.upto}"
