"""One incarnation of one actor: its mailbox loop, its tasks and timers, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.actor import Actor, Terminated
from supervisor.address import Address
from supervisor.context import Context
from supervisor.errors import Crashed, Overloaded, Refused, Unreachable
from supervisor.journal import Journal
from supervisor.mailbox import Lane, Mailbox
from supervisor.message import Done, Message, kind_of

if TYPE_CHECKING:
    from supervisor.system import ActorSystem

Answer = Callable[[Message | Exception], None]


@dataclass(slots=True)
class Delivery:
    """A message on its way into a handler."""

    message: Message | Terminated
    deadline: float | None = None
    answer: Answer | None = None


class Deferred:
    """Returned by a handler that will answer later: the mailbox goes on, the asker waits for `answer`.

    Whoever keeps one must bound how many; the asker's deadline bounds how long.
    """

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._outcome: Message | Exception | None = None

    @property
    def answered(self) -> bool:
        """Whether `answer` was called."""
        return self._outcome is not None

    def answer(self, outcome: Message | Exception) -> None:
        """Send the answer; later calls do nothing."""
        if self._outcome is None:
            self._outcome = outcome
            if self._answer is not None:
                self._answer(outcome)

    def bind(self, answer: Answer | None) -> None:
        """For the cell: where the answer goes."""
        self._answer = answer
        if self._outcome is not None and answer is not None:
            answer(self._outcome)


@dataclass(frozen=True, slots=True)
class Exit:
    """How an incarnation ended. `problem` is None for an ordered stop."""

    name: str
    incarnation: int
    problem: Exception | None

    @property
    def cause(self) -> str:
        """One line for logs and reports."""
        if self.problem is None:
            return "stopped"
        return f"crashed: {type(self.problem).__name__}: {self.problem}"


class Cell:
    """Runs one actor until it stops or crashes; then answers what still waited and reports its exit once."""

    def __init__(
        self,
        system: ActorSystem,
        address: Address,
        factory: Callable[[], Actor],
        journal: Journal,
        on_exit: Callable[[Exit], None],
    ) -> None:
        self.address = address
        self.mailbox: Mailbox[Delivery] = Mailbox(system.limits.mailbox)
        self.handled = 0
        self.dropped = 0
        self.deadline: float | None = None
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.actor: Actor | None = None
        self._system = system
        self._factory = factory
        self._on_exit = on_exit
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._timer_id = 0
        self._deferred: list[Deferred] = []
        self._closers: list[Callable[[], Coroutine[object, object, None]]] = []
        self._ended = False
        self.ctx = Context(system, self, journal)
        self._main = asyncio.get_running_loop().create_task(self._run(), name=address.name)

    @property
    def alive(self) -> bool:
        """Whether messages are still taken."""
        return not self._ended

    def deliver(self, delivery: Delivery, lane: Lane) -> bool:
        """Put into the mailbox; answers `Overloaded` and counts when its lane is full."""
        if self._ended:
            _answer(delivery, Unreachable(f"{self.address} has ended"))
            return False
        if self.mailbox.offer(lane, delivery):
            return True
        self.dropped += 1
        _answer(delivery, Overloaded(f"{self.address}: {len(self.mailbox)} messages wait"))
        return False

    async def _run(self) -> None:
        try:
            actor = self._factory()
            actor.ctx = self.ctx
            self.actor = actor
            await actor.on_start()
            if not self.started.done():
                self.started.set_result(None)
            while True:
                await self._handle(actor, await self.mailbox.get())
        except asyncio.CancelledError:
            raise
        except Exception as problem:  # noqa: BLE001 (let it crash: the supervisor decides)
            self._end(problem)

    async def _handle(self, actor: Actor, delivery: Delivery) -> None:
        message = delivery.message
        if delivery.deadline is not None and self.ctx.now() > delivery.deadline:
            self.dropped += 1  # whoever asked has given up
            return
        self.deadline = delivery.deadline
        try:
            if isinstance(message, Terminated):
                await actor.on_terminated(message)
                return
            found = type(actor).handler_of(type(message))
            if found is None:
                self.dropped += 1
                _answer(delivery, Refused(f"{self.address} does not handle {kind_of(message)}"))
                return
            reply = await found[0](actor, message)
            if isinstance(reply, Deferred):
                reply.bind(delivery.answer)
                self._deferred = [waiting for waiting in self._deferred if not waiting.answered]
                self._deferred.append(reply)
            else:
                _answer(delivery, Done() if reply is None else reply)
        except Refused as refusal:
            _answer(delivery, refusal)
        except Exception as problem:
            _answer(delivery, Crashed(f"{self.address}: {type(problem).__name__}: {problem}"))
            raise
        finally:
            self.deadline = None
            self.handled += 1

    def background(self, work: Coroutine[object, object, None], what: str) -> asyncio.Task[None]:
        """See `Context.background`."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self.address.name}: {what}")
        self._tasks.append(task)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks:
            self._tasks.remove(task)
        if not task.cancelled() and isinstance(problem := task.exception(), Exception):
            self.crash(problem)

    def every(self, period_s: float, message: Message) -> None:
        """See `Context.every`."""
        self._timer_id += 1
        timer = self._timer_id
        loop = asyncio.get_running_loop()

        def beat() -> None:
            self.mailbox.offer(Lane.USER, Delivery(message))
            self._timers[timer] = loop.call_later(period_s, beat)

        self._timers[timer] = loop.call_later(period_s, beat)

    def after(self, delay_s: float, message: Message, lane: Lane) -> asyncio.TimerHandle:
        """See `Context.after`."""
        self._timer_id += 1
        timer = self._timer_id

        def fire() -> None:
            self._timers.pop(timer, None)
            self.mailbox.offer(lane, Delivery(message))

        handle = asyncio.get_running_loop().call_later(delay_s, fire)
        self._timers[timer] = handle
        return handle

    def at_end(self, close: Callable[[], Coroutine[object, object, None]]) -> None:
        """See `Context.at_end`."""
        self._closers.append(close)

    def crash(self, problem: Exception) -> None:
        """End with `problem`."""
        if not self._ended:
            self._main.cancel()
            self._end(problem)

    async def stop(self, timeout_s: float) -> None:
        """Ordered stop: `on_stop` with a time limit, then the end."""
        if self._ended:
            return
        self._main.cancel()
        if self.actor is not None and self.started.done():
            try:
                await asyncio.wait_for(self.actor.on_stop(), timeout_s)
            except TimeoutError:
                self.ctx.log.warning("on_stop took more than %.1f s", timeout_s)
            except Exception as problem:  # noqa: BLE001 (it ends anyway; the log keeps the reason)
                self.ctx.log.warning("on_stop failed: %r", problem)
        self._end(None)

    def _end(self, problem: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        for task in list(self._tasks):
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for close in reversed(self._closers):
            self._system.finish(close())
        self.ctx.close()
        if not self.started.done():
            self.started.set_exception(problem or Unreachable(f"{self.address} was stopped"))
            self.started.exception()  # retrieved: the exit below carries it too
        for deferred in self._deferred:
            deferred.answer(Unreachable(f"{self.address} has ended"))
        for waiting in self.mailbox.drain():
            _answer(waiting, Unreachable(f"{self.address} has ended"))
        if problem is not None:
            self.ctx.log.error("ended: %s", problem, exc_info=problem)
        self._on_exit(Exit(self.address.name, self.address.incarnation, problem))


def _answer(delivery: Delivery, outcome: Message | Exception) -> None:
    if delivery.answer is not None:
        delivery.answer(outcome)


def lane_of(cell: Cell, message: Message) -> Lane | None:
    """The lane that a message takes to this actor; None when the actor does not handle it."""
    actor = cell.actor
    if actor is None:  # still being built: whatever it is waits for it
        return Lane.USER
    found = type(actor).handler_of(type(message))
    return None if found is None else found[1]
