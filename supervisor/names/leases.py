"""Leases: holders of registered names, their expiry, and fences.

Pure; time is an argument. A process has one lease, not one for each name. It claims the names that are new to
it, gives up those that ended, and renews all of them with one small message that has their number and their
sum (`Digest`). Where the registry's count differs (it restarted, a claim was lost), it requests all of them
again.

Fences: the highest incarnation that ever held a name is kept, and a lower one is refused for ever. That
memory is bounded: beyond `MAX_NAMES` the names without a holder are forgotten, the longest unheld first, and
the highest incarnation among them becomes the `floor` that a name unknown here must exceed. So nothing older
can return by being forgotten. Incarnations follow the wall clock, and a refused process begins again above
the floor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import xxhash

from gleaner.supervisor.address import Address

MAX_NAMES = 100_000
"""Names remembered; a thousand nodes restarted many times, or ten processes of ten thousand named actors. If
that many are held at once, further ones are refused."""
FORGOTTEN_PART = 10
"""Divisor of `MAX_NAMES`: a tenth of the names is forgotten at a time."""
KEEP_DEAD = 10
"""Expired leases are kept for so many lengths of a lease; a process that was only frozen returns without
claiming everything again."""


@dataclass(slots=True)
class Digest:
    """A set of names with their incarnations, in one comparable number: their count, and the sum (exclusive
    or) of their hashes, whatever the order of additions and removals."""

    count: int = 0
    sum: int = 0

    def add(self, name: str, incarnation: int) -> None:
        """This one is in the set now; it was not before."""
        self.count += 1
        self.sum ^= _hash(name, incarnation)

    def remove(self, name: str, incarnation: int) -> None:
        """This one is in the set no longer; it was."""
        self.count -= 1
        self.sum ^= _hash(name, incarnation)


@dataclass(slots=True)
class Holder:
    """A process with a lease."""

    endpoint: str
    public_key: str
    life: int
    expires: float
    lease_s: float = 0.0  # as it was last sent to the process
    names: dict[str, int] = field(default_factory=dict)
    digest: Digest = field(default_factory=Digest)
    # names lost to newer incarnations; reported at renewal
    lost: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class ClaimResult:
    """Result of a claim: names that a new incarnation took (to be journaled), and names refused because a
    newer one holds or held them. `again`: the process must claim all of its names anew."""

    taken: dict[str, int] = field(default_factory=dict)
    superseded: dict[str, int] = field(default_factory=dict)
    again: bool = False


class Leases:
    """The names of a cluster."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s  # may be set anew
        self.highest: dict[str, int] = {}  # the longest untouched name first
        self.floor = 0
        self._holders: dict[str, Holder] = {}  # by endpoint
        self._held: dict[str, Holder] = {}  # by name
        self._swept = 0.0

    def claim(
        self,
        endpoint: str,
        public_key: str,
        life: int,
        names: Mapping[str, int],
        ended: Mapping[str, int],
        now: float,
        *,
        first: bool,
    ) -> ClaimResult:
        """Grant the names that may be granted, release the ended ones. `first`: these are the first names of
        that process; its earlier names are void."""
        self._sweep(now)
        holder = self._holders.get(endpoint)
        if first:
            self._drop(holder)
            holder = self._holders[endpoint] = Holder(endpoint, public_key, life, now)
        if holder is None or holder.life != life:
            return ClaimResult(again=True)
        self._extend(holder, now)
        for name, incarnation in ended.items():
            self._release(holder, name, incarnation)
        claimed = ClaimResult()
        for name, incarnation in names.items():
            highest = self.highest.get(name, self.floor)
            if incarnation < highest or (name not in self.highest and not self._room()):
                claimed.superseded[name] = highest
                continue
            self._give(holder, name, incarnation)
            if incarnation > highest:
                self.highest.pop(name, None)
                self.highest[name] = incarnation
                claimed.taken[name] = incarnation
        return claimed

    def holds(self, endpoint: str, life: int, now: float) -> bool:
        """Whether that life of the process has a lease; where not, its next claim must be its first."""
        self._sweep(now)
        holder = self._holders.get(endpoint)
        return holder is not None and holder.life == life

    def fresh(self, names: Mapping[str, int]) -> dict[str, int]:
        """The names of `names` that a claim would take as new incarnations."""
        highest = self.highest
        return {name: number for name, number in names.items() if number > highest.get(name, self.floor)}

    def lives(self, endpoint: str, life: int, now: float) -> None:
        """The process at `endpoint` gave a sign of life: its names stay granted."""
        holder = self._holders.get(endpoint)
        if holder is not None and holder.life == life:
            self._extend(holder, now)

    def renew(self, endpoint: str, life: int, digest: Digest, now: float) -> ClaimResult:
        """The process at `endpoint` lives and holds what adds up to `digest`."""
        self._sweep(now)
        holder = self._holders.get(endpoint)
        if holder is None or holder.life != life:
            return ClaimResult(again=True)
        self._extend(holder, now)
        if holder.lost:
            lost, holder.lost = holder.lost, {}
            return ClaimResult(superseded=lost)  # it still counts them: compared next time
        return ClaimResult(again=digest != holder.digest)

    def release(self, name: str, incarnation: int) -> None:
        """Another process saw this incarnation end."""
        holder = self._held.get(name)
        if holder is not None:
            self._release(holder, name, incarnation)

    def find(self, name: str, now: float) -> Address | None:
        """The holder, unless its lease has run out."""
        holder = self._held.get(name)
        return _address(holder, name) if holder is not None and holder.expires > now else None

    def live(self, prefix: str, now: float) -> list[Address]:
        """Every live registration under `prefix`, by name."""
        return [
            _address(holder, name)
            for name, holder in sorted(self._held.items(), key=lambda held: held[0])
            if name.startswith(prefix) and holder.expires > now
        ]

    # -- bookkeeping --

    def _extend(self, holder: Holder, now: float) -> None:
        """The holder renews at the time that it was given, which may be later than a lease that became
        shorter meanwhile."""
        holder.expires = now + max(self.lease_s, holder.lease_s)
        holder.lease_s = self.lease_s

    def _give(self, holder: Holder, name: str, incarnation: int) -> None:
        before = self._held.get(name)
        if before is not None:
            old = before.names.pop(name)
            before.digest.remove(name, old)
            if before is not holder:
                before.lost[name] = incarnation
        self._held[name] = holder
        holder.names[name] = incarnation
        holder.digest.add(name, incarnation)

    def _release(self, holder: Holder, name: str, incarnation: int) -> None:
        if holder.names.get(name) == incarnation:
            del holder.names[name], self._held[name]
            holder.digest.remove(name, incarnation)

    def _drop(self, holder: Holder | None) -> None:
        if holder is not None:
            del self._holders[holder.endpoint]
            for name in holder.names:
                del self._held[name]

    def _room(self) -> bool:
        """Whether one more name can be remembered; frees space by forgetting names without a holder."""
        if len(self.highest) < MAX_NAMES:
            return True
        unheld = [name for name in self.highest if name not in self._held]
        for name in unheld[: max(1, MAX_NAMES // FORGOTTEN_PART)]:
            self.floor = max(self.floor, self.highest.pop(name))
        return bool(unheld)

    def _sweep(self, now: float) -> None:
        if now - self._swept < self.lease_s:
            return
        self._swept = now
        for holder in list(self._holders.values()):
            if holder.expires + KEEP_DEAD * self.lease_s < now:
                self._drop(holder)


def _address(holder: Holder, name: str) -> Address:
    return Address(
        name=name, endpoint=holder.endpoint, public_key=holder.public_key, incarnation=holder.names[name]
    )


def _hash(name: str, incarnation: int) -> int:
    digest: int = xxhash.xxh3_64_intdigest(f"{incarnation} {name}".encode())
    return digest
