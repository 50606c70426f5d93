"""HostOffers: the reward hosts of a proxy, from their offer to their end.

Owns the epochs of offers, the watches on hosts and their drains. `ItemDispatch` has the items.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from gleaner.actors.protocol.instances import Withdrawn
from gleaner.actors.protocol.reward import ItemResult, ItemsScored, OfferWorkers, WorkersTaken
from gleaner.actors.reward.carried import BadCarried, unpacked
from gleaner.actors.reward.case_limits import CaseTimes
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.remote_workers import RemoteWorkers
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdicts import BLOB_LOST, OURS, PASSED, PROGRAMS, VERIFIER_FAILED
from gleaner.supervisor import Address, Context, Deferred, Refused

LOOK_S = 0.1
"""Between two looks whether a host that drains is empty."""
MOST_WORKERS = 4096
"""Of one host and stage."""
LEAVING, SUSPECTED = "leaving", "suspected"
"""Reasons why a host gets no new items."""


@dataclass(slots=True)
class _Offer:
    actor: Address
    epoch: str
    link: RemoteWorkers


class HostOffers:
    """See the module. Its host names are those of their actors, `<node>/reward`. `changed` is called when a
    host joins, leaves, or gets no more items."""

    def __init__(self, ctx: Context, dispatch: ItemDispatch, changed: Callable[[], None]) -> None:
        self._ctx, self._dispatch, self._changed = ctx, dispatch, changed
        self._offers: dict[str, _Offer] = {}
        self._offered = 0

    def __len__(self) -> int:
        return len(self._offers)

    def take(self, message: OfferWorkers) -> WorkersTaken:
        """A host joins, or offers its workers again and keeps what it has. Raises Refused for an older life
        than the one that is here, or for counts that cannot be."""
        if any(not 0 < count <= MOST_WORKERS for count in message.workers.values()):
            raise Refused(f"{message.host} offers {message.workers}: 1 to {MOST_WORKERS} of a stage may be")
        known = self._offers.get(message.host)
        if known is not None and known.actor.incarnation > message.actor.incarnation:
            raise Refused(f"{message.host}#{known.actor.incarnation} replaced this one")
        if known is not None and known.actor == message.actor:
            known.link.close()
        elif known is not None:
            self._forget(message.host)
        self._offered += 1
        epoch = f"{self._ctx.incarnation}.{self._offered}"
        link = RemoteWorkers(self._ctx, message.actor, epoch)
        self._offers[message.host] = _Offer(message.actor, epoch, link)
        self._ctx.watch(message.actor)
        self._ctx.log.info("reward host %s joined: %s", message.host, message.workers)
        self._dispatch.join(message.host, message.workers, link, message.running, message.stages)
        self._changed()
        return WorkersTaken(proxy=self._ctx.address, epoch=epoch)

    def require(self, host: str, epoch: str) -> None:
        """Raises Refused unless this offer is the one that counts."""
        offer = self._offers.get(host)
        if offer is None or offer.epoch != epoch:
            raise Refused(f"the workers of {host} are not offered under epoch {epoch!r}; offer them again")

    def scored(self, message: ItemsScored) -> None:
        """Results of a host. Raises Refused for one whose offer does not count: it sends them again."""
        self.require(message.host, message.epoch)
        link = self._offers[message.host].link
        link.received(
            (result.id, result.attempt)
            for result in message.results
            if self._dispatch.items.gave(result.id, message.host, result.attempt)
        )
        with self._dispatch.together():
            self._settle(message)

    def _settle(self, message: ItemsScored) -> None:
        for result in message.results:
            status, score = result.status, result.score
            scored = status in PROGRAMS and score is not None and math.isfinite(score)
            verdict = (
                Verdict(score if scored else None, status, result.detail, _tests(result), result.carried)
                if scored or status in OURS or status == BLOB_LOST or self._passed(result)
                else Verdict(
                    None, VERIFIER_FAILED, f"{message.host} sent status {status!r:.40}, score {score}"
                )
            )
            if not self._dispatch.result(
                message.host, result.id, result.stage, verdict, result.took_s, attempt=result.attempt
            ):
                self._ctx.log.warning(
                    "%s sent a result of %.80r, attempt %d, which it was never given",
                    message.host,
                    result.id,
                    result.attempt,
                )

    @staticmethod
    def _passed(result: ItemResult) -> bool:
        """Whether it is what a stage leaves."""
        if result.status != PASSED:
            return False
        try:
            unpacked(result.carried)
        except BadCarried:
            return False
        return True

    def ended(self, name: str, incarnation: int, cause: str) -> None:
        """A host's actor has ended: its items run elsewhere."""
        offer = self._offers.get(name)
        if offer is not None and offer.actor.incarnation == incarnation:
            lost = self._forget(name)
            self._ctx.log.warning("reward host %s is gone (%s): %d items wait again", name, cause, lost)

    def suspected(self, name: str, *, suspected: bool) -> None:
        """A host is silent, or answers again."""
        if name in self._offers:
            self._dispatch.bar(name, SUSPECTED, barred=suspected)

    def allow(self, name: str, *, allowed: bool) -> None:
        """The host may get new items, or may not: the cloud may take it soon."""
        self._dispatch.bar(name, LEAVING, barred=not allowed)
        self._changed()

    def drain(self, name: str, grace_s: float) -> Deferred:
        """No new items for a host; answered when it has none any more, when it may get new ones again, or
        after `grace_s`, when the others wait again."""
        deferred = Deferred()
        self._dispatch.bar(name, LEAVING, barred=True)
        self._changed()
        self._ctx.background(self._drained(name, grace_s, deferred), "drain")
        return deferred

    async def _drained(self, name: str, grace_s: float, deferred: Deferred) -> None:
        until_s = self._ctx.now() + grace_s
        async with self._ctx.wait("its last items", on=name, deadline_s=grace_s + LOOK_S, go_on=True):
            while self._drains(name) and self._ctx.now() < until_s:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        if not self._leaves(name):  # it stays after all, with what it has
            deferred.answer(Withdrawn(handed_over=0))
            return
        rest = [item.id for item in self._dispatch.take_back(name)]
        if rest and (offer := self._offers.get(name)) is not None:
            offer.link.cancel(rest)
        deferred.answer(Withdrawn(handed_over=len(rest)))

    def _leaves(self, name: str) -> bool:
        host = self._dispatch.hosts.get(name)
        return host is None or LEAVING in host.barred

    def _drains(self, name: str) -> bool:
        return self._leaves(name) and bool(self._dispatch.items.running_on(name))

    def _forget(self, name: str) -> int:
        self._offers.pop(name).link.close()
        lost = self._dispatch.leave(name)
        self._changed()
        return lost


def _tests(result: ItemResult) -> CaseTimes | None:
    return CaseTimes(result.right_s, result.cut) if result.right_s or result.cut else None
