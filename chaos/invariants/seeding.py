"""Seeding window: ends as planned, or when an instance serves.

The trainer's device is lent as long as planned, or until an instance serves. Owns the open window of the
trainer, and since when a preemptible instance serves the version of its batch.
"""

from collections.abc import Iterable

from gleaner.actors.names import BALANCER, TRAINER
from gleaner.actors.protocol.balancer import ForgetAll, InstanceDown, InstanceServes, InstanceUp
from gleaner.actors.protocol.rollout import Groups, TakeGroups
from gleaner.actors.protocol.training import CloseSeeding, HalveSeeding, OpenSeeding, TrainStep
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Fact, MessagePassed
from gleaner.supervisor import Message

LATE_S = 0.5
"""From the moment at which a window should end to the order that ends it: two messages, and a turn of each
actor. Not counted: the time of the manager's answer beyond its budget, and that for which a question of the
trainer or its answer is under way after that moment. A bad link delays and loses both, each repeated part of
a message costs a resend period, and neither the trainer nor the manager can end a window sooner. Nor is the
rest of a micro-batch that half of the devices train when the window should end."""


class SeedingEnds(Check):
    """See `promise`."""

    fact_kinds = (MessagePassed,)
    message_kinds = (
        TrainStep, OpenSeeding, HalveSeeding, CloseSeeding, TakeGroups, Groups,
        ForgetAll, InstanceUp, InstanceDown, InstanceServes,
    )  # fmt: skip
    name = "seeding window"
    promise = "a seeding window is as long as planned, and longer only until the first instance serves"
    meaning = (
        "If this fails, the trainer's device decodes while others could, and trains nothing: the step takes "
        "longer by what the window is too long."
    )

    def __init__(self) -> None:
        self._plan_s = 0.0
        self._version: int | None = None  # of the open window; None: there is none
        self._began_s: float | None = None  # when groups were first asked for in it
        self._asked: tuple[float, float] | None = None  # when they were asked for, and for how long at most
        self._taken_s: float | None = None  # when the manager got that question
        self._replied_s: float | None = None  # when it sent the answer
        self._answer_late_s: float | None = None  # of the newest answer to it
        self._late_s = 0.0  # of the manager's answers in this window
        self._halved = False  # half of the engines have left it
        self._trains_s: float | None = None  # since when the trainer may train: it waits for no answer
        self._preemptible: set[tuple[str, int]] = set()
        self._serving: dict[tuple[str, int], int] = {}  # the version
        self._served_s: float | None = None  # since when an instance serves the window's version

    def see(self, fact: Fact) -> Iterable[str]:
        if not isinstance(fact, MessagePassed):
            return
        message = fact.message
        if fact.to == BALANCER:
            self._reported(message)
        elif isinstance(message, TrainStep):
            self._plan_s = message.t_seed_s
        elif fact.to == TRAINER and isinstance(message, Groups):
            self._answer(fact)
        elif fact.source == TRAINER and fact.direction != "in":
            yield from self._sent(fact)
        elif fact.source == TRAINER and isinstance(message, TakeGroups) and self._taken_s is None:
            self._taken_s = fact.at_s
        serves = self._version is not None and max(self._serving.values(), default=-1) >= self._version
        if not serves:
            self._served_s = None
        elif self._served_s is None:
            self._served_s = fact.at_s

    @property
    def _due_s(self) -> float | None:
        """When the window should end; None: not yet."""
        if self._began_s is None or self._served_s is None:
            return None
        return max(self._began_s + self._plan_s, self._served_s)

    def _answer(self, fact: MessagePassed) -> None:
        """The manager sends an answer, or the trainer gets it."""
        if fact.direction == "out":
            if self._taken_s is not None and self._replied_s is None:
                self._replied_s = fact.at_s  # the same question, asked again, gets the same answer once more
        elif self._asked is not None:
            asked_s, wait_s = self._asked
            # the last one counts: others answer questions of an earlier life of the trainer
            self._answer_late_s = max(
                0.0, fact.at_s - asked_s - wait_s, self._under_way_s(asked_s, fact.at_s)
            )
            self._trains_s = fact.at_s if self._halved else None

    def _under_way_s(self, asked_s: float, answered_s: float) -> float:
        """For how long the question and its answer were under way after the window should have ended."""
        due_s = self._due_s
        if due_s is None or self._taken_s is None or self._replied_s is None:
            return 0.0
        return max(0.0, self._taken_s - max(asked_s, due_s)) + max(
            0.0, answered_s - max(self._replied_s, due_s)
        )

    def _sent(self, fact: MessagePassed) -> Iterable[str]:
        """A message from the trainer."""
        message = fact.message
        if self._answer_late_s is not None and isinstance(message, TakeGroups | CloseSeeding):
            self._late_s += self._answer_late_s
            self._asked = self._answer_late_s = None
        if self._trains_s is not None and isinstance(message, TakeGroups | CloseSeeding):
            due_s = self._due_s
            if due_s is not None and self._trains_s < due_s:  # one that begins later is late
                self._late_s += max(0.0, fact.at_s - due_s)
            self._trains_s = None
        if isinstance(message, HalveSeeding):
            self._halved, self._trains_s = True, fact.at_s
        elif isinstance(message, TakeGroups):
            if self._asked is not None:  # lost, or the manager restarted: it gets the whole time again
                self._late_s += fact.at_s - self._asked[0]
            self._asked = fact.at_s, message.wait_s
            self._taken_s = self._replied_s = None
            if self._version is not None and self._began_s is None:
                self._began_s = fact.at_s
        elif isinstance(message, OpenSeeding):
            self._version, self._began_s, self._late_s, self._asked = message.version, None, 0.0, None
            self._answer_late_s = None
            self._halved, self._trains_s = False, None
        elif isinstance(message, CloseSeeding):
            due_s = self._due_s
            if self._began_s is not None and due_s is not None:
                late_s = fact.at_s - due_s - self._late_s
                if late_s > LATE_S:
                    yield (
                        f"a window of {self._plan_s:.2f} s was open for {fact.at_s - self._began_s:.2f} s, "
                        f"{late_s:.2f} s longer than planned with an instance that serves"
                    )
            self._version = self._began_s = None

    def _reported(self, message: Message) -> None:
        """A report from the manager about its instances."""
        if isinstance(message, ForgetAll):
            self._preemptible.clear()
            self._serving.clear()
        elif isinstance(message, InstanceUp):
            for key in [one for one in self._serving if one[0] == message.instance]:
                del self._serving[
                    key
                ]  # the balancer has one incarnation of a name, and this one serves nothing yet
            if message.kind == "preemptible":
                self._preemptible.add((message.instance, message.incarnation))
        elif isinstance(message, InstanceDown | InstanceServes):
            key = (message.instance, message.incarnation)
            if isinstance(message, InstanceDown) or message.version is None:
                self._serving.pop(key, None)
            elif key in self._preemptible:
                self._serving[key] = message.version
