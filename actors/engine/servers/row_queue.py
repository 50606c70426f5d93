"""`RowQueue`: buffer between a remote engine's streams and its worker's turns.

The buffer holds rows, refusals and a failure. Owns the buffer, the time at which it is worth a turn, and the
amount of work that the engine did according to the streams. It neither reads a stream nor ends one. A turn
costs the worker, the manager and the journal the same for one row and for a hundred. So rows are gathered: a
first or a last token for `SOON_S`, all else for `GATHER_S`, or until every stream has delivered something.

Bounds: at most `MAX_HELD` rows and the excess of the current chunks; then `full` stops the reading of
streams. Experts beyond `MAX_EXPERTS_BYTES` are dropped, and their consumer requests them again. A failure is
final: every later `take` raises it.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

import numpy as np

from gleaner.actors.engine.servers.port import Ask, Chunk
from gleaner.actors.engine.worker.engine_port import StepOutput
from gleaner.actors.engine.worker.expert_routing import ExpertPiece, NoRows, table
from gleaner.actors.engine.worker.port import Refusal, StepWork
from gleaner.actors.protocol.experts import ExpertsWanted
from gleaner.transport.token_frame import MAX_ROWS, Flag

SOON_S = 0.005  # rows of the same decode step arrive meanwhile
GATHER_S = 0.1  # ten pieces of text a second are smooth to a reader
MAX_HELD = 16 * MAX_ROWS
MAX_EXPERTS_BYTES = 256 << 20

log = logging.getLogger("nodeagent.engine")

Row = tuple[int, int, float, int]  # ticket, token, log-prob, flags
_ENDED = int(Flag.ABORTED | Flag.NO_TOKEN)


@dataclass(eq=False, slots=True)
class Stream:
    """State of a ticket's request: tokens in its cache so far, whether any was made here, the time of its
    last chunk, the consumer of its experts, and how often it lost its cache to others."""

    ticket: int
    ask: Ask
    context: int
    started: bool = False
    told_s: float = 0.0
    experts: ExpertsWanted | None = None
    retracted: int = 0

    @property
    def came(self) -> int:
        """Tokens that it has delivered."""
        return self.context - len(self.ask.tokens)


@dataclass(frozen=True, slots=True)
class TakenRows:
    """The rows since the last turn, at most a frame of them."""

    output: StepOutput | None
    refusals: list[Refusal]
    work: StepWork
    experts: list[ExpertPiece]


class RowQueue:
    """Rows of one engine. Every call is for one loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._rows: list[Row] = []
        self._chunks = 0  # that brought them
        self._soon = False  # some rows should not be gathered for long
        self._refusals: list[Refusal] = []
        self._work = StepWork()
        self._experts: list[ExpertPiece] = []
        self._failure: Exception | None = None
        self._hurried = False
        self._enough = 1  # so many chunks end a wait

    @property
    def full(self) -> bool:
        """Whether streams must not be read until a turn took rows."""
        return len(self._rows) >= MAX_HELD

    @property
    def waiting(self) -> set[int]:
        """Tickets of rows that no turn has taken yet."""
        return {ticket for ticket, *_ in self._rows}

    def put(self, stream: Stream, chunk: Chunk, executing: int) -> None:
        """Add a chunk. A server decodes all `executing` requests together, so a token counts as that share of
        a step.
        """
        rows = [(stream.ticket, *made, 0) for made in zip(chunk.tokens, chunk.logprobs, strict=True)]
        prefilled = 0
        if first := bool(rows) and not stream.started:
            stream.started = True
            rows[0] = (*rows[0][:3], int(Flag.FIRST))
            prefilled = max(0, stream.context - chunk.cached)
        if chunk.finish == "abort":
            rows.append((stream.ticket, 0, 0.0, _ENDED))
        elif chunk.finish is not None:
            end = int(Flag.FINISHED | Flag.CUT if chunk.finish == "length" else Flag.FINISHED)
            if rows:
                rows[-1] = (*rows[-1][:3], rows[-1][3] | end)
            else:
                rows.append((stream.ticket, 0, 0.0, end | int(Flag.NO_TOKEN)))
        count = len(chunk.tokens)
        attended = count * stream.context + count * (count + 1) // 2
        self.read(stream, chunk)
        retracted = max(0, chunk.retracted - stream.retracted)
        stream.retracted += retracted
        work = StepWork(count / max(1, executing), count, attended, prefilled, retracted)
        self._add(rows, work, soon=first or chunk.finish is not None)

    def read(self, stream: Stream, chunk: Chunk) -> None:
        """A chunk of a stream whose rows are not wanted any more: its experts may still be wanted."""
        stream.context += len(chunk.tokens)
        if stream.experts is None or not chunk.experts:
            return
        try:
            piece = ExpertPiece(stream.experts, table(chunk.experts, stream.context - 1))
        except NoRows as problem:
            log.warning("ticket %d: %s", stream.ticket, problem)  # the consumer requests them again
            return
        if sum(one.rows.nbytes for one in self._experts) + piece.rows.nbytes > MAX_EXPERTS_BYTES:
            log.warning("experts dropped, too many wait: ticket=%d", stream.ticket)
            return
        self._experts.append(piece)
        self._changed.set()

    def ended(self, tickets: list[int]) -> None:
        """The last row of each of these tickets, which ended here."""
        self._add([(ticket, 0, 0.0, _ENDED) for ticket in tickets], StepWork(), soon=True)

    def refuse(self, ticket: int, why: str, never: bool) -> None:
        """The server refused the ticket."""
        self._refusals.append(Refusal([ticket], why, never=never))
        self._changed.set()

    def fail(self, problem: Exception) -> None:
        """The server must be replaced; the first reason counts."""
        self._failure = self._failure or problem
        self._changed.set()

    def hurry(self) -> None:
        """End the wait of the next or the current `take`."""
        self._hurried = True
        self._changed.set()

    async def take(self, wait_s: float, expected: int) -> TakenRows:
        """Return the rows; wait for them at most so long. `expected`: the number of streams that may deliver
        something.

        Raises the error of `fail`.
        """
        if not (self._urgent or self._rows or self._experts):
            self._enough = 1
            await self._news(wait_s)
        if self._rows:
            self._enough = max(1, expected)
            await self._gather()
        self._hurried = False
        if self._failure is not None:
            raise self._failure
        rows, self._rows = self._rows[:MAX_ROWS], self._rows[MAX_ROWS:]
        refusals, self._refusals = self._refusals, []
        work, self._work = self._work, StepWork()
        experts, self._experts = self._experts, []
        self._chunks, self._soon = 0, False
        return TakenRows(_columns(rows) if rows else None, refusals, work, experts)

    @property
    def _urgent(self) -> bool:
        return self._hurried or bool(self._refusals) or self._failure is not None

    async def _gather(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + GATHER_S
        while not self._urgent and self._chunks < self._enough:
            if self._soon:
                until_s = min(until_s, loop.time() + SOON_S)
            if not await self._news(until_s - loop.time()):
                return

    async def _news(self, within_s: float) -> bool:
        """Whether something arrived that ends the wait, or shortens it."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        return self._changed.is_set()

    def _add(self, rows: list[Row], work: StepWork, soon: bool) -> None:
        news = soon and not self._soon
        self._rows += rows
        self._work = self._work.plus(work)
        self._chunks += 1
        self._soon = self._soon or soon
        if news or self._chunks >= self._enough:
            self._changed.set()


def _columns(rows: list[Row]) -> StepOutput:
    tickets, tokens, logprobs, flags = zip(*rows, strict=True)
    return StepOutput(
        tickets=np.array(tickets, np.uint32),
        tokens=np.array(tokens, np.uint32),
        logprobs=np.array(logprobs, np.float32),
        flags=np.array(flags, np.uint8),
    )
