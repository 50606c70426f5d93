"""`RoundDraws`: the draws of a job with rounds, and the long queue.

A draw is one use of a problem, by a number that only grows: draw n is problem n modulo the number of
problems. Owns the cursor of new draws, the draws of each batch with the kind of its round, and the queue of
deferred draws, first deferred first out. A draw leaves the queue when its step is trained, and not when it is
launched: a long round that never ends loses none. Pure: every change is an event in the controller's journal
before any other actor gets it.

Law: the draws launched so far are those trained, those over (uniform, or too long for every engine), those in
the queue, and those of batches that are not settled; no draw is in two of these sets.
"""

import math
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, field, replace

from gleaner.actors.training.draw_events import (
    DrawEvent,
    OtherDraws,
    RoundDrawn,
    RoundRedrawn,
    RoundSettled,
)
from gleaner.actors.training.draw_snapshots import DrawSnapshot, RoundKept, RoundsDrawn
from gleaner.actors.training.problem_history import ProblemHistory
from gleaner.actors.training.problem_order import KEPT_STEPS
from gleaner.actors.training.rounds import (
    Kind,
    RoundRule,
    Shape,
    has_rounds,
    period_steps,
    room_for_held,
    shape_of,
    surpluses,
    whole_shape,
    with_surplus,
)
from gleaner.actors.training.uniform_share import UniformShare

NO_ROUNDS = "rounds.mode: expected off, as the journal of this run has it, got tail"


@dataclass(slots=True)
class _Round:
    """An open or recent round."""

    shape: Shape
    draws: list[int] = field(default_factory=list)
    settled: bool = False

    def kept(self, batch: str) -> RoundKept:
        """As in a snapshot."""
        shape = self.shape
        return RoundKept(
            batch=batch,
            kind=shape.kind,
            groups=shape.groups,
            samples=shape.samples,
            draws=tuple(self.draws),
            settled=self.settled,
            spare=shape.spare,
        )


