"""`ProblemOrder`: order of the training problems, reproducible after a restart.

Owns the order: the problems of the training split one after the other, and again from the first when all were
drawn. Problems that a step drew and aborted are drawn again before new ones. Pure: a draw is an event in the
controller's journal before any other actor gets it. So the groups of a batch have the same problems for every
request and every repetition.
"""

from collections import deque
from collections.abc import Collection, Mapping

from gleaner.actors.training.draw_events import DrawEvent, Drawn, OtherDraws, Redrawn, Returned
from gleaner.actors.training.draw_snapshots import DrawSnapshot, ProblemsDrawn
from gleaner.actors.training.rounds import Shape

KEPT_STEPS = 32
"""Batches whose problems are kept: twice as many as may be open."""
HAS_ROUNDS = "rounds.mode: expected tail, as the journal of this run has it, got off"


class ProblemOrder:
    """See the module.

    Args:
        problems: of the training split.
        prompts: a step's; for journals of a time when nothing was journaled about draws.
    """

    def __init__(self, problems: int, prompts: int) -> None:
        self._problems, self._prompts = problems, prompts
        self._cursor = 0
        self._waiting: deque[int] = deque()  # returned; no more than one step's surplus a step
        self._batches: dict[str, list[int]] = {}
        self._settled: set[str] = set()  # of `_batches`

    def of(self, batch: str) -> list[int]:
        """The problems of its groups that are drawn so far."""
        return self._batches.get(batch, [])

    def seed_place(self, batch: str, group: int) -> tuple[str, int]:
        """The batch and the group whose seeds the group has: its own."""
        return batch, group

    def shape(self, batch: str, step: int) -> Shape | None:
        """What this step launches: as every step."""

    def draw(self, batch: str, until: int, step: int = 0) -> Drawn | None:
        """The event that gives the batch problems for its groups up to `until`; None when it has them."""
        first = len(self.of(batch))
        count = until - first
        if count <= 0:
            return None
        indices, returned, cursor = self._next(count)
        return Drawn(batch=batch, first=first, indices=indices, returned=returned, cursor=cursor)

    def redraw(self, batch: str, unfit: Mapping[int, int]) -> Redrawn | None:
        """The event that gives these groups, by number with the problem that fits no engine, the next ones in
        its place; None when all of them have others already."""
        drawn = self.of(batch)
        groups = tuple(group for group, index in sorted(unfit.items()) if drawn[group] == index)
        if not groups:
            return None
        indices, returned, cursor = self._next(len(groups))
        return Redrawn(batch=batch, groups=groups, indices=indices, returned=returned, cursor=cursor)

    def _next(self, count: int) -> tuple[tuple[int, ...], int, int]:
        """The next problems, the number of returned ones among them, and the cursor behind them."""
        again = list(self._waiting)[:count]
        cursor = self._cursor + count - len(again)
        new = [number % self._problems for number in range(self._cursor, cursor)]
        return (*again, *new), len(again), cursor

    def settle(self, batch: str, kept: Collection[int], dropped: Collection[int]) -> Returned | None:
        """The event that gives the problems of all other groups back; None when there are none to give."""
        used = {*kept, *dropped}
        return self.give_back(batch, [group for group in range(len(self.of(batch))) if group not in used])

    def give_back(self, batch: str, groups: list[int]) -> Returned | None:
        """The event that gives the problems of aborted groups back; None when there are none to give."""
        drawn = self.of(batch)
        indices = tuple(drawn[group] for group in groups if group < len(drawn))
        return Returned(batch=batch, indices=indices) if indices and batch not in self._settled else None

    def apply(self, event: DrawEvent) -> None:
        """Change by one event. Raises OtherDraws for one of a job with rounds."""
        if isinstance(event, Returned):
            self._waiting.extend(event.indices)
            self._settled.add(event.batch)
            return
        if not isinstance(event, Drawn | Redrawn):
            raise OtherDraws(HAS_ROUNDS)
        self._cursor = event.cursor
        for _ in range(event.returned):
            self._waiting.popleft()
        if isinstance(event, Redrawn):
            drawn = self._batches[event.batch]
            for group, index in zip(event.groups, event.indices, strict=True):
                drawn[group] = index
            return
        self._batches.setdefault(event.batch, []).extend(event.indices)

    def finished(self, step: int) -> None:
        """The step is on record, so draws of much earlier steps may be dropped."""
        if f"step-{step}" not in self._batches:  # an older program drew by the number of the step alone
            self._cursor = max(self._cursor, step * self._prompts)
        while len(self._batches) > KEPT_STEPS:
            oldest = next(iter(self._batches))
            del self._batches[oldest]
            self._settled.discard(oldest)

    def snapshot(self) -> ProblemsDrawn:
        """The order now, in place of all events so far."""
        return ProblemsDrawn(
            cursor=self._cursor,
            waiting=tuple(self._waiting),
            batches={batch: tuple(indices) for batch, indices in self._batches.items()},
            settled=tuple(sorted(self._settled)),
        )

    def restore(self, snapshot: DrawSnapshot) -> None:
        """Have the order of the snapshot. Raises OtherDraws for one of a job with rounds."""
        if not isinstance(snapshot, ProblemsDrawn):
            raise OtherDraws(HAS_ROUNDS)
        self._cursor = snapshot.cursor
        self._waiting = deque(snapshot.waiting)
        self._batches = {batch: list(indices) for batch, indices in snapshot.batches.items()}
        self._settled = set(snapshot.settled)
