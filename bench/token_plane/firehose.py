"""Firehose: an instance without a model that sends prepared columns.

It registers and takes dispatches. Owns the sending and its times: a frame counts when its acknowledgement
arrives, which is after its commit. Everything but the tokens is real: the registration, the tickets, the
stream, its ring.
"""

import asyncio
import time
from array import array
from collections import deque

import numpy as np

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.instances import Dispatch, Registered, RegisterInstance, Serving
from gleaner.actors.protocol.rollout import Weights
from gleaner.supervisor import Actor, Deferred, Done, Message, handles
from gleaner.transport.token_frame import Flag, pack_columns
from gleaner.transport.token_stream import StreamSender
from gleaner.transport.wire import Peer

WEIGHTS = Weights(version=1, root=b"\1" * 32, sources=())
"""Version that all of them serve; no load is needed."""
ASK_S = 30.0
BURST = 16  # frames between two yields to the loop
VARIANTS = 64  # different frames, sent in turn
MAX_TIMES = 50_000  # of acknowledged frames, kept of one run: the first ones


class Hold(Message, frozen=True):
    """Asks for the number of requests."""


class Holds(Message, frozen=True):
    """Number of tickets that were dispatched and not forgotten."""

    tickets: int


class Where(Message, frozen=True):
    """Asks for the address of the stream."""


class StreamsTo(Message, frozen=True):
    """The manager's end of the streams."""

    endpoint: str


class Pour(Message, frozen=True):
    """Send from now on, and count what is acknowledged between two moments of the machine's monotonic clock.

    `every_s`: a frame so often, if the one before is acknowledged; 0: as fast as the stream takes them.
    """

    begin_s: float
    end_s: float
    every_s: float = 0.0


class Poured(Message, frozen=True):
    """Tokens acknowledged meanwhile; the seconds from the sending of each frame to its acknowledgement (f64,
    raw); how long the stream had no free capacity for another frame; processor seconds of the process, all
    meanwhile."""

    tokens: int
    times: bytes
    waited_s: float
    cpu_s: float


class Forget(Message, frozen=True):
    """The batch is over: its tickets are invalid."""


class Firehose(Actor):
    """See the module. Its name is the instance's.

    Args:
        slots: requests that it decodes together. ring_frames: unacknowledged frames that it keeps.
    """

    def __init__(self, slots: int, ring_frames: int) -> None:
        self._slots, self._ring_frames = slots, ring_frames
        self._tickets: list[int] = []
        self._frames: list[bytes] = []
        self._begun = False

    async def on_start(self) -> None:
        self._sender: StreamSender = self.ctx.network.token_sender(
            self.ctx.name, self.ctx.incarnation, ring_frames=self._ring_frames, on_refused=self._refused
        )
        self.ctx.at_end(self._sender.close)
        register = RegisterInstance(
            instance=self.ctx.name, worker=self.ctx.address, kind="preemptible", slots=self._slots, received=0
        )
        registered = await self.ctx.ask(MANAGER, register, deadline_s=ASK_S, expect=Registered)
        self._to = Peer(registered.stream_endpoint, registered.stream_key)
        self._sender.connect(self._to)
        serving = Serving(
            instance=self.ctx.name,
            incarnation=self.ctx.incarnation,
            version=WEIGHTS.version,
            root=WEIGHTS.root,
        )
        await self.ctx.ask(MANAGER, serving, deadline_s=ASK_S, expect=Done)

    @handles(Dispatch)
    async def dispatch(self, message: Dispatch) -> None:
        """Take requests; they are decoded when the sending starts."""
        self._tickets += [work.ticket for work in message.work]

    @handles(Hold)
    async def hold(self, message: Hold) -> Holds:
        """See `Hold`."""
        return Holds(tickets=len(self._tickets))

    @handles(Where)
    async def where(self, message: Where) -> StreamsTo:
        """See `Where`."""
        return StreamsTo(endpoint=self._to.endpoint)

    @handles(Forget)
    async def forget(self, message: Forget) -> Done:
        """See `Forget`."""
        self._tickets.clear()
        self._frames.clear()
        self._begun = False
        return Done()

    @handles(Pour)
    async def pour(self, message: Pour) -> Deferred:
        """See `Pour`."""
        deferred = Deferred()
        self.ctx.background(self._pour(message, deferred), "pour")
        return deferred

    async def _pour(self, order: Pour, deferred: Deferred) -> None:
        if not self._frames:
            self._frames = self._made()
        measure = _Measure(self._sender, order, len(self._tickets))
        number = 0
        while (now := time.monotonic()) < order.end_s:
            measure.look(now)
            for _ in range(1 if order.every_s else BURST):
                if not self._sender.send_packed(self._next(number)):
                    began = time.monotonic()
                    await self._sender.writable()
                    measure.waited(time.monotonic() - began)
                    break
                measure.sent(time.monotonic())
                number += 1
            if order.every_s:
                await self._sender.drained()
                measure.look(time.monotonic())
                await asyncio.sleep(max(0.0, now + order.every_s - time.monotonic()))
            else:
                await asyncio.sleep(0)
        await self._sender.drained()
        deferred.answer(measure.result())

    def _next(self, number: int) -> bytes:
        if not self._begun:  # the first frame reports that decoding began
            self._begun = True
            return self._columns(0, Flag.FIRST)
        return self._frames[number % len(self._frames)]

    def _made(self) -> list[bytes]:
        return [self._columns(variant, Flag(0)) for variant in range(VARIANTS)]

    def _columns(self, variant: int, flag: Flag) -> bytes:
        rows = len(self._tickets)
        tokens = (np.arange(rows) * 977 + variant * 31) % 150_000  # ids as in a model of today
        logprobs = np.full(rows, -0.01 * (variant + 1))
        return pack_columns(self._tickets, tokens, logprobs, np.full(rows, flag))

    def _refused(self, why: str) -> None:
        self.ctx.crash(RuntimeError(f"the manager refused the stream: {why}"))


class _Measure:
    """Tokens acknowledged within the time, and their latencies."""

    def __init__(self, sender: StreamSender, order: Pour, rows: int) -> None:
        self._sender, self._order, self._rows = sender, order, rows
        self._under_way: deque[float] = deque()
        self._acked = sender.last_seq
        self._frames = 0
        self._times = array("d")
        self._waited_s = 0.0
        self._cpu_s: float | None = None
        self._cpu_end_s = 0.0

    def sent(self, now_s: float) -> None:
        self._under_way.append(now_s)

    def waited(self, seconds: float) -> None:
        now = time.monotonic()
        if self._order.begin_s <= now < self._order.end_s:
            self._waited_s += seconds
        self.look(now)

    def look(self, now_s: float) -> None:
        """Count the frames that are acknowledged by now."""
        acked = self._sender.last_seq - self._sender.unacknowledged
        counted = self._order.begin_s <= now_s < self._order.end_s
        if counted and self._cpu_s is None:
            self._cpu_s = time.process_time()
        for _ in range(acked - self._acked):
            began = self._under_way.popleft()
            if counted:
                self._frames += 1
                if len(self._times) < MAX_TIMES:
                    self._times.append(now_s - began)
        if counted:
            self._cpu_end_s = time.process_time()
        self._acked = acked

    def result(self) -> Poured:
        began = self._cpu_s if self._cpu_s is not None else self._cpu_end_s
        return Poured(
            tokens=self._frames * self._rows,
            times=self._times.tobytes(),
            waited_s=self._waited_s,
            cpu_s=self._cpu_end_s - began,
        )
