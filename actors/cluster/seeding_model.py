"""`ModelPolicy`: T_seed and N_prem from a model of the step.

An alternative to Algorithm 1 (RLBoost 4.1) with the same interface.

Owns the choice. Pure. Algorithm 1 balances two waits, and where they are equal the step is not the shortest
(docs/seeding.md). Here the coming step is predicted for every window and number of instances (`step_model`),
from lengths, engines and trainer as they were measured (`learnt`):

- T_seed is the window with the shortest predicted step for the n̂ instances that are there;
- where the job has stairs, half of the engines leave at the time with the shortest predicted step, if it is
  clearly shorter than with all of them;
- N_prem is the number of instances with the lowest predicted cost of a token, each with its best window:
  (price of the reserved hosts + n * price of an instance) * step time; time itself may be given a value
  (`seeding.time_weight`). An instance that shortens no step only costs, so it is never wanted.

The model is corrected by its errors: `pace` by the measured step, with its own lengths and window, so that
neither luck with lengths nor a change of the window is taken for an error. While data are missing, Algorithm
1 decides; its state goes on beside the model's all the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gleaner.actors.cluster.round_parts import Groups, TailPlan, evenly, gain_of, parts_of
from gleaner.actors.cluster.round_surplus import MOST_GROUPS, best_surplus, period_s, whole_groups
from gleaner.actors.cluster.seeding import KindState, SeedingPolicy, SeedingState
from gleaner.actors.cluster.step_engines import Floats
from gleaner.actors.cluster.step_model import Machines, Work, predict
from gleaner.actors.cluster.step_statistics import StepStatistics, coming, learn, ready, with_machines
from gleaner.actors.cluster.unseen_rounds import guessed_long, of_whole_steps
from gleaner.actors.protocol.step_times import StepTimes
from gleaner.configs.schema import Prices, Seeding

WINDOWS = 7  # tried at a time
ROUNDS = 3  # of windows, each around the best one of the round before
MOST_COUNTS = 8  # numbers of instances tried
LEAST_STEP_S = 5.0  # a plan takes some tenths of a second, more than it would gain in shorter steps
COARSE = 2  # of so many groups one represents all, in the table of all windows and numbers
FEW = 12  # groups, of which none is left out
STAIRS = 16  # times tried, evenly over the window
STAIR_GAIN = 0.01  # of a step: below it all engines stay, as requests move for nothing
CLEARLY = 0.005  # cheaper by so much: N_prem does not follow the noise of a step


class ModelPolicy:
    """Plans steps by the model. `reserved_hosts` are paid for in any case."""

    def __init__(
        self, fallback: SeedingPolicy, settings: Seeding, prices: Prices, reserved_hosts: int
    ) -> None:
        self.fallback, self.settings, self.prices = fallback, settings, prices
        self.reserved_hosts = reserved_hosts

    def initial(self, reserved_engines: int = 0) -> SeedingState:
        """As Algorithm 1."""
        return self.fallback.initial(reserved_engines)

    def next(self, state: SeedingState, times: StepTimes) -> SeedingState:
        """The settings of the next step."""
        rule_s = state.t_seed_s if state.rule_s is None else state.rule_s
        after = self.fallback.next(msgspec.structs.replace(state, t_seed_s=rule_s), times)
        learnt = learn(state.learnt or StepStatistics(), times, self.fallback.n_reserved)
        planned = self._planned(learnt, times, state.n_prem)
        if planned is None:
            return msgspec.structs.replace(after, rule_s=None, predicted_s=0.0, learnt=learnt)
        return SeedingState(
            t_seed_s=planned.t_seed_s,
            n_prem=planned.n_prem,
            memory=after.memory,
            rule_s=after.t_seed_s,
            predicted_s=planned.predicted_s,
            stair_s=planned.stair_s,
            learnt=learnt,
            measured_s=after.measured_s,
        )

    def again(self, state: SeedingState, newest: SeedingState, times: StepTimes) -> SeedingState:
        """See `round_planner.KindPolicy`: lengths of its kind, on the machines as they are now."""
        if state.learnt is None or newest.learnt is None:
            return self.fallback.again(state, newest, times)
        learnt = with_machines(state.learnt, newest.learnt)
        planned = self._planned(learnt, times, state.n_prem)
        if planned is None:
            return self.fallback.again(msgspec.structs.replace(state, predicted_s=0.0), newest, times)
        return msgspec.structs.replace(
            state,
            t_seed_s=planned.t_seed_s,
            predicted_s=planned.predicted_s,
            stair_s=planned.stair_s,
            learnt=learnt,
        )

    def first(
        self, kinds: Mapping[str, KindState], newest: SeedingState, times: StepTimes
    ) -> SeedingState | None:
        """See `round_planner.KindPolicy`, `unseen_rounds`. Of a guess there is no predicted time."""
        rounds, seen = times.rounds, times.seen
        if rounds is None or seen is None or newest.learnt is None:
            return None
        known = of_whole_steps(rounds.ahead, kinds, newest.learnt, rounds)
        learnt = known
        if learnt is None and rounds.ahead == "long":
            learnt = guessed_long(kinds, newest.learnt, seen.limit)
        planned = self._planned(learnt, times, newest.n_prem) if learnt is not None else None
        if planned is None:
            return None
        return msgspec.structs.replace(
            newest,
            t_seed_s=planned.t_seed_s,
            predicted_s=planned.predicted_s if known else 0.0,
            stair_s=planned.stair_s,
        )

    def period_prem(self, kinds: Mapping[str, KindState], times: StepTimes, n_prem: int) -> int | None:
        """See `round_planner.KindPolicy`: the number with the cheapest token over a period."""
        rounds, tables = times.rounds, dict[str, _Table]()
        if rounds is None or rounds.done == rounds.ahead == "plain":
            return None  # the steps are whole, and their own plan has the number
        newest = kinds[rounds.done].learnt
        if newest is None:
            return None
        for kind in ("short", "long"):
            known = kinds[kind].learnt if kind in kinds else None
            learnt = with_machines(known, newest) if known else of_whole_steps(kind, kinds, newest, rounds)
            table = self._table(learnt, times) if learnt is not None else None
            if table is not None:
                tables[kind] = table
        if len(tables) < 2:
            return None
        shorts = max(0.0, rounds.shorts)
        mean_s = (shorts * tables["short"].best_s + tables["long"].best_s) / (shorts + 1)
        return self._wanted(tables["long"].counts, mean_s, n_prem, self.fallback.most_prem(times))

    def tail(self, kinds: Mapping[str, KindState], times: StepTimes) -> TailPlan:
        """See `round_planner.KindPolicy`."""
        rounds, seen = times.rounds, times.seen
        newest = kinds[rounds.done].learnt if rounds is not None else None
        model = ready(newest) if newest is not None else None
        if rounds is None or newest is None or model is None or rounds.surplus < 1:
            return TailPlan()
        if seen is None or seen.step_s < LEAST_STEP_S:
            return TailPlan()

        def seconds(groups: Groups, surplus: int) -> float:
            work = replace(model[0], lengths=groups, surplus=surplus)
            return self._best_s(work, model[1], times) + newest.rest_s

        learnt = {kind: one.learnt for kind, one in kinds.items() if one.learnt and one.learnt.lengths}
        whole = whole_groups({kind: one.lengths for kind, one in learnt.items()}, rounds)
        begins = rounds.done == "plain"
        if whole and (rounds.surpluses or begins):
            plain_s = seconds(evenly(whole, min(len(whole), MOST_GROUPS)), 0)
            if rounds.surpluses:
                surplus, rounds_s = best_surplus(whole, rounds, seen.groups, seen.limit, seconds)
                return TailPlan(gain_of(rounds_s, plain_s), surplus)
            rounds_s = period_s(whole, seen.groups, rounds.surplus, seconds, careful=True)
            return TailPlan(gain_of(rounds_s, plain_s))
        parts = parts_of({kind: coming(one) for kind, one in learnt.items()}, rounds)
        if parts is None:
            return TailPlan()
        short_s, long_s = seconds(parts.short, rounds.surplus), seconds(parts.long, 0)
        rounds_s = (rounds.shorts * short_s + long_s) / (rounds.shorts + 1)
        return TailPlan(gain_of(rounds_s, seconds(parts.whole, 0)))

    def _best_s(self, work: Work, machines: Machines, times: StepTimes) -> float:
        """The end of a step with the best window for the instances that are there."""
        windows_s = self._windows(work, machines) if times.next_prem else np.zeros(1)  # without any: alike
        counts = np.full(len(windows_s), float(times.next_prem))
        return float(predict(work, machines, windows_s, counts, earliest=True).end_s.min())

    def _planned(self, learnt: StepStatistics, times: StepTimes, n_prem: int) -> "_Planned | None":
        """None while data are missing."""
        table = self._table(learnt, times)
        if table is None:
            return None
        windows_s, here = table.windows_s, table.ends_s[table.counts.index(times.next_prem)]
        step_s = (windows_s[-1] - windows_s[0]) / (len(windows_s) - 1)
        t_seed_s, end_s = _best(windows_s, here)
        for _ in range(ROUNDS - 1):
            if times.next_prem == 0 or step_s <= 0:
                break
            low = max(windows_s[0], t_seed_s - step_s)
            finer = np.linspace(low, min(windows_s[-1], t_seed_s + step_s), WINDOWS)
            step_s /= (WINDOWS - 1) / 2
            counts = np.full(WINDOWS, float(times.next_prem))
            t_seed_s, end_s = _best(finer, predict(table.work, table.machines, finer, counts).end_s)
        trimmed_s = max(t_seed_s * (1.0 - learnt.trim), float(windows_s[0])) if times.next_prem else t_seed_s
        stair_s = None
        if self.settings.stairs == "model":
            stair_s, end_s = _stair(table, t_seed_s, times.next_prem, end_s)
        predicted_s = end_s - (t_seed_s - trimmed_s) + learnt.rest_s
        wanted = self._wanted(table.counts, table.best_s, n_prem, self.fallback.most_prem(times))
        return _Planned(trimmed_s, predicted_s, wanted, stair_s)

    def _table(self, learnt: StepStatistics, times: StepTimes) -> "_Table | None":
        """The predicted step for numbers of instances and windows; None while data are missing."""
        model = ready(learnt)
        if model is None or times.seen is None or times.seen.step_s < LEAST_STEP_S:
            return None
        work, machines = model
        counts = self._counts(times.next_prem, self.fallback.most_prem(times))
        windows_s = self._windows(work, machines)
        pairs = [(float(window_s), float(count)) for count in counts for window_s in windows_s]
        rough = replace(work, lengths=work.lengths[:: COARSE if len(work.lengths) > FEW else 1])
        ends = predict(
            rough, machines, np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
        ).end_s
        if not np.isfinite(ends).all():
            return None
        ends_s = ends.reshape(len(counts), len(windows_s))
        return _Table(work, machines, counts, windows_s, ends_s, ends_s.min(axis=1) + learnt.rest_s)

    def _counts(self, next_prem: int, most: int) -> list[int]:
        """Numbers of instances to try: all of them, or as many as are enough to see where it is flat."""
        tried = {round(most * k / (MOST_COUNTS - 1)) for k in range(MOST_COUNTS)} if most else {0}
        return sorted(tried | {next_prem} | ({1} if most else set()))

    def _windows(self, work: Work, machines: Machines) -> Floats:
        """From the shortest window to one with which nothing is left to others."""
        alone = predict(work, machines, np.zeros(1), np.zeros(1)).rolled_s[0]
        most = min(self.settings.max_s, max(float(alone), self.settings.min_s))
        windows: Floats = np.linspace(self.settings.min_s, most, WINDOWS)
        return windows

    def _wanted(self, counts: list[int], step_s: Floats, n_prem: int, most_prem: int) -> int:
        """The number with the cheapest token; the one wanted so far while no other is clearly cheaper."""
        fixed = self.reserved_hosts * self.prices.reserved_per_hour
        each = self.prices.preemptible_per_hour
        allowed = [
            (
                (fixed + count * each) * float(seconds) ** (1.0 + self.settings.time_weight)
                if fixed + each > 0
                else float(seconds),
                count,
            )
            for count, seconds in zip(counts, step_s, strict=True)
            if min(1, most_prem) <= count <= most_prem
        ]
        cost, count = min(allowed)
        for known, tried in allowed:
            if tried == n_prem and cost >= known * (1.0 - CLEARLY):
                return n_prem
        return count


@dataclass(frozen=True, slots=True)
class _Planned:
    """Window, predicted step, instances wanted; stair_s: when half of the engines leave, None: together."""

    t_seed_s: float
    predicted_s: float
    n_prem: int
    stair_s: float | None


@dataclass(frozen=True, slots=True)
class _Table:
    """The predicted end of a step (ends_s, numbers x windows); best_s: the step with the best window."""

    work: Work
    machines: Machines
    counts: list[int]
    windows_s: Floats
    ends_s: Floats
    best_s: Floats


def _stair(table: _Table, window_s: float, count: int, end_s: float) -> tuple[float | None, float]:
    """The best time for half of the engines to leave, and the end of the step with it; None and `end_s` where
    no time is clearly better than the end of the window."""
    one, counts = np.array([window_s]), np.array([float(count)])
    whole = predict(table.work, table.machines, one, counts)  # of all groups, as the end may be of a part
    rolled_s = float(whole.rolled_s[0])
    last_s = min(window_s, rolled_s) if count else rolled_s
    stairs_s = np.linspace(0.0, last_s, STAIRS, endpoint=False)
    windows_s, each = np.full(STAIRS, window_s), np.full(STAIRS, float(count))
    ends_s = predict(table.work, table.machines, windows_s, each, stairs_s).end_s
    stair_s, best_s = _best(stairs_s, ends_s)
    return (stair_s, best_s) if best_s < float(whole.end_s[0]) * (1.0 - STAIR_GAIN) else (None, end_s)


def _best(windows_s: Floats, ends_s: Floats) -> tuple[float, float]:
    at = int(ends_s.argmin())
    return float(windows_s[at]), float(ends_s[at])
