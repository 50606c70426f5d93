"""`SeedingPolicy`: T_seed and N_prem of a step by RLBoost's Algorithm 1.

T_seed is the time for which the trainer rolls out, N_prem the number of preemptible instances worth having.
Owns the rule from one step's times to the next step's values. Pure. The caller measures the times, keeps the
state between steps and journals it (`SeedingState` is a msgspec struct).

Added to the paper's algorithm, because it runs unattended: T_seed and N_prem are clamped to a range, a step
that trained nothing keeps its N_prem, and the memory can be switched off.
"""

import math
from collections.abc import Mapping

import msgspec

from gleaner.actors.cluster.round_parts import TailPlan
from gleaner.actors.cluster.step_statistics import StepStatistics
from gleaner.actors.protocol.step_times import StepTimes, finite
from gleaner.configs.schema import Seeding

SAME_COUNT = 1e-6  # line 11 compares a mean over time with a count: equal up to rounding of the mean
MAX_MEMORY = 1024  # entries of M; counts are small integers, so more would be a defect of the caller


class ThroughputPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Of the artifact's rule: the number of instances when it last planned, the window with the highest
    throughput since that number is there (None: no step yet), and the tokens a second of the last step."""

    count: int
    t_seed_s: float | None = None
    tokens_s: float = 0.0


class KindState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known after the last round of a kind: see `SeedingState`."""

    t_seed_s: float
    memory: dict[int, float] = {}
    rule_s: float | None = None
    learnt: StepStatistics | None = None
    peak: ThroughputPeak | None = None
    stair_s: float | None = None


class SeedingState(msgspec.Struct, frozen=True, kw_only=True):
    """T_seed, N_prem and the scheduler memory M: preemptible instances -> T_seed that suited them.

    rule_s: T_seed of Algorithm 1 where the model has chosen another one; None: they are the same.
    predicted_s: the model's prediction for the step that they are for, 0: none; learnt: its learnt values.
    measured_s: the last measured step, 0: none. peak: of the artifact's rule; None with others. kinds: in a
    job with rounds the state after the last step of each kind. tail_gain, tail_surplus, stair_s: see `Plan`.
    """

    t_seed_s: float
    n_prem: int
    memory: dict[int, float] = {}
    rule_s: float | None = None
    predicted_s: float = 0.0
    learnt: StepStatistics | None = None
    measured_s: float = 0.0
    peak: ThroughputPeak | None = None
    kinds: dict[str, KindState] = {}
    tail_gain: float | None = None
    stair_s: float | None = None
    tail_surplus: int | None = None


class SeedingPolicy:
    """Algorithm 1. Line numbers are the paper's."""

    def __init__(self, settings: Seeding, *, n_reserved: int, n_prem_max: int) -> None:
        """`n_reserved`: engines of the reserved hosts until they have reported."""
        if n_reserved < 1 or n_prem_max < 0:
            raise ValueError(f"n_reserved is {n_reserved} (>= 1 needed), n_prem_max {n_prem_max} (>= 0)")
        self.settings = settings
        self.n_reserved = n_reserved
        self.n_prem_max = n_prem_max

    def initial(self, reserved_engines: int = 0) -> SeedingState:
        """Lines 1-3: empty memory, T_init, as many preemptible instances as reserved engines."""
        return SeedingState(
            t_seed_s=self.clamp_s(self.settings.initial_s),
            n_prem=min(reserved_engines or self.n_reserved, self.n_prem_max),
        )

    def next(self, state: SeedingState, times: StepTimes) -> SeedingState:
        """Lines 9-14: the settings of the next step."""
        # Line 9: seed longer when training waited, shorter when the remote instances did.
        wait_s = finite(times.train_wait_s) - finite(times.remote_wait_s)
        t_seed_s = self.clamp_s(state.t_seed_s + wait_s / self.settings.eta)
        # Line 10: as many as are needed to do all of the step's rollout in the time that training takes.
        # It uses the T_seed of line 9, as printed, not the one that line 14 may retrieve.
        n_prem = self._n_prem(state, times, t_seed_s)
        memory = dict(state.memory)
        # Lines 11-12: remember only what no change of instances has disturbed.
        undisturbed = abs(times.mean_prem - times.next_prem) <= SAME_COUNT
        if self.settings.memory and undisturbed and len(memory.keys() | {times.next_prem}) <= MAX_MEMORY:
            memory[times.next_prem] = t_seed_s
        # Lines 13-14: start from the best value for that many instances before.
        if self.settings.memory:
            t_seed_s = self.clamp_s(memory.get(times.next_prem, t_seed_s))
        measured_s = times.seen.step_s if times.seen is not None else 0.0
        return SeedingState(t_seed_s=t_seed_s, n_prem=n_prem, memory=memory, measured_s=measured_s)

    def again(self, state: SeedingState, newest: SeedingState, times: StepTimes) -> SeedingState:
        """See `round_planner.KindPolicy`: the window of its kind's last step, or what its memory has."""
        known_s = (
            state.memory.get(times.next_prem, state.t_seed_s) if self.settings.memory else state.t_seed_s
        )
        return msgspec.structs.replace(state, t_seed_s=self.clamp_s(known_s))

    def first(
        self, kinds: Mapping[str, KindState], newest: SeedingState, times: StepTimes
    ) -> SeedingState | None:
        """See `round_planner.KindPolicy`: Algorithm 1 has no lengths."""
        return None

    def period_prem(self, kinds: Mapping[str, KindState], times: StepTimes, n_prem: int) -> int | None:
        """See `round_planner.KindPolicy`: Algorithm 1 predicts no step."""
        return None

    def tail(self, kinds: Mapping[str, KindState], times: StepTimes) -> TailPlan:
        """See `round_planner.KindPolicy`."""
        return TailPlan()

    def _n_prem(self, state: SeedingState, times: StepTimes, t_seed_s: float) -> int:
        most, train_s = self.most_prem(times), finite(times.train_s)
        if train_s == 0:
            return min(state.n_prem, most)
        remote = finite(times.remote_s) * finite(times.mean_prem)
        # A reserved engine does what one of the engines of an instance does, not what the instance does.
        engines = (times.reserved_engines or self.n_reserved) / max(1.0, finite(times.instance_engines))
        wanted = (remote + t_seed_s * engines) / train_s
        # A fraction of an instance cannot be had: round up, for the bound is the least number with which
        # rollout takes no longer than training. The slack keeps 3.0000000001 at 3. At least one where any is
        # allowed: at none, with a short window, line 10 would see no remote rollout that needs instances, and
        # stay at none for good.
        return min(max(1, math.ceil(min(wanted, most) - SAME_COUNT)), most)

    def most_prem(self, times: StepTimes) -> int:
        """The most instances that the fleet allows and that shared devices carry: another instance on a
        shared device only slows the present ones."""
        return min(self.n_prem_max, times.carried_prem or self.n_prem_max)

    def clamp_s(self, t_seed_s: float) -> float:
        """Within the range of the settings."""
        return min(max(t_seed_s, self.settings.min_s), self.settings.max_s)
