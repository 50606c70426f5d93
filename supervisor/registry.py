"""The registry: names resolve to an address with its incarnation, for as long as the holder's process renews.

Owns the actor around `leases.Leases` and the journal of its fences, so that a lower incarnation is refused
across restarts of the registry too. The leases themselves are soft state: a process whose renewal meets a
registry that does not know it claims its names again.
"""

import contextlib

from supervisor.actor import Actor, handles
from supervisor.errors import JournalUnable, Suspended
from supervisor.leases import Claimed, Digest, Leases
from supervisor.mailbox import Lane
from supervisor.message import Done, Message
from supervisor.system_messages import (
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

    Where the journal takes nothing, new incarnations get no name, with the reason, and those that hold one
    keep it as before: what runs goes on.
    """

    def __init__(self, lease_s: float) -> None:
        self._leases = Leases(lease_s)
        self._since_snapshot = 0
        self._unable = ""

    async def on_start(self) -> None:
        async for event in self.ctx.journal.replay():
            if isinstance(event, Fences):
                self._leases.highest.update(event.highest)
                self._leases.floor = event.floor
            elif isinstance(event, NameFenced):
                self._leases.highest[event.name] = event.incarnation

    @handles(ClaimNames, lane=Lane.SYSTEM)
    async def claim(self, message: ClaimNames) -> LeaseGranted:
        now = self.ctx.now()
        if message.first or self._leases.holds(message.endpoint, message.life, now):
            await self._fence(message)  # not of a claim that must be made anew: it would be journaled twice
        floor = self._leases.floor
        claimed = self._leases.claim(
            message.endpoint,
            message.public_key,
            message.life,
            message.names,
            message.ended,
            now,
            first=message.first,
        )
        if claimed.taken:
            self._since_snapshot += len(claimed.taken)
            many = max(SNAPSHOT_EVERY, len(self._leases.highest) // 4)
            if self._since_snapshot >= many or self._leases.floor != floor:
                fenced = Fences(highest=dict(self._leases.highest), floor=self._leases.floor)
                with contextlib.suppress(JournalUnable):  # the next claim tries again
                    await self.ctx.journal.snapshot(fenced)
                    self._since_snapshot = 0
        return self._granted(claimed)

    async def _fence(self, message: ClaimNames) -> None:
        """Journal the fences of a claim before it is granted. Raises Suspended where that cannot be."""
        fences = [
            NameFenced(name=name, incarnation=n) for name, n in self._leases.fresh(message.names).items()
        ]
        try:
            if fences:
                await self.ctx.journal.append(*fences)
                self._unable = ""
        except JournalUnable as problem:
            self._leases.lives(message.endpoint, message.life, self.ctx.now())
            self._unable = f"the registry takes no new names: {problem}"
            raise Suspended(self._unable) from problem

    @handles(RenewLease, lane=Lane.SYSTEM)
    async def renew(self, message: RenewLease) -> LeaseGranted:
        digest = Digest(message.count, message.sum)
        return self._granted(self._leases.renew(message.endpoint, message.life, digest, self.ctx.now()))

    def _granted(self, claimed: Claimed) -> LeaseGranted:
        return LeaseGranted(
            lease_s=self._leases.lease_s, superseded=claimed.superseded, claim_again=claimed.again
        )

    @handles(Unregister, lane=Lane.SYSTEM)
    async def unregister(self, message: Unregister) -> Done:
        for name, incarnation in message.names.items():
            self._leases.release(name, incarnation)
        return Done()

    @handles(Lookup, lane=Lane.SYSTEM)
    async def lookup(self, message: Lookup) -> Found:
        address = self._leases.find(message.name, self.ctx.now())
        if address is None and self._unable:
            raise Suspended(self._unable)
        return Found(address=address)

    @handles(ListNames, lane=Lane.SYSTEM)
    async def list_names(self, message: ListNames) -> Names:
        return Names(addresses=self._leases.live(message.prefix, self.ctx.now()))

    def summary(self) -> dict[str, str | int | float]:
        return {"suspended": self._unable} if self._unable else {}
