"""An engine behind HTTP, as its worker drives it: orders in, columns of tokens out.

Owns a thread with its own event loop, on which every ticket has a stream of its own, and the verdict that a
server stands still. What is said to the server is its wire's (`server_wire`), how rows reach a turn is
`row_exchange`'s. Adapter: a thread and the clock; knows no actor.
"""

import asyncio
import concurrent.futures
import logging
import math
import threading
import time
import uuid
from array import array
from collections.abc import Coroutine
from typing import TypeVar

from actors.engine.row_exchange import RowExchange, Stream
from actors.engine.server_asks import Unfit, ask_of, vocabulary_of
from actors.engine.server_wire import Ask, Chunk, LoadFailed, ServerDied, ServerRefused, ServerWire
from actors.engine.turn import Orders, Refusal, Turn
from actors.rollout.instance_messages import Work
from actors.weights.messages import Fetched

TURN_S = 1.0  # without a row or an order
LOOK_S = 0.25  # between two looks whether tokens come, and whether a full exchange was emptied
HEALTH_SHARE = 4.0  # looks at the server's health within `stall_s`
LAST_S = 5.0  # for a server that was told to abort a request to say which experts its tokens had
ORDER_S = 30.0  # to begin and end streams, which waits for nobody
PROBE_TOKEN = 1  # any word of any vocabulary

Result = TypeVar("Result")

log = logging.getLogger("nodeagent.engine")


