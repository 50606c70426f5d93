"""Names: registration of this process's names by one lease, resolution of others'.

Both use the registry. Owns the cache of resolutions, and which of this process's names the registry knows.
The registry decides which address holds a name (`leases.py`). Names are claimed when they change, in messages
of bounded size; every third of a lease one small renewal is sent, whatever number of names it is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from gleaner.supervisor.address import Address
from gleaner.supervisor.deadline import Deadline
from gleaner.supervisor.errors import AskFailed, AskTimeout, Fenced, Overloaded, Suspended, Unreachable
from gleaner.supervisor.names.leases import Digest
from gleaner.supervisor.system_messages import (
    SYSTEM,
    ClaimNames,
    Found,
    LeaseGranted,
    Lookup,
    RenewLease,
    Unregister,
)
from gleaner.transport.wire import Peer

if TYPE_CHECKING:
    from gleaner.supervisor.system import ActorSystem

log = logging.getLogger("supervisor")

REGISTRY = "registry"
RETRY_S = 0.002  # a crashed actor is back within milliseconds: look soon, then at growing pauses
MAX_RETRY_S = 0.5
CLAIM_RETRY_S = 0.05  # pause before the next try with a registry that did not answer; it grows
MAX_CLAIM_RETRY_S = 0.5
CLAIM_NAMES = 2_000
"""Names in one claim: some 100 KiB, far below the limit of a frame and a few milliseconds of the registry's
time."""
RESOLVED_S = 10.0
"""A resolved name is looked up anew after this time (or after a lease, if that is longer), so that no process
sends to a former holder for ever."""
RENEWALS = 3
"""Renewals in a lease: one may be lost, and the next be late, before a name is."""
CANDIDATE_S = 1.0  # for one of several processes that may hold the registry; its answer takes milliseconds
MAX_RESOLVED = 65_536
"""Resolved names remembered; all are forgotten at the limit, which costs a look-up each."""


class Names:
    """The names of one actor system.

    Args:
        system: whose actors are kept registered. registry: the process that holds the registry, or those that
        may, in order of preference; None when it is
            this one, or there is none.
    """

    def __init__(self, system: ActorSystem, registry: Peer | Sequence[Peer] | None) -> None:
        self._system = system
        self._candidates = [registry] if isinstance(registry, Peer) else list(registry or ())
        self._resolved: dict[str, tuple[Address, float]] = {}
        self._changed = asyncio.Event()
        self._unregistered: set[str] = set()  # living here, known only here
        self._new: dict[str, int] = {}  # not claimed yet
        self._ended: dict[str, int] = {}  # not given up yet
        self._claimed: dict[str, int] = {}
        self._digest = Digest()
        self._first = True  # the registry knows nothing of this process
        self._ran_registry = False  # the registry is, or was, an actor of this process
        self._unable = ""
        self._granted_s = 0.0  # the lease, as the registry reported it

    # -- names of this process --

    def spawned(self, name: str, incarnation: int, *, register: bool) -> None:
        """An actor of this process lives; claim its name at once if other processes must find it."""
        if not register:
            self._unregistered.add(name)
            return
        if not self._first:
            self._new[name] = incarnation
        self._changed.set()

    def ended(self, name: str, incarnation: int) -> None:
        """An actor of this process has ended: its name is free."""
        self._unregistered.discard(name)
        if self._new.pop(name, None) is None and self._claimed.get(name) == incarnation:
            self._ended[name] = incarnation
            self._changed.set()

    async def keep_registered(self) -> None:
        """Claim changes at once, and renew the lease at a third of its life, which the registry reports."""
        pause_s = CLAIM_RETRY_S
        while True:
            self._changed.clear()
            registry = self._registry_at()
            period_s = (self._granted_s or self._system.limits.lease_s) / RENEWALS
            if registry is not None:
                try:
                    patience_s = period_s if len(self._candidates) < 2 else min(period_s, CANDIDATE_S)
                    await self._tell_registry(registry, patience_s)
                    period_s = self._granted_s / RENEWALS or period_s
                    self._unable, pause_s = "", CLAIM_RETRY_S
                # it lives; all processes that joined with this one ask it at once
                except Overloaded as problem:
                    if not self._unable:
                        log.warning("not registered yet, trying on: %s", problem)
                    self._unable = str(problem)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, period_s)
                    continue
                except Suspended as problem:  # the registry keeps granting its earlier leases
                    if not self._unable:
                        log.warning("new actors of this process are not found by name: %s", problem)
                    self._unable = str(problem)
                except AskFailed as problem:
                    log.debug("lease not renewed: %s", problem)
                    self._next_candidate(registry)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, MAX_CLAIM_RETRY_S)
                    continue
            with contextlib.suppress(TimeoutError):  # not `wait_for`: that may swallow a cancellation
                async with asyncio.timeout(period_s):
                    await self._changed.wait()

    async def _tell_registry(self, registry: Address, deadline_s: float) -> None:
        if self._first:
            self._claim_all()
        elif self._claimed and not (self._new or self._ended):
            renewal = RenewLease(
                endpoint=self._system.endpoint,
                life=self._system.life,
                count=self._digest.count,
                sum=self._digest.sum,
            )
            await self._granted(registry, renewal, deadline_s)
        while self._new or self._ended:
            claim = ClaimNames(
                endpoint=self._system.endpoint,
                life=self._system.life,
                names=dict(islice(self._new.items(), CLAIM_NAMES)),
                ended=dict(islice(self._ended.items(), CLAIM_NAMES)),
                first=self._first,
                public_key=self._system.wire.local.public_key,
            )
            self._first = False  # actors spawned during the wait are new
            try:
                reply = await self._granted(registry, claim, deadline_s)
            except AskFailed:
                self._first = claim.first
                raise
            if reply.claim_again:
                return
            self._note(claim, reply.superseded)

    async def _granted(
        self, registry: Address, message: ClaimNames | RenewLease, deadline_s: float
    ) -> LeaseGranted:
        reply = await self._system.ask(registry, message, deadline_s=deadline_s, expect=LeaseGranted)
        if math.isfinite(reply.lease_s) and reply.lease_s > 0:
            self._granted_s = reply.lease_s
        if reply.claim_again:
            self._first = True
            self._changed.set()
        for name, holder in reply.superseded.items():
            self._system.incarnations.at_least(holder)
            self._drop(name)
            cell = self._system.cell(name)
            if cell is not None and cell.address.incarnation < holder:
                cell.crash(Fenced(f"{cell.address} was superseded by incarnation {holder}"))
            elif cell is not None and not holder:
                log.warning("name not registered, the registry is full of held names: %s", name)
        return reply

    def _claim_all(self) -> None:
        cells = self._system.cells()
        addresses = [cell.address for cell in cells if cell.address.name not in self._unregistered]
        self._new = {address.name: address.incarnation for address in addresses}
        self._ended.clear()
        self._claimed.clear()
        self._digest = Digest()

    def _note(self, claim: ClaimNames, superseded: dict[str, int]) -> None:
        """The registry has taken this claim; meanwhile some of it may have ended."""
        for name, incarnation in claim.ended.items():
            if self._ended.get(name) == incarnation:
                del self._ended[name]
            self._drop(name, incarnation)
        for name, incarnation in claim.names.items():
            waits = self._new.get(name)
            if waits == incarnation:
                del self._new[name]
            if name in superseded:
                continue
            self._drop(name)
            self._claimed[name] = incarnation
            self._digest.add(name, incarnation)
            if waits is None:
                self._ended[name] = incarnation

    def _drop(self, name: str, incarnation: int | None = None) -> None:
        """The registry does not count this name as ours any longer."""
        known = self._claimed.get(name)
        if known is not None and incarnation in (None, known):
            del self._claimed[name]
            self._digest.remove(name, known)

    async def unregister(self, names: dict[str, int]) -> None:
        """Have names given up that another process held (it was seen dead)."""
        registry = self._registry_at()
        if registry is not None:
            await self._system.tell(registry, Unregister(names=names))

    def _registry_at(self) -> Address | None:
        local = self._system.cell(REGISTRY)
        if local is not None:
            self._ran_registry = True
            return local.address
        if not self._candidates:
            return None
        peer = self._candidates[0]
        return Address(name=REGISTRY, endpoint=peer.endpoint, public_key=peer.public_key)

    def _next_candidate(self, silent: Address) -> None:
        """This one does not answer: another may hold the registry now."""
        if self._system.cell(REGISTRY) is not None or len(self._candidates) < 2:
            return
        if self._candidates[0].endpoint == silent.endpoint:  # or another caller noticed already
            self._candidates.append(self._candidates.pop(0))
            self._first = True

    # -- names of others --

    def known(self, name: str) -> Address | None:
        """The holder of `name`, if it lives here or was resolved a short while ago."""
        local = self._system.cell(name)
        if local is not None:
            return local.address
        resolved = self._resolved.get(name)
        if resolved is None or resolved[1] < asyncio.get_running_loop().time():
            return None
        return resolved[0]

    def forget(self, name: str) -> None:
        """Its holder did not answer: ask the registry next time."""
        self._resolved.pop(name, None)

    def forget_peer(self, peer: Peer) -> None:
        """A process is gone, with every name that it held. If it held the registry, its knowledge of our
        names is gone too; register with its next life at once."""
        if self._candidates and self._candidates[0] == peer:
            self._changed.set()
        for name in [name for name, (address, _) in self._resolved.items() if address.peer == peer]:
            del self._resolved[name]

    async def resolve(self, name: str, deadline_s: float, caller: str = SYSTEM) -> Address:
        """See `Context.resolve`."""
        known = self.known(name)
        if known is not None:
            return known
        waits = self._system.waits
        deadline = Deadline.after(deadline_s, asyncio.get_running_loop().time())
        wait = waits.begin(caller, "the holder of a name", name, deadline)
        try:
            return await self._look_up(name, deadline)
        except AskTimeout:
            waits.passed(wait)
            raise
        finally:
            waits.end(wait)

    async def _look_up(self, name: str, deadline: Deadline) -> Address:
        now = asyncio.get_running_loop().time
        pause = RETRY_S
        why = "" if self._registry_at() else " and there is no registry"
        cause: AskFailed | None = None
        while True:
            registry = self._registry_at()
            left = deadline.left_s(now())
            if left <= 0 or (registry is None and not self._ran_registry):
                raise AskTimeout(f"no actor holds the name {name!r}{why}") from cause
            if registry is None:  # this process runs it, and it is being restarted
                await asyncio.sleep(min(pause, left))
                continue
            try:
                if len(self._candidates) > 1:  # one that is silent must not cost all the time
                    left = min(left, CANDIDATE_S)
                found = await self._system.ask(registry, Lookup(name=name), deadline_s=left, expect=Found)
                why, cause = "", None
            except Overloaded as problem:  # it lives, and has too much to do
                found, why = Found(address=None), f": {problem}"
            except (Unreachable, Suspended, AskTimeout) as problem:
                found, why, cause = Found(address=None), f": {problem}", problem
                self._next_candidate(registry)
            if found.address is not None:
                if len(self._resolved) >= MAX_RESOLVED:
                    self._resolved.clear()
                self._resolved[name] = found.address, now() + max(RESOLVED_S, self._granted_s)
                return found.address
            await asyncio.sleep(min(pause, deadline.left_s(now())))
            pause = min(pause * 2, MAX_RETRY_S)

    async def still_held(self, address: Address, deadline_s: float) -> bool:
        """Whether the holder that the registry names is still this one; a registry that does not answer
        changes nothing. deadline_s: of each lookup.

        For a caller that waits for an answer: a holder that was killed and replaced will never send it, and
        if this process had no link to it, no broken link shows that. While the registry names no holder it is
        asked again, until the caller ends this: a restarted registry knows no name before it is claimed anew,
        so the holder may live, and answer.
        """
        pause_s = RETRY_S
        while True:
            registry = self._registry_at()
            if registry is None:
                return True
            try:
                found = await self._system.ask(
                    registry, Lookup(name=address.name), deadline_s=deadline_s, expect=Found
                )
            except Overloaded:
                return True
            except AskFailed:
                if len(self._candidates) > 1:  # another may hold the registry now, and another the name
                    self._next_candidate(registry)
                    self.forget(address.name)
                return True
            if found.address is not None:
                return found.address == address
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_RETRY_S)
