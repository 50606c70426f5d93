"""Inspection: a process's reports of its actors, waits, dead letters and messages.

Owns the answers to these questions, the tap and the vital signs. Reads everything else and changes nothing:
the number and the origin of the questions make no difference to an actor.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

import msgspec

from gleaner.supervisor.actor import Actor
from gleaner.supervisor.cell import Cell
from gleaner.supervisor.dead_letters import DeadLetters
from gleaner.supervisor.errors import Refused
from gleaner.supervisor.inspection.failures import Failures
from gleaner.supervisor.inspection.link_figures import link_figures
from gleaner.supervisor.inspection.messages import (
    ActorDescribed,
    DeadLettersOf,
    Describe,
    HandlerShown,
    ListDeadLetters,
)
from gleaner.supervisor.inspection.tap import ReadTap, StartTap, StopTap, Tap, TapRecords
from gleaner.supervisor.inspection.vitals import Vitals
from gleaner.supervisor.journal.outage import StorageOutageProxy
from gleaner.supervisor.mailbox import Lane
from gleaner.supervisor.message import Message
from gleaner.supervisor.system_messages import (
    ActorState,
    Inspect,
    ListWaits,
    ProcessVitals,
    SystemState,
    WaitsOf,
    WaitState,
)

if TYPE_CHECKING:
    from gleaner.supervisor.system import ActorSystem

MAX_ACTORS = 10_000
"""Rows of one answer, about 2 MB; the others are counted. No user reads more, and a control link has its
limit."""
MAX_SHOWN = 100
"""Waits, watches and children of one actor that are reported."""


class Inspection:
    """See the module; one an actor system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self.failures = Failures()
        self.vitals = Vitals(
            lambda: ((cell.address.name, cell.address.incarnation, cell) for cell in system.cells())
        )
        self._tap = Tap(self._tapped)

    def start(self) -> None:
        """Begin to sample; call once, on the running loop."""
        self.vitals.start(self._system.turn_clock)

    def close(self) -> None:
        """Forget all readers."""
        self._tap.close()

    def ended(self, cell: Cell, problem: Exception | None) -> None:
        """An incarnation ended; `problem` is the reason, None for an ordered stop."""
        if problem is not None:
            now = asyncio.get_running_loop().time()
            self.failures.add(cell.address.name, cell.address.incarnation, problem, now)

    def answer(self, question: Message) -> Message | None:
        """The answer to a question about this process; None when it is no such question. Raises Refused."""
        if isinstance(question, Inspect):
            return self.state()
        if isinstance(question, ListWaits):
            return self.waits(question.limit)
        if isinstance(question, ListDeadLetters):
            return self.dead_letters(question.limit)
        if isinstance(question, Describe):
            return self.describe(question.name)
        passed: TapRecords | None = None
        if isinstance(question, StartTap):
            passed = self._tap.start(question)
        elif isinstance(question, ReadTap):
            passed = self._tap.read(question)
        elif isinstance(question, StopTap):
            passed = self._tap.stop(question)
        if passed is None:
            return None
        return msgspec.structs.replace(passed, node=self._system.node, process=self._system.process)

    # -- the answers --

    def state(self, waits: list[WaitState] | None = None) -> SystemState:
        """The whole process, a row for each actor. waits: as they are now, if the caller has them."""
        system = self._system
        now = asyncio.get_running_loop().time()
        supervised = self._supervised()
        waits = system.waits.snapshot() if waits is None else waits
        links = system.links.states()
        oldest: dict[str, list[float]] = {}
        for wait in waits:
            oldest.setdefault(wait.who, []).append(wait.since_s)
        actors = [
            self._row(cell, supervised.pop(cell.address.name, None), now, oldest.get(cell.address.name, []))
            for cell in system.cells()
        ]
        rows = [*actors, *supervised.values()]
        return SystemState(
            node=system.node,
            process=system.process,
            pid=self._system.machine.pid,
            endpoint=system.wire.local.endpoint,
            actors=rows[:MAX_ACTORS],
            left_out=max(len(rows) - MAX_ACTORS, 0),
            refused=dict(system.wire.refused),
            dead_letters=dict(system.dead_letters.counts),
            expired_waits=dict(system.waits.counts),
            suspects=system.watches.suspects(),
            vitals=self._vitals(now, waits),
            links=link_figures(links, system.links.ended),
        )

    def waits(self, limit: int) -> WaitsOf:
        """The waits of this process's actors, oldest first."""
        waits = self._system.waits
        return WaitsOf(
            node=self._system.node,
            process=self._system.process,
            now_s=asyncio.get_running_loop().time(),
            waits=waits.snapshot(limit),
            expired=list(waits.expired),
            counts=dict(waits.counts),
        )

    def dead_letters(self, limit: int) -> DeadLettersOf:
        """Undeliverable messages."""
        letters: DeadLetters = self._system.dead_letters
        return DeadLettersOf(
            node=self._system.node,
            process=self._system.process,
            now_s=asyncio.get_running_loop().time(),
            counts=dict(letters.counts),
            samples=letters.samples(limit),
        )

    def describe(self, name: str) -> ActorDescribed:
        """Full description of one actor. Raises Refused if it does not live here."""
        system = self._system
        cell = system.cell(name)
        if cell is None:
            raise Refused(f"no actor {name!r} lives in {system.node}/{system.process} now")
        now = asyncio.get_running_loop().time()
        waits = self._waits_of(name)
        row = self._row(cell, self._supervised().get(name), now, [wait.since_s for wait in waits])
        kind = type(cell.actor) if cell.actor is not None else Actor
        since_s = self.vitals.since_s(name, cell.address.incarnation)
        return ActorDescribed(
            name=name,
            incarnation=row.incarnation,
            node=system.node,
            process=system.process,
            pid=self._system.machine.pid,
            endpoint=cell.address.endpoint,
            now_s=now,
            age_s=now - since_s if since_s is not None else 0.0,
            state=row.state,
            actor_class=kind.__qualname__,
            module=kind.__module__,
            purpose=_purpose(kind),
            handlers=_handlers(kind),
            waiting={lane.name.lower(): cell.mailbox.depth(lane) for lane in Lane},
            mailbox_limit=row.mailbox_limit,
            handled=row.handled,
            dropped=row.dropped,
            rate=row.rate,
            restarts=row.restarts,
            last_failure=row.last_failure,
            failure=self.failures.newest(name),
            parent=row.parent,
            strategy=row.strategy,
            owner=next((owner for owner, names in system.owned().items() if name in names), ""),
            children=list(system.owned().get(name, ()))[:MAX_SHOWN],
            watches=system.watches.watched_from(cell)[:MAX_SHOWN],
            watched_by=system.watches.watchers_of(name, row.incarnation)[:MAX_SHOWN],
            waits=waits,
            journal=cell.ctx.journal_stream,
            figures=row.figures,
        )

    # -- their parts --

    def _row(self, cell: Cell, supervised: ActorState | None, now: float, waits: list[float]) -> ActorState:
        name, incarnation = cell.address.name, cell.address.incarnation
        return ActorState(
            name=name,
            incarnation=incarnation,
            state=_state(cell),
            mailbox=len(cell.mailbox),
            mailbox_limit=self._system.limits.mailbox,
            handled=cell.handled,
            dropped=cell.dropped,
            rate=self.vitals.rate(name, incarnation, cell.handled, now),
            restarts=supervised.restarts if supervised is not None else 0,
            last_failure=_last_failure(cell, supervised),
            parent=supervised.parent if supervised is not None else "",
            strategy=supervised.strategy if supervised is not None else "",
            waits=len(waits),
            oldest_wait_s=max(waits, default=0.0),
            figures=_figures(cell.actor) if cell.actor is not None and cell.ready else {},
        )

    def _supervised(self) -> dict[str, ActorState]:
        return {row.name: row for source in self._system.state_sources for row in source()}

    def _waits_of(self, name: str) -> list[WaitState]:
        return [wait for wait in self._system.waits.snapshot() if wait.who == name][:MAX_SHOWN]

    def _vitals(self, now: float, waits: list[WaitState]) -> ProcessVitals:
        machine = self.vitals.machine()
        return ProcessVitals(
            now_s=now,
            lag_s=self.vitals.lag_s,
            waits=len(waits),
            oldest_wait_s=waits[0].since_s if waits else 0.0,
            ask_counts=list(self.vitals.asks.counts),
            ask_sum_s=self.vitals.asks.sum_s,
            ask_failed=dict(self.vitals.asks.failed),
            cpu_s=machine.get("cpu_s", 0.0),
            rss_bytes=int(machine.get("rss_bytes", 0)),
            files=int(machine.get("files", 0)),
            recoveries=dict(self.vitals.recoveries),
        )

    def _tapped(self, tap: Tap | None) -> None:
        self._system.tap = tap


