"""Verdict on a run in one sentence: reward, preemptible instances, scores.

It reports whether the reward rose, whether any preemptible instance served, and whether any sample was
scored. Pure. `reached` is true where all goals of a run were reached; only then is the sentence green.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from gleaner.actors.reward.verdicts import OURS
from gleaner.actors.training.history import End, Eval, FirstInstance, Sample

ERRORS = 2.0
"""Standard errors of a difference of two means that are noise: 95 % of what chance alone does."""


class Instances(msgspec.Struct, frozen=True, kw_only=True):
    """Preemptible instances. served: one has, at any time. first_s: how long that took, from the first
    weights; busy_steps: finished steps in which one had requests, at one of the polls of the fleet. why:
    where none has served, the known reason."""

    served: bool
    first_s: float | None
    busy_steps: int
    why: str = ""


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts of samples, including repeated ones. counts: by status (`gleaner.actors.reward.verdicts`).
    scored: whether any sample has a score. failure: the text of the last failure of the verifier, its sandbox
    or its worker, which does not depend on the sample."""

    counts: dict[str, int]
    scored: bool
    failure: str = ""

    @property
    def words(self) -> str:
        """Counts, the text of the last failure behind them where nothing was scored."""
        counts = ", ".join(f"{status} {count}" for status, count in sorted(self.counts.items()))
        return counts if self.scored or not self.failure else f"{counts}: {self.failure}"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. noise: difference of the two held-out rewards that chance explains; None: unknown."""

    reached: bool
    reward: Literal["rose", "fell", "stayed", "unknown"]
    noise: float | None
    sentence: str


def instances_of(firsts: Sequence[FirstInstance], samples: Sequence[Sample], steps: int) -> Instances:
    """State of the preemptible instances; steps: the finished ones, which do not contain the last evaluation.
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


def verdicts_of(end: End | None, samples: Sequence[Sample]) -> Verdicts | None:
    """The verdicts of a run: of its last poll of the fleet, or of its end where that has more of them. None
    where there was none, and in histories of older programs."""
    last = next((one for one in reversed(samples) if one.verdicts or one.asked_again), None)
    found = dict(last.verdicts) if last is not None else {}
    failure = last.failure if last is not None else ""
    if end is not None and sum(end.verdicts.values()) >= sum(found.values()):
        found, failure = dict(end.verdicts), end.failure or failure
    scored = any(count and status not in OURS for status, count in found.items())
    counts = Counter(found) + Counter(last.asked_again if last is not None else {})
    return Verdicts(counts=dict(counts), scored=scored, failure=failure) if counts else None


def outcome_of(
    end: End | None,
    evals: Sequence[Eval],
    instances: Instances | None,
    steps: int,
    planned: int,
    verdicts: Verdicts | None = None,
) -> Outcome:
    """The sentence of a run. instances: None where the settings ask for none."""
    reward, noise, words = _reward(evals)
    unscored = verdicts is not None and not verdicts.scored
    alone = instances is not None and not instances.served
    parts: list[str] = []
    if verdicts is not None and unscored:
        parts.append(f"no sample was scored: {verdicts.words}")
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
        reached=end is not None and end.ok and not (alone or unscored) and reward == "rose",
        reward=reward,
        noise=noise,
        sentence="; ".join(parts) or "the held-out reward is not known",
    )


def unchecked_only(violations: int, unchecked: int) -> bool:
    """Whether no invariant is known to be broken, but some could not be checked."""
    return 0 < violations == unchecked


def findings(violations: int, unchecked: int) -> str:
    """The findings of an audit as text. unchecked: number of violations that could not be checked."""
    broken = violations - unchecked
    parts = [f"{unchecked} could not be checked"] if unchecked else []
    if broken or not parts:
        parts.insert(0, f"{broken or 'some'} broken")
    return "invariants: " + ", ".join(parts)


def _reward(evals: Sequence[Eval]) -> tuple[Literal["rose", "fell", "stayed", "unknown"], float | None, str]:
    first = next((one for one in evals if one.when == "first"), None)
    last = next((one for one in reversed(evals) if one.when == "last"), None)
    if first is None or last is None or first.reward is None or last.reward is None:
        return "unknown", None, ""
    before, after = first.reward, last.reward
    noise = _noise(first, last)
    change = f"from {before:.3f} to {after:.3f}"
    if abs(after - before) <= noise:
        chance = f"with {last.problems} problems chance alone explains {noise:.3f}"
        return "stayed", noise, f"the held-out reward stayed ({change}; {chance})"
    if after > before:
        return "rose", noise, f"the held-out reward rose {change}"
    return "fell", noise, f"the held-out reward fell {change}"


def _noise(*evals: Eval) -> float:
    """Noise of the difference of two means. Where the variance of the rewards is not on record they are
    between 0 and 1, so those with mean p vary by p (1 - p) at most."""
    squares = [_variance(one) / max(1, one.problems) for one in evals]
    least = 1.0 / max(1, min(one.problems for one in evals))
    return max(least, ERRORS * math.sqrt(sum(squares)))


def _variance(one: Eval) -> float:
    if one.variance is not None:
        return one.variance
    mean = one.reward or 0.0
    return max(0.0, mean * (1.0 - mean))
