"""The registry: names resolve to an address with its incarnation, for as long as the holder renews its lease.

Owns the leases and the highest incarnation that ever held each name; a lower one is refused for ever. That
fence is journaled, so it holds across a restart of the registry; the leases themselves are soft state
that the holders renew within a second.
"""

from dataclasses import dataclass

from supervisor.actor import Actor, handles
from supervisor.address import Address
from supervisor.mailbox import Lane
from supervisor.message import Done, Message
from supervisor.system_messages import (
    ClaimNames,
    Found,
    LeaseGranted,
    ListNames,
    Lookup,
    Names,
    Unregister,
)

MAX_NAMES = 100_000
"""Names ever seen; a thousand nodes restarted many times. Beyond it new names are refused."""
_SNAPSHOT_EVERY = 1000


class NameFenced(Message, frozen=True):
    """Journaled: the highest incarnation that held `name`."""

    name: str
    incarnation: int


class Fences(Message, frozen=True):
    """Journaled: snapshot of all fences."""

    highest: dict[str, int]


@dataclass(slots=True)
class Lease:
    """A live registration."""

    address: Address
    expires: float


class Leases:
    """The policy: who may hold a name, and until when. Pure; time is an argument."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.highest: dict[str, int] = {}
        self._held: dict[str, Lease] = {}

    def claim(self, address: Address, now: float) -> bool | None:
        """Grant or renew. True: a new incarnation took the name; False: renewed; None: superseded."""
        highest = self.highest.get(address.name, 0)
        if address.incarnation < highest or (highest == 0 and len(self.highest) >= MAX_NAMES):
            return None
        self._held[address.name] = Lease(address, now + self.lease_s)
        self.highest[address.name] = address.incarnation
        return address.incarnation > highest

    def release(self, name: str, incarnation: int) -> None:
        """The holder, and only it, gives the name up."""
        lease = self._held.get(name)
        if lease is not None and lease.address.incarnation == incarnation:
            del self._held[name]

    def find(self, name: str, now: float) -> Address | None:
        """The holder, unless its lease has run out."""
        lease = self._held.get(name)
        return lease.address if lease is not None and lease.expires > now else None

    def live(self, prefix: str, now: float) -> list[Address]:
        """Every live registration under `prefix`, by name."""
        held = sorted(self._held.items())
        return [lease.address for name, lease in held if name.startswith(prefix) and lease.expires > now]


class Registry(Actor):
    """`Leases` behind messages, with journaled fences."""

    def __init__(self, lease_s: float) -> None:
        self._leases = Leases(lease_s)
        self._since_snapshot = 0

    async def on_start(self) -> None:
        async for event in self.ctx.journal.replay():
            if isinstance(event, Fences):
                self._leases.highest.update(event.highest)
            elif isinstance(event, NameFenced):
                self._leases.highest[event.name] = event.incarnation

    @handles(ClaimNames, lane=Lane.SYSTEM)
    async def register(self, message: ClaimNames) -> LeaseGranted:
        superseded: dict[str, int] = {}
        fences: list[NameFenced] = []
        for name, incarnation in message.names.items():
            address = Address(
                name=name, endpoint=message.endpoint, public_key=message.public_key, incarnation=incarnation
            )
            granted = self._leases.claim(address, self.ctx.now())
            if granted is None:
                superseded[name] = self._leases.highest.get(name, 0)
            elif granted:
                fences.append(NameFenced(name=name, incarnation=incarnation))
        if fences:
            await self.ctx.journal.append(*fences)
            self._since_snapshot += len(fences)
            if self._since_snapshot >= _SNAPSHOT_EVERY:
                self._since_snapshot = 0
                await self.ctx.journal.snapshot(Fences(highest=dict(self._leases.highest)))
        return LeaseGranted(lease_s=self._leases.lease_s, superseded=superseded)

    @handles(Unregister, lane=Lane.SYSTEM)
    async def unregister(self, message: Unregister) -> Done:
        for name, incarnation in message.names.items():
            self._leases.release(name, incarnation)
        return Done()

    @handles(Lookup, lane=Lane.SYSTEM)
    async def lookup(self, message: Lookup) -> Found:
        return Found(address=self._leases.find(message.name, self.ctx.now()))

    @handles(ListNames, lane=Lane.SYSTEM)
    async def list_names(self, message: ListNames) -> Names:
        return Names(addresses=self._leases.live(message.prefix, self.ctx.now()))
