"""Cell: one incarnation of one actor, with its mailbox, task, timers and end.

An idle actor has no task and no timer: a task begins with the first message and ends with the last one, so
ten thousand idle actors cost only memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gleaner.supervisor.actor import Actor, Handler, Suspected, Terminated
from gleaner.supervisor.address import Address
from gleaner.supervisor.context import Context
from gleaner.supervisor.delivery import Deferred, Delivery, Exit, Leave
from gleaner.supervisor.errors import Crashed, JournalUnable, Overloaded, Refused, Suspended, Unreachable
from gleaner.supervisor.mailbox import Lane, Mailbox
from gleaner.supervisor.message import Done, Message, kind_of
from gleaner.supervisor.owned_resources import IN_HAND, OwnedResources

if TYPE_CHECKING:
    from gleaner.supervisor.journal.port import JournalStore
    from gleaner.supervisor.system import ActorSystem
    from gleaner.supervisor.tracing import Tracer

__all__ = ["IN_HAND", "Cell", "lane_of"]

TURN_MESSAGES = 128  # handled in one turn of the loop by one actor, so that others get theirs
FEWEST_DEFERRED = 16  # pending answers that are kept before the answered ones are pruned

_DONE = Done()


@dataclass(frozen=True, slots=True)
class CellSpec:
    """One life of an actor: its address, what makes it, and the store of its journal streams."""

    address: Address
    factory: Callable[[], Actor]
    journals: JournalStore


class Cell:
    """Runs one actor until it stops or crashes; then answers what still waited and reports its exit once."""

    __slots__ = (
        "_deferred",
        "_ended",
        "_handlers",
        "_idle",
        "_main",
        "_on_exit",
        "_owned",
        "_prune_at",
        "_started",
        "_stopping",
        "_system",
        "actor",
        "address",
        "ctx",
        "deadline",
        "dropped",
        "factory",
        "handled",
        "heir",
        "keep",
        "mailbox",
        "ready",
        "trace",
    )

    def __init__(
        self,
        system: ActorSystem,
        spec: CellSpec,
        on_exit: Callable[[Cell, Exit], None],
        *,
        keep: bool = False,
        after: Cell | None = None,
    ) -> None:
        self.address = spec.address
        self.keep = keep  # messages that wait at the end are for the next life
        self.heir: Cell | None = None  # that next life, which takes messages until it is let begin
        self.mailbox: Mailbox[Delivery] = Mailbox(system.limits.mailbox) if after is None else after.mailbox
        self.handled = 0
        self.dropped = 0
        self.deadline: float | None = None
        self.trace = ""
        self.actor: Actor | None = None
        self.ready = False  # `on_start` has returned
        self._handlers: dict[type[Message], tuple[Handler, Lane]] = {}
        self._system = system
        self.factory = spec.factory
        self._on_exit = on_exit
        self._started: asyncio.Future[None] | None = None
        self._owned: OwnedResources | None = None
        self._deferred: list[Deferred] | None = None
        self._prune_at = FEWEST_DEFERRED
        self._main: asyncio.Task[None] | None = None
        self._idle = False  # a message must wake it
        self._stopping = False
        self._ended = False
        self.ctx = Context(system, self, spec.journals)
        if after is None:
            self.begin()

    def latest(self) -> Cell:
        """This life, or the newest of its heirs."""
        cell = self
        while cell.heir is not None:
            cell = cell.heir
        return cell

    def begin(self) -> None:
        """Let an heir live; any other begins by itself."""
        asyncio.get_running_loop().call_soon(self._begin)

    @property
    def alive(self) -> bool:
        """Whether messages are still taken."""
        return not self._ended

    @property
    def owned(self) -> OwnedResources:
        """Its background tasks, timers and resources to close."""
        if self._owned is None:
            self._owned = OwnedResources(self)
        return self._owned

    @property
    def started(self) -> asyncio.Future[None]:
        """Resolves when `on_start` has returned; fails with what kept it from starting."""
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()
            if self.ready:
                self._started.set_result(None)
            elif self._ended:
                self._started.set_exception(Unreachable(f"{self.address} has ended"))
                self._started.exception()  # retrieved: the exit reported it already
        return self._started

    def take(self, delivery: Delivery, lane: Lane) -> bool:
        """Put into the mailbox; False when its lane is full or the actor has ended."""
        if self._ended or not self.mailbox.offer(lane, delivery):
            return False
        if self._idle:
            self._wake()
        return True

    async def take_waiting(self, delivery: Delivery, lane: Lane) -> bool:
        """The same, waiting while the lane is full; False when the actor ended meanwhile, without an heir."""
        while not (cell := self.latest()).take(delivery, lane):
            if cell._ended:
                return False
            await cell.mailbox.room()
        return True

    def deliver(self, delivery: Delivery, lane: Lane) -> bool:
        """As `take`; a refused ask is answered with the reason, and a drop at a full lane is counted."""
        if self.take(delivery, lane):
            return True
        if self._ended:
            _answer(delivery, Unreachable(f"{self.address} has ended"))
            return False
        self.dropped += 1
        _answer(delivery, Overloaded(f"{self.address}: {len(self.mailbox)} messages wait"))
        return False

    # -- life --

    def _begin(self) -> None:
        if self._ended:
            return
        try:
            actor = self.factory()
        except Exception as problem:  # noqa: BLE001 (let it crash: the supervisor decides)
            self._end(problem)
            return
        actor.ctx = self.ctx
        self.actor = actor
        self._handlers = type(actor).handlers()
        if type(actor).on_start is Actor.on_start:
            self._is_ready()
            self._wake()
        else:
            self._main = asyncio.get_running_loop().create_task(self._start(actor))

    def _wake(self) -> None:
        if len(self.mailbox):
            self._idle = False
            self._main = asyncio.get_running_loop().create_task(self._work())
        else:
            self._idle = True

    def _is_ready(self) -> None:
        self.ready = True
        if self._started is not None and not self._started.done():
            self._started.set_result(None)

    async def _start(self, actor: Actor) -> None:
        try:
            await actor.on_start()
        except Exception as problem:  # noqa: BLE001 (let it crash: the supervisor decides)
            self._end(problem)
            return
        self._is_ready()
        await self._work()

    async def _work(self) -> None:
        """Handle the waiting messages, then rest."""
        IN_HAND.set(self)
        actor = self.actor
        assert actor is not None
        try:
            while True:
                for _ in range(TURN_MESSAGES):
                    delivery = self.mailbox.take()
                    if delivery is None:
                        return
                    message = delivery.message
                    if delivery.deadline is not None and self.ctx.now() > delivery.deadline:
                        self.dropped += 1  # the asker has given up
                        continue
                    self.deadline = delivery.deadline
                    self.trace = delivery.trace
                    self.handled += 1
                    found = self._handlers.get(type(message))  # type: ignore[arg-type]
                    try:
                        if found is not None:
                            if self._system.tracer is None:
                                reply = await found[0](actor, message)  # type: ignore[arg-type]
                            else:
                                reply = await self._traced(self._system.tracer, found[0], actor, delivery)
                            if delivery.answer is not None or reply is not None:
                                self._reply(delivery, reply)
                        else:
                            await self._unmarked(actor, delivery)
                    except (Refused, Suspended) as refusal:
                        _answer(delivery, refusal)
                    except asyncio.CancelledError:  # it ends for another reason, in the midst of this
                        _answer(delivery, Unreachable(f"{self.address} has ended"))
                        raise
                    except Exception as problem:
                        text = f"{self.address}: {type(problem).__name__}: {problem}"
                        unable = isinstance(problem, JournalUnable)
                        _answer(delivery, Suspended(text) if unable else Crashed(text))
                        raise
                    finally:
                        self.deadline = None
                        self.trace = ""
                await asyncio.sleep(0)
        except Exception as problem:  # noqa: BLE001 (let it crash: the supervisor decides)
            self._end(problem)
        finally:
            self._main = None
            self._idle = not (self._stopping or self._ended)

    async def _traced(
        self, tracer: Tracer, handler: Handler, actor: Actor, delivery: Delivery
    ) -> Message | Deferred | None:
        message = cast("Message", delivery.message)
        span = tracer.handle(self.address.name, message, delivery.trace)
        self.trace = span.trace
        try:
            reply = await handler(actor, message)
        except BaseException as problem:
            span.end(problem)
            raise
        span.end()
        return reply

    def _reply(self, delivery: Delivery, reply: Message | Deferred | None) -> None:
        if isinstance(reply, Deferred):
            reply.bind(delivery.answer)
            if self._deferred is None:
                self._deferred = []
            elif len(self._deferred) >= self._prune_at:  # in proportion to those that still wait
                self._deferred = [waiting for waiting in self._deferred if not waiting.answered]
                self._prune_at = max(2 * len(self._deferred), FEWEST_DEFERRED)
            self._deferred.append(reply)
        else:
            _answer(delivery, _DONE if reply is None else reply)

    async def _unmarked(self, actor: Actor, delivery: Delivery) -> None:
        """Handle a message without a marked handler."""
        if isinstance(delivery.message, Terminated):
            await actor.on_terminated(delivery.message)
            return
        if isinstance(delivery.message, Suspected):
            await actor.on_suspected(delivery.message)
            return
        if isinstance(delivery.message, Leave):
            self._system.finish(self.stop(self._system.limits.stop_s))
            await asyncio.get_running_loop().create_future()  # handle nothing more: the stop cancels this
            return
        self.dropped += 1
        _answer(delivery, Refused(f"{self.address} does not handle {kind_of(delivery.message)}"))

    # -- the end --

    def leave(self) -> None:
        """See `Context.stop`."""
        if not self.take(Delivery(Leave()), Lane.SYSTEM):
            self._system.finish(self.stop(self._system.limits.stop_s))

    def crash(self, problem: Exception) -> None:
        """End with `problem`."""
        if not self._ended:
            self._rest()
            self._end(problem)

    async def stop(self, timeout_s: float) -> None:
        """Ordered stop: `on_stop` with a time limit, then the end."""
        if self._ended:
            return
        self._rest()
        if self.actor is not None and self.ready:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.actor.on_stop()
            except TimeoutError:
                self.ctx.log.warning("on_stop took more than %.1f s", timeout_s)
            except Exception as problem:  # noqa: BLE001 (it ends anyway; the log keeps the reason)
                self.ctx.log.warning("on_stop failed: %r", problem)
        self._end(None)

    def discard(self) -> None:
        """End without notifying the actor, and without an heir."""
        self.keep = False
        if not self._ended:
            self._rest()
            self._end(None)

    def _rest(self) -> None:
        """Handle no further message; messages that still arrive are answered at the end."""
        self._stopping = True
        self._idle = False
        if self._main is not None:
            self._main.cancel()

    def _end(self, problem: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        if self._owned is not None:
            self._owned.release(self._system.finish)
        self.ctx.close()
        if self._started is not None and not self._started.done():
            self._started.set_exception(problem or Unreachable(f"{self.address} was stopped"))
            self._started.exception()  # retrieved: the exit below carries it too
        for deferred in self._deferred or ():
            deferred.answer(Unreachable(f"{self.address} has ended"))
        if not self.keep:
            for waiting in self.mailbox.drain():
                _answer(waiting, Unreachable(f"{self.address} has ended"))
        if problem is not None:
            self.ctx.log.error("ended: %s", problem, exc_info=problem)
        self._on_exit(self, Exit(self.address.name, self.address.incarnation, problem))


def _answer(delivery: Delivery, outcome: Message | Exception) -> None:
    if delivery.answer is not None:
        delivery.answer(outcome)


def lane_of(cell: Cell, message: Message) -> Lane | None:
    """The lane that a message takes to this actor; None when the actor does not handle it."""
    if cell.actor is None:  # still being built: any end waits for it
        return Lane.USER
    found = cell._handlers.get(type(message))
    return None if found is None else found[1]
