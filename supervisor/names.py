"""Names of this process and of others: kept registered by leases, resolved through the registry.

Owns the cache of resolutions and the claim of this process's names. Who holds a name is the registry's word.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from supervisor.address import Address
from supervisor.deadline import Deadline
from supervisor.errors import AskFailed, AskTimeout, Fenced, Unreachable
from supervisor.system_messages import SYSTEM, ClaimNames, Found, LeaseGranted, Lookup, Unregister
from transport.wire import Peer

if TYPE_CHECKING:
    from supervisor.system import ActorSystem

log = logging.getLogger("supervisor")

REGISTRY = "registry"
RETRY_S = 0.05
MAX_RETRY_S = 0.5


class Names:
    """The names of one actor system.

    Args:
        system: whose actors are kept registered.
        registry: the process that holds the registry; None when it is this one, or there is none.
    """

    def __init__(self, system: ActorSystem, registry: Peer | None) -> None:
        self._system = system
        self._registry = registry
        self._resolved: dict[str, Address] = {}  # bounded by the names that this process talks to
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """An actor of this process was spawned: claim its name at once."""
        self._changed.set()

    def forget(self, name: str) -> None:
        """Its holder did not answer: ask the registry next time."""
        self._resolved.pop(name, None)

    def forget_peer(self, peer: Peer) -> None:
        """A process is gone, with every name that it held."""
        for name in [name for name, address in self._resolved.items() if address.peer == peer]:
            del self._resolved[name]

    def known(self, name: str) -> Address | None:
        """The holder of `name`, if it lives here or was resolved before."""
        local = self._system.cell(name)
        return local.address if local is not None else self._resolved.get(name)

    async def resolve(self, name: str, deadline_s: float, who: str = SYSTEM) -> Address:
        """See `Context.resolve`."""
        known = self.known(name)
        if known is not None:
            return known
        waits = self._system.waits
        deadline = Deadline.after(deadline_s, asyncio.get_running_loop().time())
        wait = waits.begin(who, "the holder of a name", name, deadline)
        try:
            return await self._look_up(name, deadline)
        except AskTimeout:
            waits.passed(wait)
            raise
        finally:
            waits.end(wait)

    async def _look_up(self, name: str, deadline: Deadline) -> Address:
        registry = self._registry_at()
        now = asyncio.get_running_loop().time
        pause = RETRY_S
        why = "" if registry else " and there is no registry"
        while True:
            left = deadline.left_s(now())
            if registry is None or left <= 0:
                raise AskTimeout(f"nobody holds the name {name!r}{why}")
            try:
                found = await self._system.ask(registry, Lookup(name=name), deadline_s=left, expect=Found)
                why = ""
            except Unreachable as problem:
                found, why = Found(address=None), f": {problem}"
            if found.address is not None:
                self._resolved[name] = found.address
                return found.address
            await asyncio.sleep(min(pause, deadline.left_s(now())))
            pause = min(pause * 1.5, MAX_RETRY_S)

    async def still_held(self, address: Address, deadline_s: float) -> bool:
        """Whether the registry still names this address; a registry that does not answer changes nothing.

        For who waits for an answer: a holder that was killed and replaced will never give it, and where it
        was not heard of before, no broken link tells.
        """
        registry = self._registry_at()
        if registry is None:
            return True
        try:
            found = await self._system.ask(
                registry, Lookup(name=address.name), deadline_s=deadline_s, expect=Found
            )
        except AskFailed:
            return True
        return found.address == address

    def _registry_at(self) -> Address | None:
        local = self._system.cell(REGISTRY)
        if local is not None:
            return local.address
        if self._registry is None:
            return None
        return Address(name=REGISTRY, endpoint=self._registry.endpoint, public_key=self._registry.public_key)

    async def keep_registered(self) -> None:
        """Renew the lease of every name at a third of its life, and at once when a name appears."""
        while True:
            period_s = self._system.limits.lease_s / 3
            registry = self._registry_at()
            self._changed.clear()
            cells = self._system.cells()
            if registry is not None and cells:
                names = {cell.address.name: cell.address.incarnation for cell in cells}
                local = self._system.wire.local
                claim = ClaimNames(endpoint=local.endpoint, public_key=local.public_key, names=names)
                try:
                    reply = await self._system.ask(registry, claim, deadline_s=period_s, expect=LeaseGranted)
                except AskFailed as problem:
                    log.debug("lease not renewed: %s", problem)
                    await asyncio.sleep(RETRY_S)
                else:
                    self._yield_superseded(reply.superseded)
            try:
                await asyncio.wait_for(self._changed.wait(), period_s)
            except TimeoutError:
                continue

    def _yield_superseded(self, superseded: dict[str, int]) -> None:
        for name, holder in superseded.items():
            self._system.incarnations.at_least(holder)
            cell = self._system.cell(name)
            if cell is not None and cell.address.incarnation < holder:
                cell.crash(Fenced(f"{cell.address} was superseded by incarnation {holder}"))

    async def unregister(self, names: dict[str, int]) -> None:
        """Give names up before their lease ends (an ordered stop, a process seen dead)."""
        registry = self._registry_at()
        if registry is not None:
            await self._system.tell(registry, Unregister(names=names))
