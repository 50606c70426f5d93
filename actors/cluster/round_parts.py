"""Round parts: what whole steps, short and long rounds would roll out, from what one of these did.

Pure. A short round counts the groups whose longest response is short, a long one the others, and together
they count all draws. So the lengths of whole steps tell those of rounds, and the reverse.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from gleaner.actors.protocol.step_times import RoundKinds, StepTimes

Groups = list[list[int]]
"""Tokens of the responses of some groups."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The groups that count in a whole step, in a short round and in a long one."""

    whole: Groups
    short: Groups
    long: Groups


@dataclass(frozen=True, slots=True)
class TailPlan:
    """What a plan has of rounds: see `Plan.tail_gain`, `Plan.tail_surplus`. None: no prediction."""

    gain: float | None = None
    surplus: int | None = None


def gain_of(rounds_s: float, whole_s: float) -> float | None:
    """The share of a whole step by which a step with rounds is shorter; None of times that are not known."""
    return 1 - rounds_s / whole_s if whole_s > 0 and math.isfinite(rounds_s) else None


def with_begun(times: StepTimes, gain: float | None) -> StepTimes:
    """The measurements, with a short round ahead if the rounds of the job begin by this predicted gain."""
    rounds = times.rounds
    if rounds is None or rounds.begins is None or gain is None or gain < rounds.begins:
        return times
    return structs.replace(times, rounds=structs.replace(rounds, ahead="short"))


def parts_of(lengths: Mapping[str, Groups], rounds: RoundKinds) -> Parts | None:
    """The parts, from the lengths of the newest rounds of each kind; None while too little is known."""
    short, long = lengths.get("short", []), lengths.get("long", [])
    if not short or not long or not rounds.shorts:
        return None
    more = evenly(sorted(long, key=max), max(1, round(len(short) / rounds.shorts)))
    return Parts([*short, *more], short, long)


def evenly(groups: Sequence[list[int]], count: int) -> Groups:
    """So many of them, evenly from the first to the last; some of them twice where there are fewer."""
    last = len(groups) - 1
    return [groups[round(at * last / max(1, count - 1))] for at in range(count)]
