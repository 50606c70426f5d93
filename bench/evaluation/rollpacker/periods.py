"""Figures of a cell with rounds beside the same job without them.

Owns the arithmetic from results of cells to the page's figures. Everything is a ratio, and a mean over whole
periods: with the default seeds, whole periods train the very draws that as many plain steps train. Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.evaluation.cells import Cell
from bench.evaluation.simulated import CellResult, StepLine

PLAIN, SHORT, LONG = "plain", "short", "long"


@dataclass(frozen=True, slots=True)
class Shares:
    """A job beside the plain one of the same seed, over the same number of steps. gain: a plain step over a
    mean step. short, long: seconds of rollout in such a round over those of a plain step, None without one.
    short_step, long_step: the same of whole steps, where training goes on beside rollout.
    aborted: tokens that were made and thrown away, a share of all that were made. length: mean tokens of
    trained responses over those of the plain job. reward: mean true reward, less that of the plain job.
    shown: trained over launched length as `rlctl rounds` has it, None without a whole period. periods: short
    and long rounds of each whole period."""

    steps: int
    gain: float
    short: float | None
    long: float | None
    short_step: float | None
    long_step: float | None
    aborted: float
    length: float
    reward: float
    shown: float | None
    periods: tuple[tuple[int, int], ...]


class Found:
    """Results of cells, by cell."""

    def __init__(self, results: Iterable[CellResult]) -> None:
        self._all = {one.cell: one for one in results if one.ok}

    def every(self) -> list[CellResult]:
        """All successful results."""
        return list(self._all.values())

    def of(self, cell: Cell) -> CellResult | None:
        """The result of this cell."""
        return self._all.get(cell)

    def pairs(
        self,
        make: Callable[[int], Cell],
        base: Callable[[int], Cell],
        seeds: Iterable[int],
        until: int | None = None,
    ) -> dict[int, Shares]:
        """The shares of a cell against its base, for each seed with both; see `shares`."""
        found = {}
        for seed in seeds:
            one, plain = self.of(make(seed)), self.of(base(seed))
            if one is not None and plain is not None:
                found[seed] = shares(one, plain, until)
        return found


def in_common(tables: Sequence[dict[int, Shares]]) -> list[dict[int, Shares]]:
    """The same without seeds that some of them lack, so that rows can be compared; tables without any result
    do not count."""
    seeds = [set(table) for table in tables if table]
    shared = set[int].intersection(*seeds) if seeds else set[int]()
    return [{seed: one for seed, one in table.items() if seed in shared} for table in tables]


def whole_steps(result: CellResult) -> list[StepLine]:
    """The steps of whole periods; all of them where nothing is deferred."""
    if not any(one.deferred for one in result.rounds):
        return result.steps
    inside = [(one.first, one.last) for one in result.periods if one.whole]
    return [step for step in result.steps if any(first <= step.step <= last for first, last in inside)]


def shares(result: CellResult, plain: CellResult, until: int | None = None) -> Shares:
    """The figures of `result`, up to the step `until`. Raises ValueError for one without a whole
    period, or with more steps than the plain job."""
    last = until or len(result.steps)
    steps = [step for step in whole_steps(result) if step.step <= last]
    numbers = {step.step for step in steps}
    base = [step for step in plain.steps if step.step in numbers]
    if not steps or len(base) != len(steps):
        raise ValueError(
            f"{result.cell.name}: expected a whole period and as many plain steps, got {len(steps)} steps "
            f"of whole periods and {len(base)} plain ones"
        )
    rounds = {one.step: one for one in result.rounds}
    of = {
        kind: [step for step in steps if step.step in rounds and rounds[step.step].round == kind]
        for kind in (SHORT, LONG)
    }
    aborted = sum(one.aborted_tokens for number, one in rounds.items() if number in numbers)
    trained = sum(step.tokens for step in steps)
    rolled_s, plain_s = rollout_s(base), _mean(step.step_s for step in base)
    periods = [one for one in result.periods if one.whole and one.last <= last]
    known = [one.bias for one in periods if one.bias is not None]
    return Shares(
        steps=len(steps),
        gain=plain_s / _mean(step.step_s for step in steps),
        short=_over(rollout_s(of[SHORT]), rolled_s),
        long=_over(rollout_s(of[LONG]), rolled_s),
        short_step=_over(_step_s(of[SHORT]), plain_s),
        long_step=_over(_step_s(of[LONG]), plain_s),
        aborted=aborted / (aborted + trained),
        length=mean_length(steps) / mean_length(base),
        reward=mean_reward(steps) - mean_reward(base),
        shown=_mean(known) if known else None,
        periods=tuple((one.short, one.long) for one in periods),
    )


def rollout_s(steps: Sequence[StepLine]) -> float | None:
    """Mean seconds from a step's begin to its last response, without training beside it; None of none."""
    return _mean(step.seeding_s + step.waiting_s for step in steps) if steps else None


def _step_s(steps: Sequence[StepLine]) -> float | None:
    return _mean(step.step_s for step in steps) if steps else None


def rollout_share(result: CellResult) -> float:
    """Rollout in rollout and training of all steps."""
    rolled = sum(step.seeding_s + step.waiting_s for step in result.steps)
    return rolled / (rolled + sum(step.training_s for step in result.steps))


def mean_length(steps: Sequence[StepLine]) -> float:
    """Mean tokens of a trained response."""
    return sum(step.tokens for step in steps) / sum(step.samples for step in steps)


def mean_reward(steps: Sequence[StepLine]) -> float:
    """Mean true reward of a trained response."""
    scored = [step for step in steps if step.reward is not None]
    return sum((step.reward or 0.0) * step.samples for step in scored) / sum(step.samples for step in scored)


def _over(some: float | None, other: float | None) -> float | None:
    return some / other if some is not None and other else None


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
