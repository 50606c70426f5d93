"""What came of a run, in a sentence: whether the reward rose, and whether any preemptible instance served.

Pure. `reached` is true where all was reached that a run is for; nothing else is shown in green.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from actors.training.history import End, Eval, FirstInstance, Sample

ERRORS = 2.0
"""Standard errors of a difference of two means that are noise: 95 % of what chance alone does."""


class Instances(msgspec.Struct, frozen=True, kw_only=True):
    """Preemptible instances. served: one has, at any time. first_s: how long that took, from the first
    weights; busy_steps: finished steps in which one had requests, at one of the looks at the fleet. why:
    where none has served, what is known of the reason."""

    served: bool
    first_s: float | None
    busy_steps: int
    why: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. noise: difference of the two held-out rewards that chance explains; None: unknown."""

    reached: bool
    reward: Literal["rose", "fell", "stayed", "unknown"]
    noise: float | None
    sentence: str


def instances_of(firsts: Sequence[FirstInstance], samples: Sequence[Sample], steps: int) -> Instances:
    """What became of preemptible instances; steps: the finished ones, the last evaluation is in none.
    Histories of older programs have the samples alone."""
    first = next((one for one in firsts if one.served), None)
    busy = {sample.step for sample in samples if sample.busy}
    finished = sum(step <= steps for step in busy)
    pulled = any(sample.weights for sample in samples)
    return Instances(
        served=first is not None or bool(busy) or pulled,
        first_s=first.waited_s if first is not None else None,
        busy_steps=finished,
        why=firsts[-1].why if firsts and first is None else "",
    )


def outcome_of(
    end: End | None, evals: Sequence[Eval], instances: Instances | None, steps: int, planned: int
) -> Outcome:
    """The sentence of a run. instances: None where the settings ask for none."""
    reward, noise, words = _reward(evals)
    alone = instances is not None and not instances.served
    parts: list[str] = []
    if end is None:
        parts.append(f"not finished, {steps} of {planned} steps")
    elif not end.ok:
        parts.append(findings(len(end.violations), end.unchecked))
    if alone:
        trained = "the reserved host trained alone" if steps else "no step was trained"
        parts.append(f"no preemptible instance served, {trained}")
    if words:
        parts.append(words)
    return Outcome(
        reached=end is not None and end.ok and not alone and reward == "rose",
        reward=reward,
        noise=noise,
        sentence="; ".join(parts) or "the held-out reward is not known",
    )


def unchecked_only(violations: int, unchecked: int) -> bool:
    """Whether nothing is known to be broken, but not everything could be checked."""
    return 0 < violations == unchecked


def findings(violations: int, unchecked: int) -> str:
    """What an audit found, in words. unchecked: how many of the violations could not be checked."""
    broken = violations - unchecked
    parts = [f"{unchecked} could not be checked"] if unchecked else []
    if broken or not parts:
        parts.insert(0, f"{broken or 'some'} broken")
    return "invariants: " + ", ".join(parts)


def _reward(evals: Sequence[Eval]) -> tuple[Literal["rose", "fell", "stayed", "unknown"], float | None, str]:
    first = next((one for one in evals if one.when == "first"), None)
    last = next((one for one in reversed(evals) if one.when == "last"), None)
    if first is None or last is None:
        return "unknown", None, ""
    noise = _noise(first, last)
    change = f"from {first.reward:.3f} to {last.reward:.3f}"
    if abs(last.reward - first.reward) <= noise:
        chance = f"with {last.problems} problems chance alone explains {noise:.3f}"
        return "stayed", noise, f"the held-out reward stayed ({change}; {chance})"
    if last.reward > first.reward:
        return "rose", noise, f"the held-out reward rose {change}"
    return "fell", noise, f"the held-out reward fell {change}"


def _noise(first: Eval, last: Eval) -> float:
    """Rewards are between 0 and 1, so one with mean p varies by p (1 - p) at most."""
    variances = [max(0.0, one.reward * (1.0 - one.reward)) / max(1, one.problems) for one in (first, last)]
    least = 1.0 / max(1, min(first.problems, last.problems))
    return max(least, ERRORS * math.sqrt(sum(variances)))
