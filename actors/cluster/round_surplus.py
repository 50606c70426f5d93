"""Round surplus: how many groups a short round launches beside those that count, by prediction.

Pure. A surplus s beside P groups defers the share s / (P + s) of all draws. A short round is as long as a
whole step when more of its groups run to the limit than it has surplus, and how many do is a matter of
chance: so it is predicted twice, with one standard deviation more long groups than the mean and with one
less. A long round trains the deferred share. Rounds with a given surplus begin only where they pay with one
standard deviation more (`careful`). Where the surplus is chosen, `least_surplus` has that deviation.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from gleaner.actors.cluster.round_parts import Groups, evenly
from gleaner.actors.protocol.step_times import RoundKinds

MOST_GROUPS = 64  # of a predicted round; more are thinned out
CLEARLY = 0.01  # shorter by so much: the surplus does not follow the noise of a period

Seconds = Callable[[Groups, int], float]
"""Of a step that counts these groups (a sample of its own) and launches so many more."""


def whole_groups(steps: Mapping[str, Sequence[Groups]], rounds: RoundKinds) -> Groups:
    """The groups of whole steps, from the one whose longest response is shortest on; none while too little is
    known. steps: the groups of the newest steps by kind, the newest step last."""
    if rounds.done == "plain":
        return sorted((group for step in steps.get("plain", []) for group in step), key=max)
    if not rounds.shorts or math.isinf(rounds.shorts):
        return []
    # A long round trains what the short rounds of its own period deferred, with another surplus before.
    short = [group for step in steps.get("short", [])[-max(1, round(rounds.shorts)) :] for group in step]
    long = sorted((group for step in steps.get("long", [])[-1:] for group in step), key=max)
    if not short or not long:
        return []
    return sorted([*short, *evenly(long, max(1, round(len(short) / rounds.shorts)))], key=max)


def least_surplus(whole: Groups, groups: int, limit: int, surpluses: Sequence[int]) -> int:
    """The least of these with which the groups that run to the limit fit into the surplus, up to one standard
    deviation more than their mean; the largest one if none is enough. groups: that count."""
    hard = sum(max(group) >= limit for group in whole) / len(whole) if limit else 0.0
    for surplus in sorted(surpluses):
        launched = groups + surplus
        if surplus >= hard * launched + math.sqrt(hard * (1 - hard) * launched):
            return surplus
    return max(surpluses)


def period_s(whole: Groups, groups: int, surplus: int, seconds: Seconds, *, careful: bool = False) -> float:
    """Predicted seconds of a step, the mean over a period of short rounds and a long one. careful: the short
    rounds have one standard deviation more long groups than the mean."""
    launched = groups + surplus
    share = surplus / launched
    off = math.sqrt(share * (1 - share) / launched)
    offs = (off,) if careful else (-off, off)
    short_s = sum(seconds(_part(whole, 0.0, 1 - share + by), surplus) for by in offs) / len(offs)
    long_s = seconds(_part(whole, 1 - share, 1.0), 0)
    return (short_s * groups + long_s * surplus) / launched


def best_surplus(
    whole: Groups, rounds: RoundKinds, groups: int, limit: int, seconds: Seconds
) -> tuple[int, float]:
    """The surplus with the shortest predicted period, of those that may be next, and the seconds of a step
    with it. The one so far while no other is clearly shorter."""
    least = least_surplus(whole, groups, limit, rounds.surpluses)
    found = {
        surplus: period_s(whole, groups, surplus, seconds) for surplus in rounds.surpluses if surplus >= least
    }
    best = min(found, key=lambda surplus: found[surplus])
    known_s = found.get(rounds.surplus)
    if known_s is not None and found[best] >= known_s * (1 - CLEARLY):
        best = rounds.surplus
    return best, found[best]


def _part(whole: Groups, first: float, last: float) -> Groups:
    """The groups between these shares of all, one at least, thinned out to `MOST_GROUPS`."""
    end = min(len(whole), max(1, round(last * len(whole))))
    part = whole[min(end - 1, round(first * len(whole))) : end]
    return evenly(part, min(len(part), MOST_GROUPS))
