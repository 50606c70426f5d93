"""Seeding windows are opened: a step seeds as long as its plan says, while responses are missing.

Owns the trainer's present step, its plan and its window. `seeding` has the opposite: windows that are too
long.

A batch that was rolled out ahead may be complete when its step begins: the trainer then looks at the batch
first, and opens no window. The batch counts as it is when the manager answers that look. Before, the order
and the look may be under way for long on a bad link, and a trainer that dies in between looks again.
"""

from collections.abc import Iterable

from gleaner.actors.names import TRAINER
from gleaner.actors.protocol.cluster import SaveState
from gleaner.actors.protocol.rollout import Groups, TakeGroups
from gleaner.actors.protocol.training import CloseSeeding, OpenSeeding, TrainStep
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Fact, MessagePassed
from gleaner.chaos.invariants.seeding import LATE_S
from gleaner.chaos.invariants.shadow import Shadow


class WindowsOpen(Check):
    """See `promise`."""

    fact_kinds = (MessagePassed,)
    message_kinds = (TrainStep, OpenSeeding, CloseSeeding, TakeGroups, Groups, SaveState)
    name = "planned window"
    promise = "a step lends the trainer's device to rollout for its planned window, while groups are missing"
    meaning = "If this fails, the plan of a window changes nothing: the trainer idles while it could decode."

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self._step, self._plan_s, self._batch = -1, 0.0, ""
        self._missing = 0  # requests that were not over when the step began, or its trainer looked
        self._looks: int | None = None  # incarnation of the trainer whose look the manager has to answer
        self._looked: int | None = None  # incarnation of the trainer whose look was answered
        self._opened_s: float | None = None
        self._was_open = False
        self._remaining = 0

    def see(self, fact: Fact) -> Iterable[str]:
        if not isinstance(fact, MessagePassed):
            return
        message = fact.message
        if isinstance(message, TrainStep):
            if fact.to == TRAINER and fact.direction == "in" and message.step != self._step:
                self._begin(message)
        elif isinstance(message, TakeGroups):
            if fact.source == TRAINER and fact.direction == "in":
                self._look(message)
        elif isinstance(message, Groups):
            if fact.to == TRAINER and fact.direction == "in":
                self._remaining = message.remaining
            elif fact.to == TRAINER and self._looks is not None:
                self._looked, self._looks = self._looks, None
                self._missing = self._not_over()
        elif fact.source != TRAINER or fact.direction == "in":
            return
        elif isinstance(message, OpenSeeding):
            if not self._was_open:  # later ones of a step only bridge the time without an instance
                self._was_open, self._opened_s = True, fact.at_s
        elif isinstance(message, CloseSeeding):
            if self._opened_s is not None and self._remaining:
                open_s, self._opened_s = fact.at_s - self._opened_s, None
                if self._plan_s - open_s > LATE_S:
                    yield (
                        f"step {self._step}: a window of {self._plan_s:.2f} s was closed after "
                        f"{open_s:.2f} s, and {self._remaining} groups are missing"
                    )
        elif isinstance(message, SaveState) and message.step == self._step:
            if self._plan_s > LATE_S and self._missing and not self._was_open:
                yield (
                    f"step {self._step} had a window of {self._plan_s:.2f} s and opened none; "
                    f"{self._missing} of its requests were not over"
                )
            self._step = -1

    def _begin(self, order: TrainStep) -> None:
        self._step, self._plan_s, self._batch = order.step, order.t_seed_s, order.batch
        self._was_open, self._opened_s, self._remaining = False, None, 0
        self._looks = self._looked = None
        self._missing = self._not_over()

    def _look(self, ask: TakeGroups) -> None:
        """The manager got a question of the trainer. The first one of a trainer that waits for nothing is its
        look at the batch."""
        if ask.batch == self._batch and ask.wait_s == 0 and ask.taker != self._looked:
            self._looks = ask.taker

    def _not_over(self) -> int:
        requests = [one for one in self._shadow.requests.values() if one.batch == self._batch]
        return sum(not (one.finished or one.dropped) for one in requests)
