"""`RemoteHost`: an engine behind HTTP (orders in, columns of tokens out).

Owns the streams of its tickets. The wire (`port`) owns the protocol, `row_queue` passes rows to a turn,
`stall_watch` gives up a server that has stalled. Everything runs on the worker's loop: nothing is computed
here, and another thread would only forward the loop's data. Uses no actor.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine

from gleaner.actors.engine.servers.in_flight import InFlightRequests
from gleaner.actors.engine.servers.port import LoadFailed, ServerDied, ServerRefused, ServerWire
from gleaner.actors.engine.servers.requests import UnservableRequest, ask_of, vocabulary_of
from gleaner.actors.engine.servers.row_queue import RowQueue, Stream
from gleaner.actors.engine.servers.soundness import probe, require_sound
from gleaner.actors.engine.servers.stall_watch import StallWatch
from gleaner.actors.engine.servers.stream_interval import StreamInterval
from gleaner.actors.engine.worker.port import Refusal, StepCommands, StepResult
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.weights import Fetched

TURN_S = 1.0  # without a row or an order
LOOK_S = 0.25  # between two checks of a full exchange
LAST_S = 5.0  # for the experts of a request that the server was ordered to abort

log = logging.getLogger("nodeagent.engine")


def _now() -> float:
    return asyncio.get_running_loop().time()


class RemoteHost:
    """An `AwaitedHost` for a server behind `wire`.

    Args:
        wire: to one server; closed with this host.
        stall_s: so long without a token of executing requests, or without a reply to a health check:
    then the server is given up.
        serve_s: longest time until the server serves new weights; for the first ones it may have to start.
        engines: copies of the model in the server.
        capacity: tokens in the cache of each copy, and the size of its weights in such tokens, as the server
    reports them once it runs; 0: not known.
    """

    device = None
    halves = False

    def __init__(
        self,
        wire: ServerWire,
        *,
        stall_s: float,
        serve_s: float,
        engines: int = 1,
        capacity: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.engines, self._capacity = engines, capacity
        self._wire, self._stall_s, self._serve_s = wire, stall_s, serve_s
        self._exchange = RowQueue()
        self._in_flight = InFlightRequests(wire)
        self._pace = StreamInterval()
        self._stall = StallWatch(wire.healthy, stall_s)
        self._id = uuid.uuid4().hex[:12]  # before a ticket in a request's id: servers may have other clients
        self._version: int | None = None
        self._staged: Fetched | None = None
        self._starting = asyncio.Lock()
        self._name = ""  # name of the version at the server
        self._root = b""
        self._vocabulary = 0
        self._streams: dict[int, Stream] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._aborting: set[asyncio.Task[None]] = set()
        self._last: set[asyncio.Task[None]] = set()  # of streams that ended here, read on for their experts
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._executing: set[int] = set()  # tickets of streams that have delivered something

    @property
    def cache_tokens(self) -> int:
        """See `AwaitedHost`."""
        return self._capacity()[0]

    @property
    def weight_tokens(self) -> int:
        """See `AwaitedHost`."""
        return self._capacity()[1]

    # -- the worker's side --

    async def awaited_turn(self, commands: StepCommands) -> StepResult:
        """See `AwaitedHost`. Returns with the first rows and those right behind them. Raises `ServerDied` if
        the server must be replaced."""
        if self._ending is not None:
            raise ServerDied("its host was closed")
        if self._watching is None:
            self._watching = self._beside(self._stall.watch(self._in_server))
        if (
            self._in_flight.on
        ):  # since the previous turn, which loaded weights: the kept tickets are known now
            aborts, commands.aborts = commands.aborts, []
            self._end(aborts)
            await self._in_flight.end()
            self._stall.progress()
        load_failed, keeps = "", False
        if commands.load is not None:
            # A checkpoint that the server reads by itself changes more than the weights.
            keeps = commands.keep and self._wire.keeps and bool(commands.load.tensors)
            load_failed = await self._serve(commands.load, keeps)
        refusals: list[Refusal] = []
        adds = [
            one for version, work in commands.adds if self._takes(version, work, refusals) for one in work
        ]
        self._carry_out(commands.aborts, adds)
        at_once = commands.load is not None or refusals
        taken = await self._exchange.take(0.0 if at_once else TURN_S, len(self._streams))
        refusals += taken.refusals
        kept = self._kept() if keeps and not load_failed else None
        return StepResult(
            taken.output,
            refusals,
            self._version,
            self._root,
            idle=False,
            work=taken.work,
            load_failed=load_failed,
            experts=taken.experts,
            kept=kept,
            vocabulary=self._vocabulary,
        )

    def _kept(self) -> list[int]:
        """The requests that the server holds, with all earlier rows reported; those with more rows than a
        turn takes are ended.
        """
        if not self._in_flight.on:
            return []
        self._end([ticket for ticket in self._exchange.waiting if ticket in self._streams])
        return list(self._streams)

    async def prepare(self, model: Fetched) -> None:
        """See `AwaitedHost`. Raises `ServerDied`."""
        try:
            async with asyncio.timeout(self._serve_s), self._starting:
                await self._wire.start(model)
        except TimeoutError as late:
            raise ServerDied(f"the server did not start within {self._serve_s:g} s") from late

    async def stage(self, fetched: Fetched) -> None:
        """See `EngineHost.stage`; starts a server of ours. Raises `ServerDied`."""
        self._staged = None
        try:
            async with asyncio.timeout(self._serve_s), self._starting:
                await self._wire.stage(fetched)
        except LoadFailed as problem:  # the load tries it again, and reports the error
            log.info("%s", problem)
        except TimeoutError as late:
            what = f"the server did not stage version {fetched.version} within {self._serve_s:g} s"
            raise ServerDied(what) from late
        else:
            self._staged = fetched

    def hurry(self) -> None:
        """See `AwaitedHost`."""
        self._exchange.hurry()

    def close(self) -> None:
        """See `AwaitedHost`."""
        if self._ending is not None:
            return
        self._wire.close()
        self._exchange.fail(ServerDied("its host was closed"))
        self._ending = asyncio.get_running_loop().create_task(self._disconnect())

    async def closed(self) -> None:
        """See `AwaitedHost`."""
        if self._ending is not None:
            await self._ending

    def _takes(self, version: int, work: list[Work], refusals: list[Refusal]) -> bool:
        if version == self._version:
            return True
        serves = "it has no weights yet" if self._version is None else f"it serves version {self._version}"
        refusals.append(Refusal([one.ticket for one in work], f"{serves}, not {version}"))
        return False

    async def _disconnect(self) -> None:
        tasks = [*self._tasks.values(), *self._last, *self._aborting]
        if self._watching is not None:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._wire.disconnect()
        self._wire.close()

    # -- the server's side --

    async def _serve(self, fetched: Fetched, keep: bool) -> str:
        """Load these weights. Returns the reason if the previous ones are still served, "" otherwise.
        Requests go on while the weights are staged; then the rest of each is reported, and its end. keep:
        requests that the server holds end here only if the load fails; the server makes no token of them
        before the next turn."""
        began_s = _now()
        before, failed = self._version, ""
        try:
            async with asyncio.timeout(self._serve_s):
                try:
                    if self._staged != fetched:
                        await self._wire.stage(fetched)
                    self._staged = None
                    self._version = None
                    held = await self._in_flight.begin(self._streams.values()) if keep else set[int]()
                    self._end([ticket for ticket in self._streams if ticket not in held])
                    if self._last:
                        await asyncio.wait(self._last, timeout=LAST_S)
                    self._name = await self._wire.commit()
                except LoadFailed as problem:
                    failed = str(problem)
                    await self._in_flight.end()  # under the previous weights
                has_some = not failed or before is not None
                if self._version is None and has_some and not self._in_flight.on:
                    failed = failed or await self._unsound()
                    if failed and before is not None:
                        await self._probe()
                loaded_s = self._stall.progress()
        except TimeoutError as late:
            what = f"the server did not serve version {fetched.version} within {self._serve_s:g} s"
            raise ServerDied(what) from late
        if failed:
            self._version = before
            return failed
        self._vocabulary = vocabulary_of(fetched.model_config)
        self._version, self._root = fetched.version, fetched.root
        log.info("server serves weights: %d after %.2f s", fetched.version, loaded_s - began_s)
        return ""

    async def _unsound(self) -> str:
        """Why the weights just loaded are unsound, "": they are sound. If unsound, the server has its
        previous weights again. Raises `ServerDied` if it cannot revert, or has nothing to revert to."""
        try:
            await self._probe()
        except ServerDied as unsound:
            name = await self._wire.revert()
            if name is None:
                raise
            self._name = name
            return f"{unsound}; the server received the order to load what it served before"
        return ""

    async def _probe(self) -> None:
        await probe(self._wire, f"{self._id}-probe-{uuid.uuid4().hex[:8]}", self._name)

    def _carry_out(self, aborts: list[int], adds: list[Work]) -> None:
        if aborts:
            self._end(aborts)
        if not self._streams:
            self._stall.progress()
        for work in adds:
            self._begin(work)

    def _begin(self, work: Work) -> None:
        try:
            if work.ticket in self._streams:
                raise UnservableRequest("it is served already")
            ask = ask_of(work, f"{self._id}-{work.ticket}", self._vocabulary, self._pace.interval)
        except UnservableRequest as unfit:
            self._exchange.refuse(work.ticket, f"ticket {work.ticket}: {unfit}", never=True)
            return
        stream = Stream(work.ticket, ask, len(ask.tokens), experts=work.experts)
        self._streams[work.ticket] = stream
        self._tasks[work.ticket] = self._beside(self._follow(stream))

    def _end(self, tickets: list[int]) -> None:
        """Stop following these tickets, also unknown ones. Each gets one more row, which marks its end, and
        no other. If experts are wanted, the stream is read on to its end, which has them."""
        ended = [self._streams.pop(ticket) for ticket in tickets if ticket in self._streams]
        rids = [stream.ask.rid for stream in ended]
        wanted = {stream.ticket for stream in ended if stream.experts is not None and stream.started}
        self._executing.difference_update(tickets)
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
        if rids:  # in the background: the health check finds a server that misses it
            task = self._beside(self._abort(rids))
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)

    async def _abort(self, rids: list[str]) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                await self._wire.abort(rids)
        except (ServerDied, TimeoutError) as problem:
            log.info("abort request failed: %d requests: %r", len(rids), problem)

    async def _follow(self, stream: Stream) -> None:
        """The stream of one ticket, from its first chunk to its last."""
        finished = False
        try:
            async for chunk in self._wire.stream(stream.ask):
                require_sound(chunk, self._name)
                if self._streams.get(stream.ticket) is not stream:
                    self._exchange.read(stream, chunk)
                    continue
                self._measure(stream, len(chunk.tokens))
                self._executing.add(stream.ticket)
                self._exchange.put(stream, chunk, len(self._executing))
                finished = chunk.finish is not None
                while self._exchange.full:  # unread, the connection fills up: backpressure
                    await asyncio.sleep(LOOK_S)
                    self._stall.progress()
        except (ServerRefused, ServerDied) as problem:
            if self._streams.get(stream.ticket) is not stream:
                log.info("stream of an ended ticket failed: ticket=%d: %s", stream.ticket, problem)
            elif isinstance(problem, ServerRefused):
                self._exchange.refuse(stream.ticket, str(problem), problem.never)
                finished = True
            else:
                raise
        if not finished and self._streams.get(stream.ticket) is stream:
            raise ServerDied("the server closed the stream of a request before it was finished")
        self._streams.pop(stream.ticket, None)
        self._tasks.pop(stream.ticket, None)
        self._executing.discard(stream.ticket)

    def _in_server(self) -> int | None:
        """The number of requests in the server; None while it loads."""
        return None if self._version is None or self._in_flight.on else len(self._streams)

    def _measure(self, stream: Stream, tokens: int) -> None:
        """Count the computed tokens of a stream."""
        now = self._stall.progress()
        if stream.started and tokens:
            self._pace.observe(tokens, now - stream.told_s)
        stream.told_s = now

    def _beside(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._fell)
        return task

    def _fell(self, task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if isinstance(problem, Exception):
            self._exchange.fail(problem)
