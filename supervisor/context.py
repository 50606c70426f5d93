"""Context: an actor's only access to messages, time, randomness, journal, sockets."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from gleaner.supervisor.address import Address
from gleaner.supervisor.errors import WorkHung
from gleaner.supervisor.journal.port import Journal, JournalStore
from gleaner.supervisor.journal.waits import WatchedStore
from gleaner.supervisor.mailbox import Lane
from gleaner.supervisor.message import Message
from gleaner.supervisor.wait import Waiting, idle
from gleaner.supervisor.waits import Source
from gleaner.supervisor.watch.turn_clock import timeout_in_turns
from gleaner.supervisor.work_deadlines import WorkDeadlines

if TYPE_CHECKING:
    from gleaner.supervisor.cell import Cell
    from gleaner.supervisor.machine import Worker
    from gleaner.supervisor.network import Network
    from gleaner.supervisor.system import ActorSystem

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=Message)

OFFLOAD_LATE_S = 120.0
"""Work on an actor's thread that takes longer, and much longer than the same work took lately, is an event,
again each time that the deadline passes: for example a disk that hangs, a device that is gone. A turn of an
engine takes milliseconds, a checkpoint of a large model a minute."""
FIRST_OFFLOAD_LATE_S = 600.0
"""The same of work that this life of the actor has not measured yet: the gradient of a large model's first
batch takes minutes."""


class Context:
    """Given to an actor before `on_start`; valid for one incarnation."""

    __slots__ = ("_aside", "_cell", "_journal", "_journals", "_log", "_rng", "_system", "_usual", "_worker")

    def __init__(self, system: ActorSystem, cell: Cell, journals: JournalStore) -> None:
        self._system = system
        self._cell = cell
        self._journals = journals
        # Made when first used: most actors of a large system have none of them.
        self._journal: Journal | None = None
        self._rng: random.Random | None = None
        self._log: logging.LoggerAdapter[logging.Logger] | None = None
        self._worker: Worker | None = None
        self._aside: dict[str, Worker] = {}
        self._usual: WorkDeadlines | None = None  # of work on its threads

    @property
    def address(self) -> Address:
        """Address of this actor, with its incarnation."""
        return self._cell.address

    @property
    def journals(self) -> JournalStore:
        """The store of this actor's streams."""
        return self._journals

    @property
    def name(self) -> str:
        """The actor's name."""
        return self._cell.address.name

    @property
    def incarnation(self) -> int:
        """Number of this life of the actor."""
        return self._cell.address.incarnation

    @property
    def journal(self) -> Journal:
        """The actor's stream of events, kept over its restarts."""
        if self._journal is None:
            store = WatchedStore(self._journals, self._system.waits)
            self._journal = Journal(store, self.name, self.incarnation)
        return self._journal

    @property
    def journal_stream(self) -> str:
        """The stream of the journal, "" if the actor has used none; for inspection."""
        return "" if self._journal is None else self._journal.stream

    @property
    def rng(self) -> random.Random:
        """The actor's only source of randomness, drawn from the system's seed."""
        if self._rng is None:
            self._rng = random.Random(f"{self._system.seed}/{self.name}/{self.incarnation}")
        return self._rng

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """The actor's log."""
        if self._log is None:
            self._log = logging.LoggerAdapter(logging.getLogger(self.name), {"incarnation": self.incarnation})
        return self._log

    @property
    def node(self) -> str:
        """The name of the host that this process runs on."""
        return self._system.node

    @property
    def network(self) -> Network:
        """Opens data sockets (token streams, bulk transfer) with this process's keys and limits."""
        return self._system.network

    def now(self) -> float:
        """The loop's monotonic time in seconds: the clock for an actor's own promises."""
        return asyncio.get_running_loop().time()

    def turn_time(self) -> float:
        """The loop's time less the stalls of this process: the clock for judging other processes. During a
        stall this process cannot receive their messages (`turn_clock`)."""
        return self._system.turn_clock.now()

    def tell(self, to: Address | str, message: Message) -> Awaitable[None]:
        """Send without an answer: at most once, in order per sender, receiver and lane.

        It is sent when this is called; awaiting it waits while the receiver's mailbox, or the link to its
        process, is full. An unreachable receiver loses the message, which is counted.
        """
        return self._system.outbound.tell(to, message, source=self._cell)

    async def ask(
        self, to: Address | str, message: Message, *, deadline_s: float, expect: type[R], key: str = ""
    ) -> R:
        """Send and await the answer, which must be of type `expect`.

        Re-sent with the same key until the deadline, so that it takes effect once. A name is resolved
        anew when its holder dies; an address is one incarnation only. The deadline is never later than
        the one of the message being handled.

        Raises: AskTimeout, Unreachable, Overloaded, Refused, Crashed.
        """
        return await self._system.outbound.ask(
            to, message, deadline_s=deadline_s, expect=expect, key=key, source=self._cell
        )

    async def resolve(self, name: str, deadline_s: float) -> Address:
        """The present holder of `name`. Raises: AskTimeout when there is none by the deadline."""
        return await self._system.resolve(name, deadline_s)

    def stream(self, name: str) -> Journal:
        """A second journal of this actor, under its own name and `name`."""
        return self.journal.beside(name)

    def wait(self, what: str, *, on: str, deadline_s: float, go_on: bool = False) -> Waiting:
        """`async with ctx.wait(...)` around an await on something outside this actor: it is registered
        (`rlctl waits` lists it) and raises `WaitTimeout` at the deadline.

        `what` is a few words without numbers, `on` names what it waits on. `progress()` on the object that
        `async with` gives grants the whole deadline again. With `go_on` nothing is raised: each time the
        deadline passes is an event, and it is renewed. A pause of this process does not count.
        """
        return self._system.waits.waiting(self.name, what, on, deadline_s, go_on=go_on)

    async def idle(self, event: asyncio.Event, at_most_s: float | None = None) -> bool:
        """Wait for an event of the actor's own, or for `at_most_s`; returns whether it is set. For a loop
        without work: nothing that it waits for can be overdue, so this is not a wait and is not listed (see
        `waits`)."""
        return await idle(event, at_most_s)

    def late(self, what: str, *, on: str, waited_s: float, reason: str = "deadline passed") -> None:
        """Report that something is late for which this actor waited in its own way (by a timer, for example):
        the event of a wait."""
        self._system.waits.expire(self.name, what, on, waited_s, reason)

    def lists_waits(self, source: Source) -> None:
        """While this incarnation lives, list the waits that `source` returns beside the registered ones. For
        many waits that follow from the state of the actor, so that none has to be entered."""
        sources = self._system.waits.sources
        sources.append(source)

        async def forget() -> None:
            sources.remove(source)

        self.at_end(forget)

    def note(self, what: str, **facts: str | int | float) -> None:
        """Add a point to the traces for something that no message shows, such as which request got which
        ticket; no effect if this process does not trace."""
        self._system.outbound.note(self._cell, what, facts)

    def watch(self, address: Address) -> None:
        """Have `on_terminated` called once when this incarnation ends or its process is declared dead. What
        this actor spawned it watches already."""
        self._system.watch(address, self._cell)

    def link(self, address: Address) -> None:
        """Link the two actors' lives: when one ends abnormally (any end but an ordered stop) the other ends
        too, with that cause, unless its class sets `trap_exits`. Linking to an actor that has ended counts as
        such an end."""
        self._system.linking.link(self._cell, address)

    def unlink(self, address: Address) -> None:
        """Undo `link`, in both directions."""
        self._system.linking.unlink(self._cell, address)

    def spawn(self, name: str, factory: Callable[[], object], *, register: bool = False) -> Address:
        """Start a child actor that ends with this one. Its end calls `on_terminated`, and it is not
        restarted. Returns at once: the child starts beside this handler, and messages to it wait in its
        mailbox.

        Its name is known in this process alone; others reach it by the address. With `register` they find it
        by its name too, at the price of an entry in the registry and a fence there that outlives it.
        """
        return self._system.spawn_owned(self._cell, name, factory, register=register)

    def background(self, work: Coroutine[object, object, None], what: str) -> asyncio.Task[None]:
        """Run `work` beside the handlers; its failure crashes the actor, its task ends with the actor."""
        return self._cell.owned.background(work, what)

    def every(self, period_s: float, message: Message) -> None:
        """Send `message` to oneself every `period_s`, skipping beats that found the mailbox full."""
        self._cell.owned.every(period_s, message)

    def after(self, delay_s: float, message: Message, lane: Lane = Lane.USER) -> asyncio.TimerHandle:
        """Send `message` to oneself once, `delay_s` from now."""
        return self._cell.owned.after(delay_s, message, lane)

    def at_end(self, close: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run `close` when this incarnation ends in any way: its resources must not outlive it."""
        self._cell.owned.at_end(close)

    async def offload(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking `work` on this actor's own single thread, in the order of the calls."""
        if self._worker is None:
            self._worker = self._system.machine.thread(self.name)
        return await self._offload(self._worker, lambda: work(*args, **kwargs), _name(work))

    async def offload_within(
        self, deadlines: WorkDeadlines, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`offload` for computations, one at a time: a piece that is not done by its deadline has hung. Time
        in which this process was stalled does not count. Raises WorkHung, which ends the process."""
        name, began_s = _name(work), self.turn_time()
        limit = timeout_in_turns(deadlines.deadline_s(name))
        try:
            async with limit as timeout:
                done = await self.offload(work, *args, **kwargs)
        except TimeoutError:
            if not timeout.expired():
                raise  # the work's own
            raise WorkHung(deadlines.hung(name, self.turn_time() - began_s)) from None
        deadlines.took(name, self.turn_time() - began_s)
        return done

    async def earlier_work_over(self, deadlines: WorkDeadlines) -> None:
        """Wait until a piece of work that `offload` began in an earlier life of this actor has ended: it may
        still write what this life is about to read. Raises WorkHung, which ends the process."""
        await self.offload_within(deadlines, _nothing)

    async def offload_aside(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same on a second thread: for work of minutes, such as a durable write of a large state, behind
        which what `offload` does for handlers must not wait."""
        return await self.offload_to("aside", work, *args, **kwargs)

    async def offload_to(self, thread: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same on a thread of this name, of which the actor has one: for a kind of work that must wait
        for no other one. The actor's code names few."""
        if thread not in self._aside:
            self._aside[thread] = self._system.machine.thread(f"{self.name}/{thread}")
        return await self._offload(self._aside[thread], lambda: work(*args, **kwargs), _name(work))

    async def _offload(self, worker: Worker, work: Callable[[], T], name: str) -> T:
        if self._usual is None:
            self._usual = WorkDeadlines(OFFLOAD_LATE_S, FIRST_OFFLOAD_LATE_S)
        late_s, begin_s = self._usual.deadline_s(name), self.now()
        async with self.wait("work on its own thread", on=name, deadline_s=late_s, go_on=True):
            done = await worker.run(work)
        self._usual.took(name, self.now() - begin_s)
        return done

    def stop(self) -> None:
        """End this incarnation in order when the message in hand is handled: its work is done. A transient
        actor is not restarted after that."""
        self._cell.leave()

    def crash(self, problem: Exception) -> None:
        """End this incarnation as if a handler had raised `problem`; for callbacks outside handlers."""
        self._cell.crash(problem)

    def close(self) -> None:
        """Release the threads of `offload`."""
        for worker in (self._worker, *self._aside.values()):
            if worker is not None:
                worker.close()


def _nothing() -> None:
    """A piece of work that waits its turn."""


def _name(work: object) -> str:
    return str(getattr(work, "__qualname__", type(work).__qualname__))
