"""Supervisor: carries out what `tree.TreeState` decides.

It starts, stops and restarts actors, processes and subtrees. Owns the order of actions, one at a time: a
batch of stops and starts is over before the next end of a child is handled (as in OTP, whose supervisor is
one process). Only a stop of the supervisor itself cuts a start short. The children's lives are
`child_lifecycle`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gleaner.supervisor.cell import Cell
from gleaner.supervisor.child_lifecycle import ChildExit, ChildLifecycle, Restarted
from gleaner.supervisor.child_spec import ChildSpec, Strategy, TreeSpec
from gleaner.supervisor.errors import CannotGoOn, RestartIntensityReached, StartFailed, SupervisorFailed
from gleaner.supervisor.journal.port import JournalStore
from gleaner.supervisor.machine import Child
from gleaner.supervisor.managed_child import (
    ChildEnd,
    OnEnd,
    RunningActor,
    RunningChild,
    RunningProcess,
    RunningTree,
)
from gleaner.supervisor.process import ProcessSpec
from gleaner.supervisor.system import ActorSystem
from gleaner.supervisor.system_messages import ActorState
from gleaner.supervisor.tree import (
    Action,
    Counts,
    End,
    EndReason,
    RestartLater,
    Start,
    Status,
    Stop,
    TreeState,
)

log = logging.getLogger("supervisor")


@dataclass(frozen=True, slots=True)
class _Due:
    name: str
    ticket: int


class Supervisor:
    """One supervisor of the tree.

    Args:
        system: where actor children are spawned.
        spec: strategy, intensity and children.
        on_failure: called once with a `SupervisorFailed` when it gives up after its start, after every child
            was stopped.
        on_restart: called for every restart, for reports.
        on_shutdown: called once when it ended in order because its significant children are done.
        journals: where actor children keep their streams; None: in the process's store.
    """

    def __init__(
        self,
        system: ActorSystem,
        spec: TreeSpec,
        *,
        on_failure: Callable[[Exception], None],
        on_restart: Callable[[Restarted], None] | None = None,
        on_shutdown: Callable[[], None] | None = None,
        journals: JournalStore | None = None,
    ) -> None:
        self.name = spec.name
        self._system = system
        self._spec = spec
        self._state = TreeState(spec, random.Random(f"{system.seed}/{spec.name}"))
        # bounded: one exit a life, one ticket a child that waits
        self._events: asyncio.Queue[ChildExit | _Due] = asyncio.Queue()
        self._lives = ChildLifecycle(
            spec.name,
            self._begin,
            self._events.put_nowait,
            on_restart,
            system.waits,
        )
        self._on_failure = on_failure
        self._on_restart = on_restart
        self._on_shutdown = on_shutdown
        self._journals = journals
        self._work: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._busy = asyncio.Lock()
        self._halted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- the whole --

    async def start(self) -> None:
        """Start every child, left to right; an actor is up when its `on_start` returned. A stop meanwhile
        ends the start early. Raises: SupervisorFailed if a child does not start; the earlier ones were
        stopped."""
        self._system.state_sources.append(self.states)
        async with self._busy:
            problem = await self._carry_out(self._state.start())
            self._state.complete()
        if problem is not None:
            self._forget_state()
            raise problem
        if not self._halted.done():
            self._work = asyncio.get_running_loop().create_task(
                self._supervise(), name=f"supervisor {self.name}"
            )

    async def stop(self) -> None:
        """Stop every child, right to left, each within its time (the children of a pool all at once)."""
        self.halt()
        async with self._busy:
            stops = self._state.stop()
            if self._spec.strategy is Strategy.SIMPLE_ONE_FOR_ONE:
                await asyncio.gather(*(self._carry_out([stop]) for stop in stops))
            else:
                await self._carry_out(stops)
            for name in reversed(self._lives.begun()):  # also one whose start was cut short
                await self._lives.stop(name, self._state.children[name].shutdown_s)
            self._lives.keep(self._state.status)
        if self._work is not None and self._work is not asyncio.current_task():
            self._work.cancel()
        self._forget_state()

    def halt(self) -> None:
        """Start nothing more, and do not wait for a start under way. `stop` follows."""
        if not self._halted.done():
            self._halted.set_result(None)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def kill(self) -> None:
        """End every child at once. `stop` after this waits for nothing but their end."""
        self.halt()
        self._lives.kill()

    # -- children by hand --

    async def add(self, spec: ChildSpec) -> None:
        """Declare and start one more child, the last in order. Raises: ValueError when its name is taken or
        it does not fit this supervisor; StartFailed, and nothing is declared."""
        if self._spec.strategy is Strategy.SIMPLE_ONE_FOR_ONE:
            raise ValueError(f"{self.name!r} is a pool: use add_instance")
        await self._add(spec)

    async def add_instance(self, name: str, *arguments: object) -> None:
        """Start one more child of a pool, named `name`, from its template. Raises: as `add`."""
        if self._spec.strategy is not Strategy.SIMPLE_ONE_FOR_ONE:
            raise ValueError(f"{self.name!r} is no pool: use add")
        await self._add(self._spec.children[0].instance(name, arguments))

    async def _add(self, spec: ChildSpec) -> None:
        async with self._busy:
            try:
                await self._start_by_hand(self._state.add(spec))
            except StartFailed:
                self._state.forget(spec.name)
                raise
            finally:
                self._lives.keep(self._state.status)

    async def terminate_child(self, name: str) -> None:
        """Stop a child, keep its declaration unless it is temporary. Raises: ValueError without one."""
        async with self._busy:
            await self._carry_out(self._state.terminate(name))
            self._lives.keep(self._state.status)

    async def restart_child(self, name: str) -> None:
        """Start a child that is down. Raises: ValueError when it is not, or unknown; StartFailed."""
        async with self._busy:
            await self._start_by_hand(self._state.restart(name))

    async def keep_child(self, name: str) -> bool:
        """Restart a temporary child from now on, as a permanent one; False if it has ended already."""
        async with self._busy:
            return self._state.keep(name)

    async def delete_child(self, name: str) -> None:
        """Forget a child. Raises: ValueError when it is not down, or unknown."""
        async with self._busy:
            self._state.delete(name)
            self._lives.keep(self._state.status)

    async def remove(self, name: str) -> None:
        """Stop a child permanently; no effect if it is unknown."""
        if name in self._state.children:
            await self.terminate_child(name)
        if name in self._state.children:
            await self.delete_child(name)

    async def _start_by_hand(self, actions: list[Start]) -> None:
        for action in actions:
            ended = await self._start(action)
            if ended is not None:
                raise self._failure(EndReason.START, action.name, f"{action.name} did not start")

    # -- looking --

    def process(self, name: str) -> Child | None:
        """The running process of child `name`."""
        running = self._lives.running(name)
        return running.process if isinstance(running, RunningProcess) else None

    def subtree(self, name: str) -> Supervisor | None:
        """The supervisor that runs as child `name`."""
        running = self._lives.running(name)
        return running.tree if isinstance(running, RunningTree) else None

    def names(self) -> list[str]:
        """Declared children, in order."""
        return list(self._state.children)

    def which_children(self) -> dict[str, Status]:
        """Declared children, in order, and whether each runs."""
        return dict(self._state.status)

    def count_children(self) -> Counts:
        return self._state.counts()

    def states(self) -> list[ActorState]:
        """States of the children, for `rlctl ps`."""
        strategy = self._state.spec.strategy.value
        return [self._lives.state(name, status, strategy) for name, status in self._state.status.items()]

    # -- decisions --

    async def _supervise(self) -> None:
        while True:
            event = await self._events.get()
            async with self._busy:
                if self._halted.done():
                    return
                problem = await self._carry_out(self._decide(event))
                self._lives.keep(self._state.status)
                over = self._state.over
            if over:
                self._forget_state()
                if problem is not None:
                    self._on_failure(problem)
                elif self._on_shutdown is not None:
                    self._on_shutdown()
                return

    def _decide(self, event: ChildExit | _Due) -> Sequence[Action]:
        if isinstance(event, _Due):
            self._timers.pop(event.name, None)
            return self._state.again(event.name, event.ticket)
        if not self._lives.ended(event):
            return []
        name, ended, now_s = event.name, event.ended, asyncio.get_running_loop().time()
        return self._state.exited(name, abnormal=ended.abnormal, now_s=now_s, hopeless=ended.hopeless)

    async def _carry_out(self, actions: Sequence[Action]) -> SupervisorFailed | None:
        """Carry the actions out, in order; returns why the supervisor fails, if they lead to that."""
        loop = asyncio.get_running_loop()
        todo = deque(actions)
        while todo:
            action = todo.popleft()
            if isinstance(action, Stop):
                within_s = self._state.children[action.name].shutdown_s
                await self._lives.stop(action.name, within_s, again=action.again)
                self._state.stopped(action.name, again=action.again)
            elif isinstance(action, RestartLater):
                put, due = self._events.put_nowait, _Due(action.name, action.ticket)
                self._timers[action.name] = loop.call_later(action.delay_s, put, due)
            elif isinstance(action, End):
                self.halt()
                if action.why is not EndReason.SIGNIFICANT:
                    return self._failure(action.why, action.name, action.text)
                log.info("%s shuts down: %s", self.name, action.text)
            elif not self._halted.done():
                ended = await self._start(action)
                if ended is not None:
                    hopeless, now_s = ended.hopeless, loop.time()
                    todo = deque(self._state.start_failed(action.name, now_s=now_s, hopeless=hopeless))
        return None

    async def _start(self, action: Start) -> ChildEnd | None:
        """Start a child; returns how that failed, if it did."""
        ended = await self._lives.start(action, self._state.children[action.name], self._halted)
        if ended is None:
            self._state.started(action.name)
        return ended

    def _failure(self, why: EndReason, name: str, text: str) -> SupervisorFailed:
        ended = self._lives.last(name)
        kind = {EndReason.INTENSITY: RestartIntensityReached, EndReason.START: StartFailed}.get(
            why, CannotGoOn
        )
        if ended.hopeless:
            kind = CannotGoOn
        failure = kind(self.name, text, ended.causes(name, self.name), ended.first)
        log.error("%s", failure)
        return failure

    # -- what the kinds of children need --

    def _begin(self, spec: ChildSpec, on_end: OnEnd, heir: Cell | None) -> RunningChild:
        if isinstance(spec.start, TreeSpec):
            tree = spec.start
            return RunningTree(lambda ended: self._subtree(tree, ended), on_end)
        if isinstance(spec.start, ProcessSpec):
            return RunningProcess(self._system, spec.start, on_end)
        return RunningActor(self._system, spec, on_end, self._journals, heir)

    def _subtree(self, spec: TreeSpec, ended: Callable[[Exception | None], None]) -> Supervisor:
        return Supervisor(
            self._system,
            spec,
            on_failure=ended,
            on_restart=self._on_restart,
            on_shutdown=lambda: ended(None),
            journals=self._journals,
        )

    def _forget_state(self) -> None:
        if self.states in self._system.state_sources:
            self._system.state_sources.remove(self.states)
