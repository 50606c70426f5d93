"""The hand-over between the streams of a remote engine and its worker's turns: rows, refusals, a failure.

Owns one buffer that two threads share, and what an engine computed according to the streams. It neither reads
a stream nor ends one.

Bounds: at most `MAX_HELD` rows and what the chunks at hand hold beyond them; at that `full` says that streams
are not to be read on. Experts beyond `MAX_EXPERTS_BYTES` are let go: who wants them asks again. A failure is
final: every `take` from then on raises it.
"""

import logging
import threading
from dataclasses import dataclass

import numpy as np

from actors.engine.engine import StepOutput
from actors.engine.expert_piece import ExpertPiece, NoRows, table
from actors.engine.server_wire import Ask, Chunk
from actors.engine.turn import Refusal, TurnWork
from actors.rollout.expert_messages import ExpertsWanted
from transport.token_frame import MAX_ROWS, Flag

GATHER_S = 0.003  # after the first row: what the server sends of the same decode step comes with it
MAX_HELD = 16 * MAX_ROWS
MAX_EXPERTS_BYTES = 256 << 20

log = logging.getLogger("nodeagent.engine")

Row = tuple[int, int, float, int]  # ticket, token, log-prob, flags
_ENDED = int(Flag.ABORTED | Flag.NO_TOKEN)


@dataclass(eq=False, slots=True)
class Stream:
    """What is known of the request of a ticket: tokens in its cache so far, whether any was made here; who
    wants the experts of its tokens."""

    ticket: int
    ask: Ask
    context: int
    started: bool = False
    experts: ExpertsWanted | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """What came since the last turn, at most a frame of rows."""

    output: StepOutput | None
    refusals: list[Refusal]
    work: TurnWork
    experts: list[ExpertPiece]


class RowExchange:
    """See the module. Every call is safe from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rows: list[Row] = []
        self._refusals: list[Refusal] = []
        self._work = TurnWork()
        self._experts: list[ExpertPiece] = []
        self._failure: Exception | None = None
        self._hurried = False

    @property
    def full(self) -> bool:
        """No more streams are to be read until a turn took rows."""
        return len(self._rows) >= MAX_HELD

    def put(self, stream: Stream, chunk: Chunk, executing: int) -> None:
        """A chunk came. A server decodes all `executing` requests together: a token is so much of a step."""
        rows = [(stream.ticket, *made, 0) for made in zip(chunk.tokens, chunk.logprobs, strict=True)]
        prefilled = 0
        if rows and not stream.started:
            stream.started = True
            rows[0] = (*rows[0][:3], int(Flag.FIRST))
            prefilled = max(0, stream.context - chunk.cached)
        if chunk.finish == "abort":
            rows.append((stream.ticket, 0, 0.0, _ENDED))
        elif chunk.finish is not None and rows:
            rows[-1] = (*rows[-1][:3], rows[-1][3] | int(Flag.FINISHED))
        elif chunk.finish is not None:
            rows.append((stream.ticket, 0, 0.0, int(Flag.FINISHED | Flag.NO_TOKEN)))
        count = len(chunk.tokens)
        attended = sum(range(stream.context + 1, stream.context + count + 1))
        self.read(stream, chunk)
        self._add(rows, TurnWork(count / max(1, executing), count, attended, prefilled))

    def read(self, stream: Stream, chunk: Chunk) -> None:
        """A chunk of a stream whose rows nobody wants any more came too: its experts may still be wanted."""
        stream.context += len(chunk.tokens)
        if stream.experts is None or not chunk.experts:
            return
        try:
            piece = ExpertPiece(stream.experts, table(chunk.experts, stream.context - 1))
        except NoRows as problem:
            log.warning("ticket %d: %s", stream.ticket, problem)  # whoever wants them asks again
            return
        with self._changed:
            if sum(one.rows.nbytes for one in self._experts) + piece.rows.nbytes > MAX_EXPERTS_BYTES:
                log.warning("ticket %d: its experts are let go, too many wait", stream.ticket)
                return
            self._experts.append(piece)
            self._changed.notify()

    def ended(self, tickets: list[int]) -> None:
        """The last row of each of these: it ended here."""
        self._add([(ticket, 0, 0.0, _ENDED) for ticket in tickets], TurnWork())

    def refuse(self, ticket: int, why: str, never: bool) -> None:
        """The server does not take it."""
        with self._changed:
            self._refusals.append(Refusal([ticket], why, never=never))
            self._changed.notify()

    def fail(self, problem: Exception) -> None:
        """The server is to be replaced; the first reason counts."""
        with self._changed:
            self._failure = self._failure or problem
            self._changed.notify()

    def hurry(self) -> None:
        """Whoever takes next, or waits for it, waits no longer."""
        with self._changed:
            self._hurried = True
            self._changed.notify()

    def take(self, wait_s: float, expected: int) -> Taken:
        """What came; waits for it, at most so long. `expected`: so many rows come together.

        Raises what `fail` was given.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._hurried or self._rows or self._refusals or self._experts or self._failure,
                wait_s,
            )
            if self._rows and not self._hurried:
                self._changed.wait_for(
                    lambda: self._hurried or self._failure or len(self._rows) >= expected, GATHER_S
                )
            self._hurried = False
            if self._failure is not None:
                raise self._failure
            rows, self._rows = self._rows[:MAX_ROWS], self._rows[MAX_ROWS:]
            refusals, self._refusals = self._refusals, []
            work, self._work = self._work, TurnWork()
            experts, self._experts = self._experts, []
        return Taken(_columns(rows) if rows else None, refusals, work, experts)

    def _add(self, rows: list[Row], work: TurnWork) -> None:
        with self._changed:
            self._rows += rows
            self._work = self._work.plus(work)
            self._changed.notify()


def _columns(rows: list[Row]) -> StepOutput:
    tickets, tokens, logprobs, flags = zip(*rows, strict=True)
    return StepOutput(
        tickets=np.array(tickets, np.uint32),
        tokens=np.array(tokens, np.uint32),
        logprobs=np.array(logprobs, np.float32),
        flags=np.array(flags, np.uint8),
    )
