"""`ArtifactPolicy`: T_seed by the rule of RLBoost's public artifact, which differs from Algorithm 1.

Source: Terra-Flux/PolyRL at 836120a, `rollout-manager/src/balance.rs`, read for facts. Beside Algorithm 1 it
remembers, for each number of instances, not the last window but the one at which throughput was highest, as a
moving average; a remembered window returns when that number of instances returns, and is not moved in that
step. Pure. It does not choose N_prem, so line 10 of Algorithm 1 does.

Different here: the artifact counts whole seconds, and for its 8B model it starts with windows that were
measured on its machines; this one starts with an empty memory.
"""

from collections.abc import Mapping

import msgspec

from gleaner.actors.cluster.round_parts import TailPlan
from gleaner.actors.cluster.seeding import MAX_MEMORY, KindState, SeedingPolicy, SeedingState, ThroughputPeak
from gleaner.actors.protocol.step_times import StepTimes, finite

LEFT_SHARE = 0.2
"""Weight of the newest best window where the number of instances has changed."""
PASSED_SHARE = 0.8
"""Its weight where throughput stopped growing with the same number."""


class ArtifactPolicy:
    """See the module. rule: Algorithm 1, for the first plan, N_prem, eta and the range of the window."""

    def __init__(self, rule: SeedingPolicy) -> None:
        self._rule = rule

    def initial(self, reserved_engines: int = 0) -> SeedingState:
        """As Algorithm 1."""
        return self._rule.initial(reserved_engines)

    def next(self, state: SeedingState, times: StepTimes) -> SeedingState:
        """The settings of the next step."""
        planned = self._rule.next(msgspec.structs.replace(state, memory={}), times)
        count, before = times.next_prem, state.peak or ThroughputPeak(count=times.next_prem)
        best_s = before.t_seed_s if before.t_seed_s is not None else state.t_seed_s
        memory: Mapping[int, float] = state.memory
        tokens_s = 0.0
        t_seed_s = self._rule.clamp_s(
            state.t_seed_s
            + (finite(times.train_wait_s) - finite(times.remote_wait_s)) / self._rule.settings.eta
        )
        if count != before.count:
            memory = _remember(memory, before.count, best_s, LEFT_SHARE)
            if count in memory:
                t_seed_s = best_s = self._rule.clamp_s(memory[count])
        else:
            tokens_s = _tokens_s(times)
            if tokens_s > before.tokens_s:
                best_s = state.t_seed_s
            else:
                memory = _remember(memory, before.count, best_s, PASSED_SHARE)
        return msgspec.structs.replace(
            planned,
            t_seed_s=t_seed_s,
            memory=dict(memory),
            peak=ThroughputPeak(count=count, t_seed_s=best_s, tokens_s=tokens_s),
        )

    def again(self, state: SeedingState, newest: SeedingState, times: StepTimes) -> SeedingState:
        """See `round_planner.KindPolicy`."""
        return self._rule.again(state, newest, times)

    def first(
        self, kinds: Mapping[str, KindState], newest: SeedingState, times: StepTimes
    ) -> SeedingState | None:
        """See `round_planner.KindPolicy`: the rule has no lengths."""
        return None

    def period_prem(self, kinds: Mapping[str, KindState], times: StepTimes, n_prem: int) -> int | None:
        """See `round_planner.KindPolicy`."""
        return None

    def tail(self, kinds: Mapping[str, KindState], times: StepTimes) -> TailPlan:
        """See `round_planner.KindPolicy`."""
        return TailPlan()


def _remember(memory: Mapping[int, float], count: int, best_s: float, share: float) -> Mapping[int, float]:
    """With the window that suited `count` instances best, which moves by `share` towards the newest one."""
    known_s = memory.get(count)
    if known_s is None and len(memory) >= MAX_MEMORY:
        return memory
    return {**memory, count: best_s if known_s is None else (1 - share) * known_s + share * best_s}


def _tokens_s(times: StepTimes) -> float:
    """Response tokens of the step a second by its sampled lengths; 0 where it was not measured."""
    seen = times.seen
    lengths = [length for group in seen.lengths for length in group] if seen is not None else []
    if seen is None or not lengths or not finite(seen.step_s):
        return 0.0
    return seen.requests * sum(lengths) / len(lengths) / seen.step_s
