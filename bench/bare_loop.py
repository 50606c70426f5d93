"""BareLoop: the least that a simulation of actors costs, to compare the simulator with.

Three actors pass work on by asks that are repeated until they are answered; a network delays, loses and
doubles their messages, and faults kill and freeze the actors, which others replace (a frozen one goes on
beside its successor). Owns one clock, one ready queue and one heap of timers, and a hash of the events: no
links, no credit, no supervision, no journal. The simulator does all of these for each message.
"""

import asyncio
import gc
import hashlib
import heapq
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

NAMES = ("trainer", "balancer", "ledger")
DELAY_S = (0.0005, 0.02)
LOST = DOUBLED = 0.02  # shares of the messages
ASK_AGAIN_S = 0.1
PAUSE_S = 0.05  # of the trainer, between two items
FAULT_S = 2.0  # mean time between two faults
FROZEN_S, REPLACED_S = (0.5, 3.0), (0.05, 0.5)


class BareLoop(asyncio.AbstractEventLoop):
    """Virtual time and order, and no more."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._age = itertools.count()

    def time(self) -> float:
        return self.now_s

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._age), handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return None

    def run_until(self, end_s: float) -> None:
        """Run everything that is due by then."""
        while True:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
            if not self._timers or self._timers[0][0] > end_s:
                return
            self.now_s, _, due = heapq.heappop(self._timers)
            if not due.cancelled():
                due._run()


class _Net:
    """Delays, loses and doubles; every event goes into the hash."""

    def __init__(self, loop: BareLoop, seed: int) -> None:
        self.loop = loop
        self.living: dict[str, _Actor] = {}
        self.every: list[_Actor] = []
        self.acknowledged = 0
        self._rng, self._hash = random.Random(seed), hashlib.blake2b(digest_size=16)

    def send(self, sender: "_Actor", to: str, kind: str, key: int) -> None:
        """Nothing leaves a dead one."""
        if sender.dead:
            return
        source = sender.name
        copies = (self._rng.random() > LOST) + (self._rng.random() < DOUBLED)
        for _ in range(copies):
            self.loop.call_later(self._rng.uniform(*DELAY_S), self._deliver, source, to, kind, key)
        self._note("send", source, to, kind, key, copies)

    def _deliver(self, source: str, to: str, kind: str, key: int) -> None:
        self._note("received", source, to, kind, key)
        if (actor := self.living.get(to)) is not None:
            actor.box.put_nowait((source, kind, key))

    def start(self, name: str) -> None:
        """A new actor of that name; messages go to it from now on."""
        self.living[name] = actor = _Actor(self, name)
        self.every.append(actor)

    def fault(self) -> None:
        """Kill one, or freeze it for a while, and replace it; the next fault comes later."""
        name = self._rng.choice(NAMES)
        victim = self.living.get(name)
        if victim is not None and victim.runs.is_set():
            if self._rng.random() < 0.5:
                victim.kill()
                del self.living[name]
            else:
                victim.runs.clear()
                self.loop.call_later(self._rng.uniform(*FROZEN_S), victim.runs.set)
            self._note("fault", name, victim.dead)
            self.loop.call_later(self._rng.uniform(*REPLACED_S), self.start, name)
        self.loop.call_later(self._rng.expovariate(1 / FAULT_S), self.fault)

    def _note(self, *what: object) -> None:
        self._hash.update(f"{self.loop.now_s!r} {what}\n".encode())


class _Actor:
    """One that asks, and answers what it is asked when the next one has answered."""

    def __init__(self, net: _Net, name: str) -> None:
        self.name, self.dead = name, False
        self.box: asyncio.Queue[tuple[str, str, int]] = asyncio.Queue()
        self.runs = asyncio.Event()
        self.runs.set()
        self._net, self._following = net, dict(itertools.pairwise(NAMES)).get(name, "")
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._spawn(self._pump())
        if name == NAMES[0]:
            self._spawn(self._train())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self._net.loop.create_task(work))

    def kill(self) -> None:
        """It sends nothing any more, and its tasks end."""
        self.dead = True
        for task in self._tasks:
            task.cancel()

    async def _pump(self) -> None:
        while True:
            source, kind, key = await self.box.get()
            await self.runs.wait()
            if kind == "ask":
                self._spawn(self._serve(source, key))
            elif (waiting := self._waiting.get(key)) is not None and not waiting.done():
                waiting.set_result(None)

    async def _serve(self, source: str, key: int) -> None:
        if self._following:
            await self._ask(key)
        self._net.send(self, source, "answer", key)

    async def _ask(self, key: int) -> None:
        known = self._waiting.get(key)
        if known is not None:  # another ask of the same item: both wait for one answer
            await asyncio.wait([known])
            return
        answer = self._waiting[key] = self._net.loop.create_future()
        while not answer.done():
            self._net.send(self, self._following, "ask", key)
            await asyncio.wait([answer], timeout=ASK_AGAIN_S)
            await self.runs.wait()

    async def _train(self) -> None:
        while True:
            key = self._net.acknowledged
            await self._ask(key)
            self._net.acknowledged = max(self._net.acknowledged, key + 1)
            await asyncio.sleep(PAUSE_S)


def simulated_per_s(virtual_s: float, seed: int = 0) -> float:
    """Virtual seconds of the three actors for one processor second. Raises RuntimeError where no work got
    through."""
    loop = BareLoop()  # type: ignore[abstract]  # asyncio calls no more of it
    collects = gc.isenabled()
    gc.disable()
    asyncio._set_running_loop(loop)
    try:
        net = _Net(loop, seed)
        for name in NAMES:
            net.start(name)
        loop.call_later(1.0, net.fault)
        began_s = time.process_time()
        loop.run_until(virtual_s)
        cpu_s = time.process_time() - began_s
        for actor in net.every:
            actor.kill()
        loop.run_until(loop.now_s)
    finally:
        asyncio._set_running_loop(None)
        if collects:
            gc.enable()
    if not net.acknowledged:
        raise RuntimeError("no item was acknowledged in the bare loop")
    return virtual_s / cpu_s