class RemoteHost:
    """An `EngineHost` for a server behind `wire`.

    Args:
        wire: to one server; closed with this host.
        stall_s: for so long requests execute and no token comes, or nobody answers when asked for its health:
            then the server is given up.
        serve_s: longest time until the server serves new weights; for the first ones it may have to start.
    """

    engines = 1
    cache_tokens = 0

    def __init__(self, wire: ServerWire, *, stall_s: float, serve_s: float) -> None:
        self._wire, self._stall_s, self._serve_s = wire, stall_s, serve_s
        self._exchange = RowExchange()
        self._id = uuid.uuid4().hex[:12]  # before a ticket in a request's id: servers may have other clients
        self._version: int | None = None
        self._name = ""  # of the version, in the server's words
        self._root = b""
        self._vocabulary = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # The loop's own:
        self._streams: dict[int, Stream] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._aborting: set[asyncio.Task[None]] = set()
        self._last: set[asyncio.Task[None]] = set()  # of streams that ended here, read for their experts
        self._progress_s = 0.0  # when the last token came, or none had to come

    # -- the worker's side --

    def turn(self, orders: Orders) -> Turn:
        """See `EngineHost`. Returns with the first rows and those that come right behind them. Raises
        `ServerDied` when the server is to be replaced."""
        loop = self._running()
        load_failed = ""
        if orders.load is not None:
            load_failed = self._call(loop, self._serve(orders.load), self._serve_s + ORDER_S)
        refusals: list[Refusal] = []
        adds = [one for version, work in orders.adds if self._takes(version, work, refusals) for one in work]
        if orders.aborts or adds:
            self._call(loop, self._carry_out(orders.aborts, adds), ORDER_S)
        at_once = orders.load is not None or refusals
        taken = self._exchange.take(0.0 if at_once else TURN_S, len(self._streams))
        refusals += taken.refusals
        return Turn(
            taken.output, refusals, self._version, self._root, False, taken.work, load_failed, taken.experts
        )

    def hurry(self) -> None:
        """See `EngineHost`."""
        self._exchange.hurry()

    def close(self) -> None:
        """See `EngineHost`."""
        if self._closed:
            return
        self._closed = True
        self._wire.close()
        self._exchange.fail(ServerDied("its host was closed"))
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def joined(self, within_s: float) -> bool:
        """Whether its thread has ended, after `close`."""
        if self._thread is not None:
            self._thread.join(within_s)
        return self._thread is None or not self._thread.is_alive()

    def _takes(self, version: int, work: list[Work], refusals: list[Refusal]) -> bool:
        if version == self._version:
            return True
        serves = "it has no weights yet" if self._version is None else f"it serves version {self._version}"
        refusals.append(Refusal([one.ticket for one in work], f"{serves}, not {version}"))
        return False

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise ServerDied("its host was closed")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name="engine", daemon=True)
            self._thread.start()
        return self._loop

    def _call(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[object, object, Result], deadline_s: float
    ) -> Result:
        """Run it on the loop; its errors are raised here."""
        waited = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return waited.result(deadline_s)
        except concurrent.futures.CancelledError as closed:
            raise ServerDied("its host was closed") from closed
        except TimeoutError as late:
            waited.cancel()
            raise ServerDied(f"the server did not do what it was told within {deadline_s:g} s") from late

    # -- the loop's side --

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.create_task(self._watch()).add_done_callback(self._fell)
        try:
            loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(self._wire.disconnect())
            self._wire.close()
            loop.close()

    async def _serve(self, fetched: Fetched) -> str:
        """Why these are not served, but what was before; "": they are. Requests go on while they are staged;
        then what each came to is told, and that it ended."""
        began_s = time.monotonic()
        before, failed = self._version, ""
        try:
            async with asyncio.timeout(self._serve_s):
                try:
                    await self._wire.stage(fetched)
                    self._end(list(self._streams))
                    self._version = None
                    if self._last:
                        await asyncio.wait(self._last, timeout=LAST_S)
                    self._name = await self._wire.commit()
                except LoadFailed as problem:
                    if before is None:
                        raise ServerDied(str(problem)) from problem
                    failed = str(problem)
                if self._version is None:
                    await self._probe()
                    self._progress_s = time.monotonic()
        except TimeoutError as late:
            what = f"the server did not serve version {fetched.version} within {self._serve_s:g} s"
            raise ServerDied(what) from late
        if failed:
            self._version = before
            return failed
        self._vocabulary = vocabulary_of(fetched.model_config)
        self._version, self._root = fetched.version, fetched.root
        log.info("the server serves version %d after %.2f s", fetched.version, self._progress_s - began_s)
        return ""

    async def _probe(self) -> None:
        """One token, made by the weights that were loaded."""
        ask = Ask(f"{self._id}-probe-{uuid.uuid4().hex[:8]}", array("I", [PROBE_TOKEN]), 1, 0.0, 0)
        made = 0
        try:
            async for chunk in self._wire.stream(ask):
                self._require_sound(chunk)
                made += len(chunk.tokens)
        except ServerRefused as refused:
            raise ServerDied(f"the server refused a probe of one token: {refused}") from refused
        if made != 1:
            raise ServerDied(f"a probe of one token brought {made}")

    async def _carry_out(self, aborts: list[int], adds: list[Work]) -> None:
        self._end(aborts)
        if not self._streams:
            self._progress_s = time.monotonic()
        for work in adds:
            self._begin(work)

    def _begin(self, work: Work) -> None:
        try:
            if work.ticket in self._streams:
                raise Unfit("it is served already")
            ask = ask_of(work, f"{self._id}-{work.ticket}", self._vocabulary)
        except Unfit as unfit:
            self._exchange.refuse(work.ticket, f"ticket {work.ticket}: {unfit}", never=True)
            return
        stream = Stream(work.ticket, ask, len(ask.tokens), experts=work.experts)
        self._streams[work.ticket] = stream
        task = self._tasks[work.ticket] = asyncio.get_running_loop().create_task(self._follow(stream))
        task.add_done_callback(self._fell)

    def _end(self, tickets: list[int]) -> None:
        """Follow these no more; each has one more row, which says so, and no other. Unknown ones too. Where
        experts are wanted, the stream is read on to its end, which has them."""
        ended = [self._streams.pop(ticket) for ticket in tickets if ticket in self._streams]
        rids = [stream.ask.rid for stream in ended]
        wanted = {stream.ticket for stream in ended if stream.experts is not None and stream.started}
        for ticket in tickets:
            if (task := self._tasks.pop(ticket, None)) is None:
                continue
            if ticket not in wanted:
                task.cancel()
                continue
            self._last.add(task)
            task.add_done_callback(self._last.discard)
            asyncio.get_running_loop().call_later(LAST_S, task.cancel)
        self._exchange.ended(tickets)
        if rids:  # beside: a server that does not hear it is found out by its health
            task = asyncio.get_running_loop().create_task(self._abort(rids))
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)

    async def _abort(self, rids: list[str]) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                await self._wire.abort(rids)
        except (ServerDied, TimeoutError) as problem:
            log.info("the server was not told to abort %d requests: %r", len(rids), problem)

    async def _follow(self, stream: Stream) -> None:
        """The stream of one ticket, from its first chunk to its last."""
        finished = False
        try:
            async for chunk in self._wire.stream(stream.ask):
                self._require_sound(chunk)
                if self._streams.get(stream.ticket) is not stream:
                    self._exchange.read(stream, chunk)
                    continue
                self._progress_s = time.monotonic()
                executing = sum(one.started for one in self._streams.values())
                self._exchange.put(stream, chunk, executing + (not stream.started))
                finished = chunk.finish is not None
                while self._exchange.full:  # not read on, the connection fills and the server waits
                    await asyncio.sleep(LOOK_S)
                    self._progress_s = time.monotonic()
        except (ServerRefused, ServerDied) as problem:
            if self._streams.get(stream.ticket) is not stream:
                log.info("ticket %d ended here, and its stream did not in order: %s", stream.ticket, problem)
            elif isinstance(problem, ServerRefused):
                self._exchange.refuse(stream.ticket, str(problem), problem.never)
                finished = True
            else:
                raise
        if not finished and self._streams.get(stream.ticket) is stream:
            raise ServerDied("the server closed the stream of a request before it was finished")
        self._streams.pop(stream.ticket, None)
        self._tasks.pop(stream.ticket, None)

    def _fell(self, task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if isinstance(problem, Exception):
            self._exchange.fail(problem)

    def _require_sound(self, chunk: Chunk) -> None:
        """Raises `ServerDied` for tokens that nobody may be given."""
        if not all(map(math.isfinite, chunk.logprobs)):
            raise ServerDied("the server made a log-prob that is no number: its weights are broken")
        if chunk.version and chunk.version != self._name:
            raise ServerDied(
                f"the server serves weights {chunk.version!r}, this worker gave it {self._name!r}: somebody "
                "else loads weights into it"
            )

    async def _watch(self) -> None:
        """Raises `ServerDied` when the server stands still: it is asked for its health, also when idle."""
        healthy_s = asked_s = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            if self._version is None:  # it starts or loads, which has a deadline of its own
                healthy_s = now
                continue
            if not self._streams:
                self._progress_s = now
            if (late_s := now - self._progress_s) > self._stall_s:
                raise ServerDied(
                    f"{len(self._streams)} requests are in the server and no token came for {late_s:.1f} s "
                    f"(engine.stall_s is {self._stall_s:g})"
                )
            if now - asked_s < self._stall_s / HEALTH_SHARE:
                continue
            asked_s = now
            try:
                async with asyncio.timeout(self._stall_s / HEALTH_SHARE):
                    await self._wire.healthy()
                healthy_s = time.monotonic()
            except TimeoutError as late:
                if (late_s := time.monotonic() - healthy_s) > self._stall_s:
                    raise ServerDied(f"the server did not answer for {late_s:.1f} s") from late