class RoundDraws:
    """See the module.

    Args:
        problems: of the training split.
        own_seeds: a deferred draw keeps the seeds of its first launch.
        auto: steps are whole until `consider` finds that rounds are faster.
        history: draws of problems that were long before are deferred without a launch.
        planned: the surplus of short rounds is what `choose` was given last, from the rule's on.
    """

    def __init__(
        self,
        problems: int,
        rule: RoundRule,
        *,
        own_seeds: bool = True,
        auto: bool = False,
        planned: bool = False,
        history: bool = False,
    ) -> None:
        self._problems, self._rule, self._own_seeds, self._auto = problems, rule, own_seeds, auto
        self._planned = planned
        self._history = ProblemHistory(problems) if history else None
        self._uniform = UniformShare() if rule.refills else None
        self._held = 0  # by the newest short round
        self._rounds_now = not auto
        self._last_kind = Kind.PLAIN  # of the newest batch
        self._cursor = 0
        self._queue: dict[int, int] = {}  # deferred draws in order, each with the step that launched it first
        self._launched: dict[int, int] = {}  # of open batches: draws with the step that launched them first
        self._rounds: dict[str, _Round] = {}

    @property
    def waiting(self) -> int:
        """Deferred draws in the queue, those of open rounds included."""
        return len(self._queue)

    @property
    def cursor(self) -> int:
        """New draws so far."""
        return self._cursor

    @property
    def rule(self) -> RoundRule:
        """The rule of the job's rounds, with the surplus of the newest short round or of the next one."""
        return self._rule

    @property
    def spare(self) -> int:
        """Spare groups of the next short round, as far as the end of the job has room for them."""
        return 0 if self._uniform is None else self._uniform.spare(self._rule, self._problems)

    def consider(self, gain: float | None) -> None:
        """Have rounds or whole steps from the next period on (`auto`). gain: see `Plan.tail_gain`."""
        if self._auto and self._last_kind is not Kind.SHORT:
            self._rounds_now = has_rounds(self._rounds_now, gain)

    def may_begin(self, batch: str, step: int) -> bool:
        """Whether the batch of this step becomes a short round as soon as rounds are found to be faster."""
        if self._rounds_now or batch in self._rounds:
            return False
        return shape_of(self._rule, step, self._free(), self._coming()).kind is Kind.SHORT

    def begin(self, gain: float | None) -> None:
        """Have rounds from the next batch on, if a job of whole steps gains enough by them (`auto`)."""
        if not self._rounds_now:
            self.consider(gain)

    def choices(self) -> list[int]:
        """What the surplus may be from the next step on; none while it stays: in a period, and in a job whose
        plans do not decide it."""
        if not self._planned or self._last_kind is Kind.SHORT:
            return []
        return surpluses(self._rule, begun=self._last_kind is Kind.LONG)

    def choose(self, surplus: int | None) -> None:
        """Have this surplus in the period that begins. None, or one that may not be now: as it is."""
        if surplus is not None and surplus in self.choices():
            self._rule = with_surplus(self._rule, surplus)

    @property
    def shorts(self) -> float:
        """Short rounds for each long one, if no group is dropped; inf if there is never a long one."""
        period = period_steps(self._rule, self._held)
        return period if math.isinf(period) else min(period, float(self._rule.steps)) - 1

    def oldest(self) -> int | None:
        """The step that first launched the oldest draw in the queue; None if it is empty."""
        return min(self._queue.values(), default=None)

    def queued(self) -> list[int]:
        """The draws in the queue, first deferred first."""
        return list(self._queue)

    def numbers(self, batch: str) -> list[int]:
        """The draws of a batch, by group."""
        one = self._rounds.get(batch)
        return [] if one is None else one.draws

    def of(self, batch: str) -> list[int]:
        """The problems of its groups that are drawn so far."""
        return [number % self._problems for number in self.numbers(batch)]

    def seed_place(self, batch: str, group: int) -> tuple[str, int]:
        """The batch and the group whose seeds the group has: those of its draw in a job without rounds."""
        if not self._own_seeds:
            return batch, group
        step, place = divmod(self.numbers(batch)[group], self._rule.prompts)
        return f"step-{step + 1}", place

    def shape(self, batch: str, step: int) -> Shape:
        """The round of this step: as it was drawn, else as the queue has it now."""
        one = self._rounds.get(batch)
        if one is not None:
            return one.shape
        if not self._rounds_now:
            return whole_shape(self._rule, self._free())
        return shape_of(self._rule, step, self._free(), self._coming(), self.spare)

    def draw(self, batch: str, until: int, step: int) -> RoundDrawn | None:
        """The event that gives the batch draws for its groups up to `until`; None when it has them, or is
        settled: no step would train them. Later draws of a long round come from the queue first."""
        one = self._rounds.get(batch)
        if one is not None and one.settled:
            return None
        shape = self.shape(batch, step)
        first = len(self.numbers(batch))
        count = until - first
        if count <= 0:
            return None
        taken = self._in_rounds()
        deferred = [one for one in self._queue if one not in taken][:count]
        if shape.kind is not Kind.LONG:
            deferred = []
        spare = shape.spare if one is None else 0
        held = self._to_hold(step, count, spare) if one is None and shape.kind is Kind.SHORT else ()
        cursor = self._cursor + count - len(deferred) + len(held)
        new = [number for number in range(self._cursor, cursor) if number not in held]
        return RoundDrawn(
            batch=batch,
            kind=shape.kind,
            samples=shape.samples,
            first=first,
            draws=(*deferred, *new),
            cursor=cursor,
            held=held,
            spare=spare,
        )

    def redraw(self, batch: str, unfit: Mapping[int, int]) -> RoundRedrawn | None:
        """The event that gives these groups, by number with the problem that fits no engine, new draws; None
        when all of them have others already."""
        drawn = self.of(batch)
        groups = tuple(group for group, index in sorted(unfit.items()) if drawn[group] == index)
        if not groups:
            return None
        cursor = self._cursor + len(groups)
        draws = tuple(range(self._cursor, cursor))
        return RoundRedrawn(batch=batch, groups=groups, draws=draws, cursor=cursor)

    def settle(self, batch: str, kept: Collection[int], dropped: Collection[int]) -> RoundSettled | None:
        """The event that ends a round: groups that counted, and uniform ones that were dropped. None if it is
        settled already, or was never drawn."""
        one = self._rounds.get(batch)
        if one is None or one.settled:
            return None
        over = tuple(number for group, number in enumerate(one.draws) if group in dropped)
        used = {*kept, *dropped}
        deferred = tuple(sorted(number for group, number in enumerate(one.draws) if group not in used))
        return RoundSettled(batch=batch, over=over, deferred=deferred)

    def after(self, batch: str, kept: Collection[int], dropped: Collection[int]) -> "RoundDraws":
        """The draws as they will be when this batch is settled so, to look at its next round. They share
        nothing that changes with these."""
        later = copy(self)
        later._history, later._uniform = None, copy(self._uniform)
        later._queue, later._launched = dict(self._queue), dict(self._launched)
        later._rounds = {name: replace(one, draws=list(one.draws)) for name, one in self._rounds.items()}
        if (event := later.settle(batch, kept, dropped)) is not None:
            later.apply(event)
        return later

    def apply(self, event: DrawEvent) -> None:
        """Change by one event. Raises OtherDraws for one of a job without rounds."""
        match event:
            case RoundDrawn():
                launched = Shape(Kind(event.kind), len(event.draws), event.samples, event.spare)
                if event.first == 0:
                    self._began(launched)
                    self._hold(event.batch, event.held)
                one = self._rounds.setdefault(event.batch, _Round(launched))
                one.draws.extend(event.draws)
                self._enter(event.batch, event.draws, event.cursor)
            case RoundRedrawn():
                one = self._rounds[event.batch]
                for group, number in zip(event.groups, event.draws, strict=True):
                    self._launched.pop(one.draws[group], None)
                    self._queue.pop(one.draws[group], None)
                    one.draws[group] = number
                self._enter(event.batch, event.draws, event.cursor)
            case RoundSettled():
                self._settled(event)
            case _:
                raise OtherDraws(NO_ROUNDS)

    def finished(self, step: int) -> None:
        """The step is on record, so draws of much earlier steps may be dropped."""
        while len(self._rounds) > KEPT_STEPS:
            oldest = next(iter(self._rounds))
            if not self._rounds[oldest].settled:
                return
            del self._rounds[oldest]

    def snapshot(self) -> RoundsDrawn:
        """The order now, in place of all events so far. It has the choice of the newest plan too, which is in
        no event."""
        return RoundsDrawn(
            cursor=self._cursor,
            queue=tuple(self._queue.items()),
            launched=tuple(self._launched.items()),
            rounds=tuple(one.kept(batch) for batch, one in self._rounds.items()),
            newest=self._last_kind,
            on=self._rounds_now,
            surplus=self._rule.surplus,
            held=self._held,
            holds=() if self._history is None else self._history.holds(),
            uniform=() if self._uniform is None else self._uniform.rounds(),
        )

    def restore(self, snapshot: DrawSnapshot) -> None:
        """Have the order of the snapshot. Raises OtherDraws for one of a job without rounds."""
        if not isinstance(snapshot, RoundsDrawn):
            raise OtherDraws(NO_ROUNDS)
        self._cursor, self._held = snapshot.cursor, snapshot.held
        self._queue, self._launched = dict(snapshot.queue), dict(snapshot.launched)
        self._rounds = {
            one.batch: _Round(
                Shape(Kind(one.kind), one.groups, one.samples, one.spare), list(one.draws), one.settled
            )
            for one in snapshot.rounds
        }
        self._last_kind = Kind(snapshot.newest)
        if self._auto:
            self._rounds_now = snapshot.on
        if self._planned:
            self._rule = with_surplus(self._rule, snapshot.surplus)
        if self._history is not None:
            self._history.restore(snapshot.holds)
        if self._uniform is not None:
            self._uniform.restore(snapshot.uniform)

    def _began(self, shape: Shape) -> None:
        """The newest batch has this round; later draws of an earlier one are none."""
        self._last_kind = shape.kind
        if self._planned and shape.kind is Kind.SHORT:
            self._rule = with_surplus(self._rule, shape.groups - shape.spare - self._rule.prompts)
        if self._auto and shape.kind is not Kind.LONG:
            self._rounds_now = shape.kind is Kind.SHORT

    def _to_hold(self, step: int, count: int, spare: int) -> tuple[int, ...]:
        """The new draws that a short round of so many others, spare ones included, defers without a
        launch."""
        if self._history is None:
            return ()
        room = room_for_held(self._rule, step, self._free(), self._coming() + spare)
        return self._history.to_hold(self._cursor, count, room)

    def _hold(self, batch: str, held: Collection[int]) -> None:
        if self._last_kind is Kind.SHORT:
            self._held = len(held)
        for number in held:
            self._queue[number] = _step_of(batch)
            if self._history is not None:
                self._history.held(number)

    def _enter(self, batch: str, draws: Collection[int], cursor: int) -> None:
        step = _step_of(batch)
        for number in draws:
            if number >= self._cursor:
                self._launched[number] = step
        self._cursor = cursor

    def _settled(self, event: RoundSettled) -> None:
        one = self._rounds[event.batch]
        one.settled = True
        kept_back = set(event.deferred)
        if self._uniform is not None and one.shape.kind is not Kind.LONG:
            dropped = len(event.over)
            self._uniform.settled(len(one.draws) - len(kept_back) - dropped, dropped)
        if self._history is not None and one.shape.kind is Kind.SHORT:
            for number in one.draws:
                if number in kept_back:
                    self._history.deferred(number)
                elif number not in event.over:
                    self._history.counted(number)
        for number in one.draws:
            if number in kept_back:
                if number not in self._queue:
                    self._queue[number] = self._launched[number]
            else:
                self._queue.pop(number, None)
            self._launched.pop(number, None)

    def _coming(self) -> int:
        """Draws that open short rounds are going to defer."""
        short = [one for one in self._rounds.values() if not one.settled and one.shape.kind is Kind.SHORT]
        return sum(one.shape.groups - self._rule.prompts for one in short)

    def _in_rounds(self) -> set[int]:
        """Draws of rounds that are not settled."""
        return {number for one in self._rounds.values() if not one.settled for number in one.draws}

    def _free(self) -> int:
        """Deferred draws that no open round has."""
        return len(self._queue.keys() - self._in_rounds())


def _step_of(batch: str) -> int:
    return int(batch.rpartition("-")[2])
