"""Who watches whom across processes, and when a silent process counts as dead.

A watcher's process asks the watched one for a sign of life every beat (the `Watch` itself, so a lost one
heals); the answer is sent by the actor loop, so it proves that the loop turns, not just the process. Dead is:
the link down (a closed socket is seen at once), or no sign for `silent_s`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from supervisor.actor import Terminated
from supervisor.address import Address
from supervisor.cell import Cell
from supervisor.delivery import Delivery
from supervisor.mailbox import Lane
from supervisor.system_messages import Ended, Watch

if TYPE_CHECKING:
    from supervisor.system import ActorSystem

log = logging.getLogger("supervisor")

MAX_WATCHERS = 4096
"""Remote watchers of one process; a thousand nodes with a few actors each. One beyond it is
not taken, and logged."""

_Watched = tuple[str, str, int]  # endpoint, name, incarnation


class Watches:
    """The watches of one actor system, in both directions."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._remote: dict[_Watched, list[Cell]] = {}
        self._addresses: dict[_Watched, Address] = {}
        self._heard: dict[str, float] = {}
        self._local: dict[tuple[str, int], list[Cell]] = {}
        self._watchers: dict[tuple[str, int], list[Address]] = {}

    def add(self, address: Address, watcher: Cell) -> None:
        """`watcher` wants to know the end of `address`."""
        if address.endpoint == self._system.wire.local.endpoint:
            cell = self._system.cell(address.name)
            if cell is None or cell.address.incarnation != address.incarnation:
                _notify([watcher], address.name, address.incarnation, "not alive")
            else:
                self._local.setdefault((address.name, address.incarnation), []).append(watcher)
            return
        key = (address.endpoint, address.name, address.incarnation)
        self._remote.setdefault(key, []).append(watcher)
        self._addresses[key] = address
        self._heard.setdefault(address.endpoint, asyncio.get_running_loop().time())
        self._ping(key)

    async def run(self) -> None:
        """Beat for ever."""
        loop = asyncio.get_running_loop()
        limits = self._system.limits
        before = loop.time()
        while True:
            await asyncio.sleep(limits.beat_s)
            now = loop.time()
            stalled_s = now - before - limits.beat_s  # our own pause must not be read as their silence
            before = now
            self._system.waits.sweep(now)
            if stalled_s > limits.beat_s:
                for endpoint in self._heard:
                    self._heard[endpoint] += stalled_s
            for endpoint in [e for e, heard in self._heard.items() if now - heard > limits.silent_s]:
                self._declare_dead(endpoint, f"silent for {limits.silent_s:.1f} s")
            for key in list(self._remote):
                self._remote[key] = [cell for cell in self._remote[key] if cell.alive]
                if self._remote[key]:
                    self._ping(key)
                else:
                    self._drop(key)

    def heard(self, endpoint: str) -> None:
        """A sign of life."""
        if endpoint in self._heard:
            self._heard[endpoint] = asyncio.get_running_loop().time()

    def link_down(self, endpoint: str) -> None:
        """The connection broke and did not come back."""
        self._declare_dead(endpoint, "link down")
        for watchers in self._watchers.values():
            watchers[:] = [watcher for watcher in watchers if watcher.endpoint != endpoint]

    def watched_by(self, watch: Watch) -> None:
        """Another process watches an actor of this one."""
        cell = self._system.cell(watch.name)
        if cell is None or cell.address.incarnation != watch.incarnation:
            self._tell_ended(watch.watcher, watch.name, watch.incarnation, "not alive")
            return
        watchers = self._watchers.setdefault((watch.name, watch.incarnation), [])
        if watch.watcher in watchers:
            return
        if sum(map(len, self._watchers.values())) >= MAX_WATCHERS:
            log.warning(
                "%d watchers: %s is not taken, it will see dead links only", MAX_WATCHERS, watch.watcher
            )
            return
        watchers.append(watch.watcher)

    def local_ended(self, name: str, incarnation: int, cause: str) -> None:
        """An actor of this process has ended: tell everyone who watches it."""
        _notify(self._local.pop((name, incarnation), []), name, incarnation, cause)
        for watcher in self._watchers.pop((name, incarnation), []):
            self._tell_ended(watcher, name, incarnation, cause)

    def remote_ended(self, ended: Ended) -> None:
        """Another process says that an actor which is watched from here has ended."""
        for key in [key for key in self._remote if key[1:] == (ended.name, ended.incarnation)]:
            cells = self._remote[key]
            self._drop(key)
            _notify(cells, ended.name, ended.incarnation, ended.cause)

    def watched_from(self, watcher: Cell) -> list[str]:
        """The actors that `watcher` watches, for who looks."""
        here = [f"{name}#{number}" for (name, number), cells in self._local.items() if watcher in cells]
        return [
            *here,
            *(str(self._addresses[key]) for key, cells in self._remote.items() if watcher in cells),
        ]

    def watchers_of(self, name: str, incarnation: int) -> list[str]:
        """The actors that watch this one, for who looks."""
        here = [str(cell.address) for cell in self._local.get((name, incarnation), [])]
        return [*here, *map(str, self._watchers.get((name, incarnation), []))]

    def _declare_dead(self, endpoint: str, cause: str) -> None:
        for key in [key for key in self._remote if key[0] == endpoint]:
            cells = self._remote[key]
            self._drop(key)
            _notify(cells, key[1], key[2], cause)
        self._heard.pop(endpoint, None)

    def _drop(self, key: _Watched) -> None:
        self._remote.pop(key, None)
        self._addresses.pop(key, None)
        if not any(other[0] == key[0] for other in self._remote):
            self._heard.pop(key[0], None)

    def _ping(self, key: _Watched) -> None:
        watcher = self._remote[key][0].address
        message = Watch(watcher=watcher, name=key[1], incarnation=key[2])
        self._system.send_system(self._addresses[key].peer, message)

    def _tell_ended(self, watcher: Address, name: str, incarnation: int, cause: str) -> None:
        ended = Ended(
            watcher=watcher.name,
            watcher_incarnation=watcher.incarnation,
            name=name,
            incarnation=incarnation,
            cause=cause,
        )
        self._system.send_system(watcher.peer, ended)


def _notify(watchers: list[Cell], name: str, incarnation: int, cause: str) -> None:
    event = Terminated(name=name, incarnation=incarnation, cause=cause)
    for watcher in watchers:
        if watcher.alive:
            watcher.deliver(Delivery(event), Lane.SYSTEM)
