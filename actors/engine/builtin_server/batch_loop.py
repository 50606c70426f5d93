"""`BatchLoop`: the builtin engine in a server, one decode step at a time.

Steps run on a thread, all else on the event loop. Owns the requests, the commands to the engine between two
turns, pauses and changes of the weights. Does not own HTTP or text. Adapter: a thread.

Invariants:
- The engine is used on its thread alone, and only by the holder of `_between`.
- A request is with the engine under one ticket, or waits here for the next turn, or has ended.
- Weights change between two turns, while no request is with the engine: all tokens of a turn are of one
  version, and a request that goes on under other weights has its cache computed anew under them.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gleaner.actors.engine.builtin.engine import BuiltinEngine
from gleaner.actors.engine.builtin_server.active_request import (
    ActiveRequest,
    CheckedRequest,
    aborted,
    reason_of,
    tokens_of,
)
from gleaner.actors.engine.builtin_server.weights import Image
from gleaner.actors.engine.builtin_server.wire import Finish
from gleaner.actors.engine.worker.engine_port import (
    Assignment,
    BrokenWeights,
    CannotServe,
    EngineFull,
    StepOutput,
)
from gleaner.transport.token_frame import Flag

T = TypeVar("T")
Refused = tuple[int, str, int]
"""Ticket, reason, status of HTTP."""

MAX_REQUESTS = 4096
"""Open requests; one more is refused and may be sent again."""
SETTLE_S = 600.0
"""A change of the weights waits so long for the requests that execute; they are bounded by their lengths."""


class Full(RuntimeError):
    """More requests than the server holds; retry later, or elsewhere."""


class RequestsRunning(RuntimeError):
    """Weights could not change: requests still execute."""


class BatchLoop:
    """Runs requests in one engine.

    Args:
        engine: used by this object alone from now on.
        version: the name of its weights.
        stopped: whether and how the text of the newest token ends a request.
        now: seconds, of a clock that never goes back.
    """

    def __init__(
        self,
        engine: BuiltinEngine,
        version: str,
        stopped: Callable[[ActiveRequest], Finish | None],
        now: Callable[[], float],
    ) -> None:
        self._engine, self._stopped, self._now = engine, stopped, now
        self.version = version
        self.paused = False
        self.turns = self.tokens = 0
        self._thread = ThreadPoolExecutor(1, "engine")
        self._between = asyncio.Lock()
        self._changing_weights = asyncio.Lock()
        self._settling = False  # no request enters the engine, because its weights are about to change
        self._tickets = itertools.count(1)
        self._images = itertools.count(1)
        self._waiting: dict[int, ActiveRequest] = {}
        self._inside: dict[int, ActiveRequest] = {}
        self._aborts: list[int] = []
        self._work = asyncio.Event()
        self._turned = asyncio.Event()
        self._slots_held = 0  # at the end of the last turn

    # -- requests --

    def start(self, asked: CheckedRequest) -> ActiveRequest:
        """Take a request. Raises Full."""
        if len(self._waiting) + len(self._inside) >= MAX_REQUESTS:
            raise Full(f"{MAX_REQUESTS} requests are here already: come again, or ask another server")
        running = ActiveRequest(asked, self._now())
        self._waiting[next(self._tickets) % 2**32] = running
        self._work.set()
        return running

    def end(self, running: ActiveRequest, finish: Finish) -> None:
        """End it now with its tokens; an ended one is unchanged."""
        if running.finish is not None:
            return
        running.end(finish, self._now())
        self._forget([ticket for ticket, one in self._all() if one is running])

    def end_all(self, finish: Finish) -> int:
        """End all requests now; returns their number."""
        gone = [one for _, one in self._all()]
        self._forget([ticket for ticket, _ in self._all()])
        for one in gone:
            one.end(finish, self._now())
        return len(gone)

    def by_id(self, rid: str) -> list[ActiveRequest]:
        """The open requests with this id."""
        return [one for _, one in self._all() if one.asked.rid == rid]

    @property
    def executing(self) -> int:
        """Requests that hold a slot."""
        return min(self._slots_held, len(self._inside))

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting) + len(self._inside) - self.executing

    @property
    def open(self) -> int:
        """Requests that have not ended."""
        return len(self._waiting) + len(self._inside)

    def context_tokens(self) -> tuple[int, int]:
        """Tokens of the requests with the engine, and of all."""
        inside = tokens_of(list(self._inside.values()))
        return inside, inside + tokens_of(list(self._waiting.values()))

    async def progress(self) -> None:
        """Wait until a turn has made a token."""
        made = self.tokens
        while self.tokens == made:
            await self._turned.wait()

    async def turned(self) -> None:
        """Wait until something was done: a turn, or finding that there is nothing to do."""
        await self._turned.wait()

    # -- pauses and weights --

    async def pause(self, *, leave_slots: bool) -> None:
        """Stop the turns; requests in the engine keep their slots, or leave them and wait."""
        async with self._between:
            self.paused = True
            if leave_slots:
                await self._leave()

    def resume(self) -> None:
        """Turns go on."""
        self.paused = False
        self._work.set()

    async def change(self, image: Image, version: str | None, *, end_all: bool) -> int:
        """Serve these weights. Unless paused, requests in the engine end first and others wait; paused ones
        go on under the new weights. Returns the number of paused requests. Raises BadImage, which changes
        nothing, and Unsettled."""
        async with self._changing_weights:
            if end_all:
                self.end_all(aborted("its server ended all requests for new weights"))
            self._settling = True
            try:
                await self._settle()
                async with self._between:
                    await self._leave()
                    await self._on_thread(lambda: self._load(image))
                    self.version = self.version if version is None else version
                return self.open if self.paused else 0
            finally:
                self._settling = False
                self._work.set()

    async def rename(self, version: str) -> None:
        """The weights stay, their name changes."""
        async with self._between:
            self.version = version

    def _load(self, image: Image) -> None:
        self._engine.load_weights(image.view, image.specs, next(self._images))

    async def _settle(self) -> None:
        try:
            async with asyncio.timeout(SETTLE_S):
                while self._inside and not self.paused:
                    self._work.set()
                    await self._turned.wait()
        except TimeoutError:
            raise RequestsRunning(
                f"{len(self._inside)} requests still execute after {SETTLE_S:g} s: pause first"
            ) from None

    async def _leave(self) -> None:
        """Requests in the engine wait again, in front of the others. Called under `_between`."""
        await self._on_thread(self._engine.drain)
        left, self._inside, self._aborts = self._inside, {}, []
        for running in left.values():
            running.retractions += 1
        again = {next(self._tickets) % 2**32: running for running in left.values()}
        self._waiting = again | self._waiting
        self._slots_held = 0

    # -- turns --

    async def run(self) -> None:
        """Run turns until cancelled. Any other error is a defect, and the engine must not be used any
        more.
        """
        try:
            while True:
                await self._work.wait()
                async with self._between:
                    if self.paused or not (self._entering() or self._inside or self._aborts):
                        self._work.clear()
                    else:
                        await self._turn()
                turned, self._turned = self._turned, asyncio.Event()
                turned.set()
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _entering(self) -> bool:
        return bool(self._waiting) and not self._settling

    async def _turn(self) -> None:
        aborts, self._aborts = self._aborts, []
        entering = list(self._waiting.items()) if self._entering() else []
        for ticket, running in entering:
            del self._waiting[ticket]
            self._inside[ticket] = running
        adds = [running.assignment(ticket) for ticket, running in entering]
        try:
            output, refused = await self._on_thread(lambda: self._step(aborts, adds))
        except BrokenWeights as problem:
            await self._on_thread(self._engine.drain)
            self.end_all(aborted(str(problem), 500))
            self._aborts, self._slots_held = [], 0
            return
        self.turns += 1
        for ticket, why, status in refused:
            self._end_inside(ticket, aborted(why, status))
        if output is not None:
            self._deliver(output)

    def _step(self, aborts: list[int], adds: Iterable[Assignment]) -> tuple[StepOutput | None, list[Refused]]:
        """One engine step, on the thread."""
        engine, refused = self._engine, list[Refused]()
        engine.abort(aborts)
        for one in adds:
            try:
                engine.add((one,))
            except CannotServe as problem:
                refused.append((one.ticket, str(problem), 400))
            except EngineFull as problem:
                refused.append((one.ticket, str(problem), 503))
        output = None if engine.idle else engine.step()
        self._slots_held = engine.executing
        return output, refused

    def _deliver(self, output: StepOutput) -> None:
        now_s = self._now()
        rows = zip(
            output.tickets.tolist(),
            output.tokens.tolist(),
            output.logprobs.tolist(),
            output.flags.tolist(),
            strict=True,
        )
        for ticket, token, logprob, flags in rows:
            running = self._inside.get(ticket)
            if running is None or flags & Flag.NO_TOKEN:  # it was ended here; the engine is notified next
                continue
            running.take(token, logprob, self.version, now_s)
            self.tokens += 1
            if flags & Flag.FINISHED:
                self._inside.pop(ticket).end(reason_of(running, token), now_s)
            elif (finish := self._stopped(running)) is not None:
                running.end(finish, now_s)
                self._forget([ticket])

    def _end_inside(self, ticket: int, finish: Finish) -> None:
        if (running := self._inside.pop(ticket, None)) is not None:
            running.end(finish, self._now())

    def _all(self) -> list[tuple[int, ActiveRequest]]:
        return [*self._inside.items(), *self._waiting.items()]

    def _forget(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            if self._waiting.pop(ticket, None) is None and self._inside.pop(ticket, None) is not None:
                self._aborts.append(ticket)
        self._work.set()

    async def _on_thread(self, does: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, does)
