"""Rounds: the kind of the next step's rollout, and how much of it is launched.

Pure. Source: RollPacker (arXiv 2509.21009, section 3, tail batching). A *draw* is one use of a problem; a
*short* round launches more new draws than count, a *long* one the draws that short ones deferred. A long
round begins as soon as it can be filled, so the queue of deferred draws holds less than a step and the
surplus of one round, and a draw is deferred at most once.
"""

import enum
import math
from dataclasses import dataclass, replace


class Kind(enum.StrEnum):
    """How a step is rolled out."""

    PLAIN = "plain"
    SHORT = "short"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class RoundRule:
    """A job's rounds. prompts, samples: that a step counts; launched_prompts, launched_samples: of a short
    round. drain: the last steps train what is deferred. steps: of the job. ahead: steps whose batches are
    open before their forerunner is trained. refills: groups of a step that may be drawn in place of uniform
    ones; 0: none is dropped."""

    prompts: int
    samples: int
    launched_prompts: int
    launched_samples: int
    steps: int
    drain: bool = True
    ahead: int = 0
    refills: int = 0

    @property
    def surplus(self) -> int:
        """Draws that a short round without spare groups defers, if none is dropped."""
        return self.launched_prompts - self.prompts

    @property
    def most_spare(self) -> int:
        """Spare groups that a short round may launch: where more than half of the groups are uniform, they
        take a part of the surplus."""
        return min(self.launched_prompts, self.refills)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step launches: groups, and samples of each. spare: of the groups, those that are launched
    because so many uniform ones are expected."""

    kind: Kind
    groups: int
    samples: int
    spare: int = 0

    def factor(self, counted: int) -> float:
        """Launched groups without spare ones over those that count, such that `group_policy.launched` gives
        their number: a quotient such as 21 / 19 times 19 is above 21."""
        return math.nextafter((self.groups - self.spare) / counted, 1.0)


def shape_of(rule: RoundRule, step: int, waiting: int, coming: int = 0, spare: int = 0) -> Shape:
    """The round of a step (from 1) with so many deferred draws in the queue, when it begins. With `drain` a
    short one only if the later steps can train all that is deferred then, and with no more spare groups than
    these can train. coming: draws that open rounds are going to defer. spare: see `spare_groups`."""
    later = max(0, rule.steps - step - rule.ahead) * rule.prompts
    room = later - waiting - coming - rule.surplus
    drains = rule.drain and room < 0
    if waiting >= rule.prompts or drains:
        return Shape(Kind.LONG, rule.prompts, rule.samples)
    if rule.drain:
        spare = min(spare, room)  # none of them may turn out to be uniform
    return Shape(Kind.SHORT, rule.launched_prompts + spare, rule.launched_samples, spare)


def spare_groups(rule: RoundRule, counted: int, dropped: int, problems: int) -> int:
    """Groups that a short round launches beside `launched_prompts`, so that uniform groups leave its surplus
    as it is: launched_prompts / (1 - u) in all, where u is the share dropped / (counted + dropped) of
    uniform groups in earlier rounds. No more groups in all than there are problems.

    Groups that were aborted are in neither number: whether they are uniform is not known."""
    if not counted:
        return 0
    wanted = -(-rule.launched_prompts * dropped // counted)
    return max(0, min(wanted, rule.most_spare, problems - rule.launched_prompts))


def room_for_held(rule: RoundRule, step: int, waiting: int, coming: int = 0) -> int:
    """Draws that a short round of this step may defer without a launch: no more than fill a long round, and
    with `drain` no more than the later steps can train. waiting, coming: see `shape_of`."""
    room = rule.prompts - waiting
    if rule.drain:
        later = max(0, rule.steps - step - rule.ahead) * rule.prompts
        room = min(room, later - waiting - coming - rule.surplus)
    return max(0, room)


LEAST_GAIN = 0.03
"""Predicted share of a whole step by which rounds are faster, from which on a job has them (`auto`)."""


def whole_shape(rule: RoundRule, waiting: int) -> Shape:
    """The step of a job that has no rounds now; draws that rounds deferred are trained first."""
    return Shape(Kind.LONG if waiting else Kind.PLAIN, rule.prompts, rule.samples)


def has_rounds(now: bool, gain: float | None) -> bool:
    """Whether a job with `auto` has rounds from the next period on. gain: the predicted one; None:
    unknown."""
    if gain is None:
        return now
    return gain > 0 if now else gain >= LEAST_GAIN


FACTORS = (1.125, 1.25, 1.375, 1.5, 1.75, 2.0)
"""Launched over counted prompts of a short round, from which a plan chooses. A smaller one has periods of
more than nine steps, and few groups of a short round may be long."""


def surpluses(rule: RoundRule, *, begun: bool) -> list[int]:
    """What the surplus of a short round may be in the next period. begun: rounds have been measured, so it
    moves by one step of the grid at most; before, it is free."""
    grid = sorted({math.ceil(round((factor - 1) * rule.prompts, 9)) for factor in FACTORS})
    if not begun:
        return grid
    below, above = ([one for one in grid if side * (one - rule.surplus) > 0] for side in (-1, 1))
    return [*below[-1:], rule.surplus, *above[:1]]


def with_surplus(rule: RoundRule, surplus: int) -> RoundRule:
    """The rule with this surplus of a short round."""
    return replace(rule, launched_prompts=rule.prompts + surplus)


def period_steps(rule: RoundRule, held: int = 0) -> float:
    """Steps from one long round to the next, with it, if no group is dropped, or spare groups make up for
    those that are; inf if nothing is deferred. held: draws that a short round defers without a launch."""
    deferred = rule.surplus + held
    return rule.prompts / deferred + 1 if deferred else math.inf


def oldest_age(rule: RoundRule) -> float:
    """The bound of the steps between a draw's first launch and the step that trains it, without drops. Spare
    groups that were launched for nothing take long rounds of their own."""
    deferred = rule.surplus + rule.most_spare
    return (
        math.ceil(rule.prompts / rule.surplus) + 1 + math.ceil(deferred / rule.prompts)
        if rule.surplus
        else 0.0
    )
