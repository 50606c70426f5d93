"""Registry: resolves names to an address with its incarnation, under a lease.

The holder's process renews the lease. Owns the actor around `leases.Leases` and the journal of its fences, so
that a lower incarnation is refused across restarts of the registry too. The leases themselves are soft state:
a process whose renewal meets a registry that does not know it claims its names again.
"""

import contextlib
from collections.abc import Callable, Sequence

from gleaner.supervisor.actor import Actor, handles
from gleaner.supervisor.delivery import Deferred
from gleaner.supervisor.errors import JournalUnable, Overloaded, Suspended
from gleaner.supervisor.mailbox import Lane
from gleaner.supervisor.message import Done, Message
from gleaner.supervisor.names.leases import ClaimResult, Digest, Leases
from gleaner.supervisor.system_messages import (
    ClaimNames,
    Found,
    LeaseGranted,
    ListNames,
    Lookup,
    Names,
    RenewLease,
    Unregister,
)

SNAPSHOT_EVERY = 1000
"""Fences journaled between snapshots, at least; a quarter of all if that is more, so that its cost stays in
proportion."""
MAX_WAITING = 8192
"""Claims that wait for the commit before theirs: those of more processes than may dial one."""


class NameFenced(Message, frozen=True):
    """Journaled: the highest incarnation that held `name`."""

    name: str
    incarnation: int


class Fences(Message, frozen=True):
    """Journaled: snapshot of all fences; a name not in it must exceed `floor`."""

    highest: dict[str, int]
    floor: int = 0


class Registry(Actor):
    """`Leases` behind messages, with journaled fences.

    Claims that arrive while a commit is under way wait for the next one, which is for all of them: a thousand
    processes that start at once are as many claims, and a commit takes milliseconds.

    If the journal takes nothing, new incarnations get no name, with the reason; present holders keep their
    names, so running work goes on.

    Args:
        lease_s: how long a lease is now; a job brings its own setting.
    """

    def __init__(self, lease_s: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._leases = Leases(lease_s())
        self._since_snapshot = 0
        self._snapshot_floor = 0  # the floor in the newest snapshot
        self._unable = ""
        self._waiting: list[tuple[ClaimNames | Unregister, Deferred]] = []
        self._works = False

    async def on_start(self) -> None:
        async for event in self.ctx.journal.replay():
            if isinstance(event, Fences):
                self._leases.highest.update(event.highest)
                self._leases.floor = self._snapshot_floor = event.floor
            elif isinstance(event, NameFenced):
                self._leases.highest[event.name] = event.incarnation

    @handles(ClaimNames, lane=Lane.SYSTEM)
    async def claim(self, message: ClaimNames) -> Deferred:
        return self._in_turn(message)

    @handles(Unregister, lane=Lane.SYSTEM)
    async def unregister(self, message: Unregister) -> Deferred:
        return self._in_turn(message)

    def _in_turn(self, message: ClaimNames | Unregister) -> Deferred:
        self._leases.lease_s = self._lease_s()
        deferred = Deferred()
        if len(self._waiting) >= MAX_WAITING:
            deferred.answer(Overloaded(f"{MAX_WAITING} processes wait for their names to be taken"))
            return deferred
        self._waiting.append((message, deferred))
        if not self._works:
            self._works = True
            self.ctx.background(self._work_off(), "claims")
        return deferred

    async def _work_off(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                fenced = await self._fence([it for it, _ in waiting if isinstance(it, ClaimNames)])
                answers = [self._take(message, fenced) for message, _ in waiting]
                await self._snapshot()
                for (_, deferred), answer in zip(waiting, answers, strict=True):
                    deferred.answer(answer)
        finally:
            self._works = False

    async def _fence(self, claims: Sequence[ClaimNames]) -> bool:
        """Journal the fences of these claims before they are granted; False if the journal takes nothing."""
        fences: dict[str, int] = {}
        begun: set[tuple[str, int]] = set()
        for claim in claims:
            if claim.first:
                begun.add((claim.endpoint, claim.life))
            # Not of a claim that must be made anew: it would be journaled twice.
            if (claim.endpoint, claim.life) in begun or self._holds(claim):
                for name, incarnation in self._leases.fresh(claim.names).items():
                    fences[name] = max(incarnation, fences.get(name, 0))
        if not fences:
            return True
        try:
            await self.ctx.journal.append(
                *[NameFenced(name=name, incarnation=n) for name, n in fences.items()]
            )
        except JournalUnable as problem:
            self._unable = f"the registry takes no new names: {problem}"
            return False
        self._unable = ""
        return True

    def _holds(self, claim: ClaimNames) -> bool:
        return self._leases.holds(claim.endpoint, claim.life, self.ctx.turn_time())

    def _take(self, message: ClaimNames | Unregister, fenced: bool) -> Message | Exception:
        """Grant what may be granted; new incarnations only where their fences are journaled."""
        now = self.ctx.turn_time()
        if isinstance(message, Unregister):
            for name, incarnation in message.names.items():
                self._leases.release(name, incarnation)
            return Done()
        if not fenced and (message.first or self._holds(message)) and self._leases.fresh(message.names):
            self._leases.lives(message.endpoint, message.life, now)
            return Suspended(self._unable)
        claimed = self._leases.claim(
            message.endpoint,
            message.public_key,
            message.life,
            message.names,
            message.ended,
            now,
            first=message.first,
        )
        self._since_snapshot += len(claimed.taken)
        return self._granted(claimed)

    async def _snapshot(self) -> None:
        """From time to time, and whenever names were forgotten."""
        floor, highest = self._leases.floor, self._leases.highest
        many = max(SNAPSHOT_EVERY, len(highest) // 4)
        if self._since_snapshot >= many or self._snapshot_floor != floor:
            with contextlib.suppress(JournalUnable):  # the next claim tries again
                await self.ctx.journal.snapshot(Fences(highest=dict(highest), floor=floor))
                self._since_snapshot, self._snapshot_floor = 0, floor

    @handles(RenewLease, lane=Lane.SYSTEM)
    async def renew(self, message: RenewLease) -> LeaseGranted:
        self._leases.lease_s = self._lease_s()
        digest = Digest(message.count, message.sum)
        return self._granted(self._leases.renew(message.endpoint, message.life, digest, self.ctx.turn_time()))

    def _granted(self, claimed: ClaimResult) -> LeaseGranted:
        return LeaseGranted(
            lease_s=self._leases.lease_s, superseded=claimed.superseded, claim_again=claimed.again
        )

    @handles(Lookup, lane=Lane.SYSTEM)
    async def lookup(self, message: Lookup) -> Found:
        address = self._leases.find(message.name, self.ctx.turn_time())
        if address is None and self._unable:
            raise Suspended(self._unable)
        return Found(address=address)

    @handles(ListNames, lane=Lane.SYSTEM)
    async def list_names(self, message: ListNames) -> Names:
        return Names(addresses=self._leases.live(message.prefix, self.ctx.turn_time()))

    def summary(self) -> dict[str, str | int | float]:
        return {"suspended": self._unable} if self._unable else {}
