"""Copies of a model in one instance, each with its own batch, cache and pace.

Owns which copy gets a request, and the order in which turns of copies are over. Pure, like `batching`: the
caller lets the seconds pass. A request goes to the copy with the fewest requests and stays there, as with
data-parallel ranks: nothing is shared, so the copy with the longest responses is the last to be done.

A turn of one copy is under way while others end theirs. A request that is aborted meanwhile ends with its
copy's next turn, as orders that arrive in a turn wait for its end anyway.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gleaner.actors.engine.worker.engine_port import StepOutput
from gleaner.actors.engine.worker.port import StepWork
from gleaner.sim.models.batching import ContinuousBatch, Entry, Limits
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.transport.token_frame import Flag

_ENDED = int(Flag.FINISHED | Flag.ABORTED)


@dataclass(slots=True)
class _Copy:
    """A batch, and its turn that is under way: its result, and the seconds until then."""

    batch: ContinuousBatch
    output: StepOutput | None = None
    left_s: float = 0.0
    work: StepWork = field(default_factory=StepWork)


class Copies:
    """See the module. cost, limits: of each of `count` copies."""

    def __init__(self, count: int, cost: EngineCost, limits: Limits, *, vocabulary: int) -> None:
        self.work = StepWork()
        """Work of all turns that are over."""
        self._copies = [_Copy(ContinuousBatch(cost, limits, vocabulary=vocabulary)) for _ in range(count)]
        self._serving = count

    @property
    def batches(self) -> list[ContinuousBatch]:
        """The batch of each copy."""
        return [copy.batch for copy in self._copies]

    @property
    def pending(self) -> int:
        return sum(copy.batch.pending for copy in self._copies)

    @property
    def idle(self) -> bool:
        return all(copy.output is None and copy.batch.idle for copy in self._copies)

    def knows(self, ticket: int) -> bool:
        """This ticket waits or executes."""
        return any(copy.batch.knows(ticket) for copy in self._copies)

    def add(self, entries: Iterable[Entry]) -> None:
        """Queue each where the fewest are."""
        for entry in entries:
            least = min(self.batches[: self._serving], key=lambda batch: batch.pending + batch.executing)
            least.add([entry])

    def abort(self, tickets: Sequence[int]) -> None:
        """End these tickets, waiting, executing or unknown; some later turn has a row for each."""
        left = list(tickets)
        for batch in self.batches:
            here = [ticket for ticket in left if batch.knows(ticket)]
            batch.abort(here)
            left = [ticket for ticket in left if ticket not in here]
        self._copies[0].batch.abort(left)

    def serve(self, count: int) -> None:
        """The first `count` copies take requests from now on; those of the others are aborted."""
        self._drain(self._copies[count:])
        self._serving = count

    def drain(self) -> None:
        """Abort everything. Turns under way yield nothing but the ends of requests, as aborted ones."""
        self._drain(self._copies)

    def _drain(self, copies: Iterable[_Copy]) -> None:
        for copy in copies:
            copy.batch.drain()
            if copy.output is not None:
                ended = copy.output.tickets[(copy.output.flags & _ENDED) != 0]
                copy.batch.abort(ended.tolist())
                copy.output = None

    def retract(self, key_of: Callable[[int], int]) -> list[int] | None:
        """As `ContinuousBatch.retract`, for all copies; None, without effect, if turns are under way."""
        if any(copy.output is not None for copy in self._copies):
            return None
        return [ticket for batch in self.batches for ticket in batch.retract(key_of)]

    def turn(self) -> tuple[StepOutput | None, float]:
        """The next turn of a copy that is over: its frame, and the seconds until then."""
        for copy in self._copies:
            if copy.output is None and not copy.batch.idle:
                before = copy.batch.work
                copy.output, copy.left_s = copy.batch.turn()
                copy.work = copy.batch.work.less(before)
        busy = [copy for copy in self._copies if copy.output is not None]
        if not busy:
            return None, 0.0
        first = min(busy, key=lambda copy: copy.left_s)
        output, seconds = first.output, first.left_s
        first.output = None
        self.work = self.work.plus(first.work, 1.0 / len(busy))
        for copy in busy:
            copy.left_s -= seconds
        return output, seconds
