"""`RoundPlanner`: plans of a job with rounds, each from the steps of its own kind.

Short and long rounds are different jobs to a policy that learns from the last steps. Lengths and their
growth, the trim of the window and the memory M belong to a kind; paces of engines, seconds a token and the
time to get weights belong to machines, and are shared. N_prem is one number for a period, because hosts are
not rented by the minute. Owns the states by kind; pure. The policy itself is one of `planner`.
"""

import math
from collections.abc import Mapping
from typing import Protocol

from msgspec.structs import replace

from gleaner.actors.cluster.round_parts import TailPlan, with_begun
from gleaner.actors.cluster.seeding import KindState, SeedingState
from gleaner.actors.cluster.step_statistics import of_another_kind
from gleaner.actors.protocol.step_times import StepTimes


class KindPolicy(Protocol):
    """A policy that can plan a step of another kind than the measured one."""

    def initial(self, reserved_engines: int = 0) -> SeedingState:
        """See `Planner`."""

    def next(self, state: SeedingState, times: StepTimes) -> SeedingState:
        """See `Planner`."""

    def again(self, state: SeedingState, newest: SeedingState, times: StepTimes) -> SeedingState:
        """The plan of a step of the kind whose last state this is, after a step of another kind with these
        times, whose state is the newest."""

    def first(
        self, kinds: Mapping[str, KindState], newest: SeedingState, times: StepTimes
    ) -> SeedingState | None:
        """The plan of the round ahead, of whose kind there was none yet, on the machines of the newest
        state; None where nothing is known of its lengths."""

    def period_prem(self, kinds: Mapping[str, KindState], times: StepTimes, n_prem: int) -> int | None:
        """The number of instances for all rounds of a period; None while that cannot be predicted. n_prem:
        the number so far."""

    def tail(self, kinds: Mapping[str, KindState], times: StepTimes) -> TailPlan:
        """See `TailPlan`: with the instances that are there, each round with its own best window."""


class RoundPlanner:
    """A `Planner`: see the module."""

    def __init__(self, policy: KindPolicy) -> None:
        self._policy = policy

    def initial(self, reserved_engines: int = 0) -> SeedingState:
        """As the policy."""
        return self._policy.initial(reserved_engines)

    def next(self, state: SeedingState, times: StepTimes) -> SeedingState:
        """The plan of the next step; as the policy's in a job without rounds."""
        rounds = times.rounds
        if rounds is None:
            return self._policy.next(state, times)
        after = self._policy.next(_own(state, rounds.done), times)
        kinds = {**state.kinds, rounds.done: _kind(after)}
        tail = self._policy.tail(kinds, times)
        times = with_begun(times, tail.gain)
        planned = self._ahead(kinds, after, times)
        n_prem = self._policy.period_prem(kinds, times, state.n_prem)
        if n_prem is None:  # of whole steps, or by the rule after the round that needs most
            needs_most = rounds.done != "short" or math.isinf(rounds.shorts)
            n_prem = after.n_prem if needs_most or not state.kinds else state.n_prem
        return replace(
            planned,
            n_prem=n_prem,
            measured_s=after.measured_s,
            kinds=kinds,
            tail_gain=tail.gain,
            tail_surplus=tail.surplus,
        )

    def _ahead(self, kinds: Mapping[str, KindState], after: SeedingState, times: StepTimes) -> SeedingState:
        rounds = times.rounds
        assert rounds is not None, "checked by its caller"
        known = kinds.get(rounds.ahead)
        if known is None:  # the window as it is, where nothing is known of its lengths
            return self._policy.first(kinds, after, times) or replace(after, predicted_s=0.0)
        if rounds.ahead == rounds.done:
            return after
        return self._policy.again(_state(known, after.n_prem), after, times)


def _own(state: SeedingState, kind: str) -> SeedingState:
    """The last state of this kind, or the first one, with what is known of the machines."""
    known = state.kinds.get(kind)
    if known is not None:
        return replace(_state(known, state.n_prem), t_seed_s=state.t_seed_s)
    learnt = None if state.learnt is None else of_another_kind(state.learnt)
    return replace(state, kinds={}, memory={}, learnt=learnt, rule_s=None, peak=None)


def _kind(state: SeedingState) -> KindState:
    return KindState(
        t_seed_s=state.t_seed_s,
        memory=state.memory,
        rule_s=state.rule_s,
        learnt=state.learnt,
        peak=state.peak,
        stair_s=state.stair_s,
    )


def _state(known: KindState, n_prem: int) -> SeedingState:
    return SeedingState(
        t_seed_s=known.t_seed_s,
        n_prem=n_prem,
        memory=known.memory,
        rule_s=known.rule_s,
        learnt=known.learnt,
        peak=known.peak,
        stair_s=known.stair_s,
    )
