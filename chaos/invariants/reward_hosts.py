"""Items on reward hosts: within their credit, none that was cancelled, none to a host that drains.

Owns counts of its own, from the messages of the proxy: what each host was given under an offer, and which of
that came back or was cancelled. Local workers of the proxy's host are given nothing by message.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.instances import NewWork, Withdraw
from gleaner.actors.protocol.reward import (
    BatchEnded,
    CancelItems,
    CancelScores,
    ItemsScored,
    OfferWorkers,
    Score,
    ScoreItems,
    WorkersTaken,
)
from gleaner.actors.reward.assignment.hosts import FIRST_AHEAD, items_ahead
from gleaner.actors.reward.verdicts import OURS, PASSED
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Fact, MessagePassed

ON_ITS_WAY_S = 0.2
"""From a decision of the proxy to the message that follows from it, which a background task sends."""
FROM_PROXY = (ScoreItems, CancelItems, WorkersTaken)
"""Messages that are seen as the proxy sends them; the others as it receives them."""


@dataclass(slots=True)
class _Offer:
    """What a host has of one offer. workers: of each stage. has: the stages of items that it was sent,
    without a result. drained_s: since when it gets no new items."""

    workers: dict[str, int]
    has: dict[str, str] = field(default_factory=dict)
    drained_s: float | None = None


class RewardHostItems(Check):
    """See `promise`."""

    fact_kinds = (MessagePassed,)
    message_kinds = (
        BatchEnded, CancelItems, CancelScores, ItemsScored, NewWork, OfferWorkers, Score, ScoreItems,
        Withdraw, WorkersTaken,
    )  # fmt: skip
    name = "reward hosts"
    promise = (
        "a reward host has no more items than its workers take, gets none that was cancelled, and none while "
        "it drains"
    )
    meaning = (
        "If this fails, a host holds up items that idle workers elsewhere could score, or work is lost with "
        "a host that was known to go."
    )

    def __init__(self) -> None:
        self._workers: dict[str, dict[str, int]] = {}  # by host, of its newest offer on its way
        self._offers: dict[str, tuple[str, _Offer]] = {}  # by host: the epoch, and what it has
        self._open: dict[str, str] = {}  # batch of each item that was requested
        self._cancelled: dict[str, tuple[str, float]] = {}  # its batch, and when
        self._took_s: dict[str, float] = {}  # the shortest time of an item, by stage
        self._first_s: dict[str, float] = {}  # first result of a stage in this life of the proxy
        self._newest = 0, 0  # life of the proxy, number of the offer

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, MessagePassed):
            elsewhere = "in" if isinstance(fact.message, FROM_PROXY) else "out"
            if fact.direction != elsewhere:
                yield from self._passed(fact)

    def _passed(self, fact: MessagePassed) -> Iterator[str]:
        match fact.message:
            case OfferWorkers() as message:
                self._workers[message.host] = message.workers
            case WorkersTaken() as message:
                self._taken(fact.to, message)
            case Score() as message:
                self._open[message.request] = message.batch
                self._cancelled.pop(message.request, None)
            case CancelScores() as message:
                for name in self._open.keys() & message.requests:
                    self._cancelled[name] = self._open.pop(name), fact.at_s
                self._returned(message.requests)
            case BatchEnded() as message:
                self._returned(name for name, batch in self._open.items() if batch == message.batch)
                self._open = {name: batch for name, batch in self._open.items() if batch != message.batch}
                self._cancelled = {
                    name: its for name, its in self._cancelled.items() if its[0] != message.batch
                }
            case ItemsScored() as message:
                self._scored(message, fact.at_s)
            case CancelItems() as message:
                for _, offer in self._with(message.epoch):
                    _drop(offer, message.items)
            case ScoreItems() as message:
                for host, offer in self._with(message.epoch):
                    yield from self._given(host, offer, message, fact.at_s)
            case Withdraw(instance=host) if fact.to == REWARD and host in self._offers:
                offer = self._offers[host][1]
                offer.drained_s = fact.at_s if offer.drained_s is None else offer.drained_s
            case NewWork(instance=host, allowed=allowed) if fact.to == REWARD and host in self._offers:
                self._offers[host][1].drained_s = None if allowed else fact.at_s

    def _returned(self, items: Iterable[str]) -> None:
        """The hosts that have these get others in their place: the message that takes them back, and the one
        that brings the others, leave in any order."""
        gone = list(items)
        for _, offer in self._offers.values():
            _drop(offer, gone)

    def _with(self, epoch: str) -> list[tuple[str, _Offer]]:
        return [(host, offer) for host, (its, offer) in self._offers.items() if its == epoch]

    def _taken(self, host: str, message: WorkersTaken) -> None:
        life, _, number = message.epoch.partition(".")
        offered = int(life), int(number)
        if offered <= self._newest:  # the same answer is sent again
            return
        if offered[0] != self._newest[0]:  # another life of the proxy, in which no item is open yet
            self._took_s.clear()
            self._first_s.clear()
            self._offers.clear()
            self._open.clear()
            self._cancelled.clear()
        self._newest = offered
        self._offers[host] = message.epoch, _Offer(self._workers.get(host, {}))

    def _scored(self, message: ItemsScored, at_s: float) -> None:
        epoch, offer = self._offers.get(message.host, ("", _Offer({})))
        if epoch != message.epoch:
            return  # refused: it comes again
        for result in message.results:
            _drop(offer, [result.id])
            if result.status != PASSED:
                self._open.pop(result.id, None)
            if result.status not in OURS and result.took_s > 0:
                self._first_s.setdefault(result.stage, at_s)
                shortest_s = self._took_s.get(result.stage, result.took_s)
                self._took_s[result.stage] = min(result.took_s, shortest_s)

    def _given(self, host: str, offer: _Offer, message: ScoreItems, at_s: float) -> Iterator[str]:
        new = {item.id: item.stage for item in message.items if offer.has.get(item.id) != item.stage}
        offer.has.update(new)
        for name in [item.id for item in message.items]:
            _, cancelled_s = self._cancelled.get(name, ("", at_s))
            if at_s - cancelled_s > ON_ITS_WAY_S:
                yield f"{host} gets {name}, which was cancelled {at_s - cancelled_s:.1f} s before"
        if not new:
            return
        if offer.drained_s is not None and at_s - offer.drained_s > ON_ITS_WAY_S:
            yield f"{host} gets {len(new)} items; it has drained for {at_s - offer.drained_s:.1f} s"
        for stage in dict.fromkeys(new.values()):
            has, workers = Counter(offer.has.values())[stage], offer.workers.get(stage, 0)
            if has > (most := workers * self._ahead(stage, at_s)):
                yield f"{host} has {has} items of stage {stage}; its {workers} workers may have {most}"

    def _ahead(self, stage: str, at_s: float) -> int:
        """Items that a worker may have. The proxy uses a mean, which is above half of the shortest time."""
        if stage not in self._took_s or at_s - self._first_s[stage] < ON_ITS_WAY_S:
            return FIRST_AHEAD
        return items_ahead(self._took_s[stage] / 2)


def _drop(offer: _Offer, items: Iterable[str]) -> None:
    for item in items:
        offer.has.pop(item, None)