def _purpose(kind: type[Actor]) -> str:
    """The first line of the class's documentation, or of its module's where the class refers to that."""
    text = inspect.getdoc(kind) or ""
    if not text or text.startswith("See the module"):
        text = (inspect.getmodule(kind) or kind).__doc__ or ""
    return text.strip().partition("\n")[0]


def _state(cell: Cell) -> str:
    if isinstance(cell.actor, StorageOutageProxy):
        return "suspended"
    return "running" if cell.ready else "starting"


def _last_failure(cell: Cell, supervised: ActorState | None) -> str:
    if isinstance(cell.actor, StorageOutageProxy):
        return cell.actor.reason
    return supervised.last_failure if supervised is not None else ""


def _figures(actor: Actor) -> dict[str, str | int | float]:
    try:
        return actor.summary()
    except Exception as problem:  # noqa: BLE001 (a look must not harm the actor, nor hide the other ones)
        return {"summary": f"failed: {type(problem).__name__}: {problem}"}


def _handlers(kind: type[Actor]) -> list[HandlerShown]:
    return [
        HandlerShown(kind=message.__name__, lane=lane.name.lower(), method=getattr(method, "__name__", "?"))
        for message, (method, lane) in sorted(kind.handlers().items(), key=lambda entry: entry[0].__name__)
    ]
