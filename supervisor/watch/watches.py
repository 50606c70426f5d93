"""Watches: watches across processes, and failure detection of other processes.

Owns the watches in both directions, and one `Detector` for each process in which something is watched. One
record is kept for each process, not for each actor.

Every frame of a process on a control link is a sign of life. The loop that runs the actors also runs the
links, so a frame proves that the loop runs, not just the process. Once a beat every watching process looks;
it probes a silent one by a frame of the link that the other link answers. So a beat costs two small frames on
a silent link and none on a busy one. Where two processes watch each other, the probe of one is the sign of
life for the other. A `Watch` is sent once, over links that do not lose. All watches are affirmed again now
and then, in one message, which repairs what a restart lost.

Dead means: the link is down (a refused connection is seen at once), or the detector's verdict on the silence.
A suspected process (a broken link, an unlikely silence) is neither dead nor alive; an actor that needs to
know overrides `Actor.on_suspected`. A pause of our own loop does not count as silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gleaner.supervisor.actor import Actor, Suspected, Terminated
from gleaner.supervisor.address import Address
from gleaner.supervisor.delivery import Delivery
from gleaner.supervisor.inspection.vitals import Recovery
from gleaner.supervisor.mailbox import Lane
from gleaner.supervisor.system_messages import Ended, Watch
from gleaner.supervisor.watch.detector import Detector, Patience, Verdict
from gleaner.supervisor.watch.watched_processes import Life, Watched, Watcher
from gleaner.transport.wire import Peer, Route

if TYPE_CHECKING:
    from gleaner.supervisor.cell import Cell
    from gleaner.supervisor.system import ActorSystem

log = logging.getLogger("supervisor")

MIN_PAUSE_S = 0.001  # between two looks: the resolution of the loop's timers
QUIET_BEATS = 0.75
"""If a process was silent for so much of a beat at a look, it is probed. Below 1, so that a silence without a
fault stays below two beats, far from suspicion. Above 1/2, so that of two processes that watch each other one
probes and both get a sign of life, unless they look at the same moment."""
AFFIRM_S = 10.0
"""Every watch is repeated this often, or once in a lease where that is longer; that repairs what a process
lost."""
FORGET_AFTER = 3
"""A watching process that was silent for the time of so many affirmations watches no longer."""
MAX_WATCHES = 65_536
"""Watches of other processes on actors of this one: a thousand processes with some sixty each. One beyond it
is not taken, and logged."""
MAX_WATCHERS = 4_096
"""Processes that watch actors of this one: as many as may dial it."""
CHUNK = 2_000
"""Watches in one message: 200 KiB, far below the limit of a frame."""


class Watches:
    """The watches of one actor system, in both directions."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._processes: dict[str, Watched] = {}  # by endpoint
        self._local: dict[Life, list[Cell]] = {}
        self._watchers: dict[str, Watcher] = {}  # by endpoint
        self._timer: asyncio.TimerHandle | None = None  # of the next look; none without watches
        self._due_s = self._affirmed_s = _now()
        self._recoveries = system.inspection.vitals.recoveries

    def add(self, address: Address, watcher: Cell) -> None:
        """`watcher` watches the end of `address`; it is notified once, however often it calls this."""
        life = (address.name, address.incarnation)
        if address.endpoint == self._system.endpoint:
            cell = self._system.cell(address.name)
            if cell is None or cell.address.incarnation != address.incarnation:
                self.notify([watcher], life, "not alive")
            else:
                here = self._local.setdefault(life, [])
                if watcher not in here:
                    here.append(watcher)
                self._look_later()
            return
        process = self._processes.get(address.endpoint)
        if process is None:
            process = Watched(address.peer, Detector(self._patience(), _now()))
            self._processes[address.endpoint] = process
            self._look_later(anew=len(self._processes) == 1)
        cells = process.watched.setdefault(life, [])
        if watcher in cells:
            return
        if not cells:
            if not process.fresh:
                asyncio.get_running_loop().call_soon(self._say_fresh, process)
            process.fresh.append(life)
        cells.append(watcher)

    def retime(self) -> None:
        """The limits of the system have changed: apply them to the detectors."""
        patience = self._patience()
        for process in self._processes.values():
            process.detector.patience = patience
        self._look_later(anew=True)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._processes.clear()

    def look(self, now: float, *, stalled_s: float) -> None:
        """Judge every silence (`stalled_s` of it was our own), and probe silent processes."""
        links = self._system.links
        for endpoint, process in list(self._processes.items()):
            detector = process.detector
            detector.excuse(stalled_s)
            heard_s = links.heard_s(process.peer)
            if (watcher := self._watchers.get(endpoint)) is not None:
                heard_s = max(heard_s, links.heard_s(watcher.route))
            if heard_s > detector.last_s:
                detector.beat(heard_s)
            verdict = detector.verdict(now)
            if verdict is Verdict.DEAD:
                silence_s = detector.silence_s(now)
                self._recoveries[Recovery.PEER_SILENT] += 1
                log.warning("%s is dead: silent for %.1f s", endpoint, silence_s)
                self._system.peer_dead(process.peer)
                self._declare_dead(endpoint, f"silent for {silence_s:.1f} s")
                continue
            self._suspect(process, process.broken or verdict is Verdict.SUSPECT)
            quiet = detector.silence_s(now) >= QUIET_BEATS * detector.patience.beat_s
            if quiet and not links.ask_life(process.peer):
                self._say(process, process.watched)  # dials it

    def _affirm_s(self) -> float:
        return max(AFFIRM_S, self._system.limits.lease_s)

    def _patience(self) -> Patience:
        limits = self._system.limits
        return Patience.within(limits.silent_s, beat_s=limits.beat_s)

    def _look_later(self, *, anew: bool = False) -> None:
        """Schedule the next look; `anew`: perhaps sooner than scheduled before."""
        if self._timer is not None:
            if not anew:
                return
            self._timer.cancel()
            self._timer = None
        now = _now()
        if self._processes:
            # Less than a beat if a silence reaches its hard bound sooner: the bound is kept to the
            # millisecond.
            left_s = min([process.detector.left_s(now) for process in self._processes.values()])
            pause_s = min(self._system.limits.beat_s, max(left_s, MIN_PAUSE_S))
        elif self._watchers or self._local:
            pause_s = self._affirm_s()
        else:
            return
        self._due_s = now + pause_s
        self._timer = asyncio.get_running_loop().call_at(self._due_s, self._due)

    def _due(self) -> None:
        self._timer = None
        now = _now()
        stalled_s = now - self._due_s
        for watcher in self._watchers.values():
            watcher.heard_s = min(watcher.heard_s + stalled_s, now)
        self.look(now, stalled_s=stalled_s)
        if now - self._affirmed_s >= self._affirm_s():
            self._affirmed_s = now
            self._affirm(now)
        self._look_later()

    def suspects(self) -> dict[str, float]:
        """Processes that are suspected now, by endpoint, with the level of suspicion."""
        now = _now()
        return {
            endpoint: round(process.detector.suspicion(now), 1)
            for endpoint, process in self._processes.items()
            if process.suspected
        }

    # -- incoming events --

    def link_broken(self, endpoint: str, broken: bool) -> None:
        """The connection broke and may be restored, or it was restored."""
        process = self._processes.get(endpoint)
        if process is not None:
            if process.broken and not broken:
                self._say(
                    process, process.watched
                )  # the session may be another than that of the earlier message
            process.broken = broken
            self._suspect(process, broken or process.detector.verdict(_now()) is Verdict.SUSPECT)

    def link_down(self, endpoint: str) -> None:
        """The connection broke and was not restored."""
        self._declare_dead(endpoint, "link down")
        self._watchers.pop(endpoint, None)

    def watched_by(self, watch: Watch, route: Route) -> None:
        """Another process, reached under `route`, watches actors of this one."""
        watcher = self._watchers.get(watch.endpoint)
        if watcher is None:
            watcher = Watcher(Peer(watch.endpoint, watch.public_key), route, _now())
            if len(self._watchers) >= MAX_WATCHERS:
                log.warning(
                    "%d processes watch: %s is notified of dead links only", MAX_WATCHERS, watch.endpoint
                )
                return
        watcher.route, watcher.heard_s = route, _now()
        room: int | None = None  # counted only for new watches: watches are affirmed again and again
        for life in watch.watched:
            cell = self._system.cell(life[0])
            if cell is None or cell.address.incarnation != life[1]:
                self._tell_ended(watcher.peer, life, "not alive")
            elif life not in watcher.watched:
                if room is None:
                    room = MAX_WATCHES - sum(len(other.watched) for other in self._watchers.values())
                if room <= 0:
                    log.warning("%d watches: %s is notified of dead links only", MAX_WATCHES, watch.endpoint)
                    break
                room -= 1
                watcher.watched.add(life)
        if watcher.watched:  # otherwise invented addresses could fill the table
            self._watchers[watch.endpoint] = watcher
            self._look_later()

    def local_ended(self, name: str, incarnation: int, cause: str) -> None:
        """An actor of this process has ended: notify all its watchers."""
        life = (name, incarnation)
        self.notify(self._local.pop(life, ()), life, cause)
        for watcher in self._watchers.values():
            if life in watcher.watched:
                watcher.watched.discard(life)
                self._tell_ended(watcher.peer, life, cause)

    def remote_ended(self, ended: Ended) -> None:
        """Another process reports that an actor of its own has ended."""
        process = self._processes.get(ended.endpoint)
        if process is not None:
            life = (ended.name, ended.incarnation)
            self.notify(process.watched.pop(life, ()), life, ended.cause)
            if not process.watched:
                del self._processes[ended.endpoint]

    # -- what follows --

    def _suspect(self, process: Watched, suspected: bool) -> None:
        if process.suspected is suspected:
            return
        process.suspected = suspected
        if not suspected:
            self._recoveries[Recovery.PEER_BACK] += 1
        for (name, incarnation), cells in process.watched.items():
            event = Suspected(name=name, incarnation=incarnation, suspected=suspected)
            for cell in cells:
                actor = cell.actor
                if actor is not None and type(actor).on_suspected is not Actor.on_suspected:
                    cell.take(Delivery(event), Lane.SYSTEM)

    def watched_from(self, watcher: Cell) -> list[str]:
        """The actors that `watcher` watches, for inspection."""
        here = [f"{name}#{number}" for (name, number), cells in self._local.items() if watcher in cells]
        far = (
            f"{name}#{number}@{endpoint}"
            for endpoint, process in self._processes.items()
            for (name, number), cells in process.watched.items()
            if watcher in cells
        )
        return [*here, *far]

    def watchers_of(self, name: str, incarnation: int) -> list[str]:
        """The actors of this process, and the other processes, that watch this one; for inspection."""
        life = (name, incarnation)
        here = [str(cell.address) for cell in self._local.get(life, [])]
        return [*here, *(endpoint for endpoint, other in self._watchers.items() if life in other.watched)]

    def _declare_dead(self, endpoint: str, cause: str) -> None:
        process = self._processes.pop(endpoint, None)
        if process is not None:
            for life, cells in process.watched.items():
                self.notify(cells, life, cause)

    def notify(self, watchers: Iterable[Cell], life: Life, cause: str) -> None:
        """Notify the living ones of these watchers; no notification is lost, however many end at once."""
        delivery = Delivery(Terminated(name=life[0], incarnation=life[1], cause=cause))
        for cell in watchers:
            if not cell.alive or self._system.linking.ended(cell, life, cause):
                continue
            if not cell.take(delivery, Lane.SYSTEM):
                self._system.finish(_give(cell, delivery))  # many at once: none is lost

    def _affirm(self, now: float) -> None:
        for endpoint, process in list(self._processes.items()):
            for life, cells in list(process.watched.items()):
                cells[:] = [cell for cell in cells if cell.alive]
                if not cells:
                    del process.watched[life]
            if process.watched:
                self._say(process, process.watched)
            else:
                del self._processes[endpoint]
        for endpoint, watcher in list(self._watchers.items()):
            heard_s = max(watcher.heard_s, self._system.links.heard_s(watcher.route))
            if now - heard_s > FORGET_AFTER * self._affirm_s():
                del self._watchers[endpoint]
        for life, cells in list(self._local.items()):
            cells[:] = [cell for cell in cells if cell.alive]
            if not cells:
                del self._local[life]

    def _say_fresh(self, process: Watched) -> None:
        fresh, process.fresh = process.fresh, []
        self._say(process, [life for life in fresh if life in process.watched])

    def _say(self, process: Watched, watched: Iterable[Life]) -> None:
        lives = list(watched)
        local = self._system.wire.local
        for start in range(0, len(lives), CHUNK):
            watch = Watch(
                endpoint=local.endpoint, public_key=local.public_key, watched=lives[start : start + CHUNK]
            )
            self._system.send_system(process.peer, watch)

    def _tell_ended(self, to: Peer, life: Life, cause: str) -> None:
        ended = Ended(endpoint=self._system.endpoint, name=life[0], incarnation=life[1], cause=cause)
        self._system.send_system(to, ended)


async def _give(cell: Cell, delivery: Delivery) -> None:
    await cell.take_waiting(delivery, Lane.SYSTEM)


def _now() -> float:
    return asyncio.get_running_loop().time()
