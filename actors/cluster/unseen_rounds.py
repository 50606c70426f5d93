"""Unseen rounds: lengths of a first short or long round, of whose kind a job has had none.

Pure. Without them such a round begins with the window of another kind: a first long round with that of short
ones, so that its trainer waits for minutes.

- After whole steps they are those of the groups that its kind would have counted.
- A long round of which only short ones are known is guessed. Each deferred group has a response that is
  longer than the longest one that counted: these are spread evenly up to the limit, with the other responses
  of a group in proportion.
"""

import math
from collections.abc import Mapping

from gleaner.actors.cluster.round_parts import Groups
from gleaner.actors.cluster.seeding import KindState
from gleaner.actors.cluster.step_statistics import StepStatistics, coming, of_lengths
from gleaner.actors.protocol.step_times import RoundKinds


def of_whole_steps(
    kind: str, kinds: Mapping[str, KindState], newest: StepStatistics, rounds: RoundKinds
) -> StepStatistics | None:
    """Statistics of a round of this kind on the machines of the newest ones; None without whole steps."""
    whole = sorted(_coming("plain", kinds), key=max)
    count = round(len(whole) / (rounds.shorts + 1))  # of these the long rounds train
    if not 0 < count < len(whole) or kind not in ("short", "long"):
        return None
    groups = whole[:-count] if kind == "short" else whole[-count:]
    return of_lengths(newest, groups, rounds.surplus + rounds.spare if kind == "short" else 0)


def guessed_long(kinds: Mapping[str, KindState], newest: StepStatistics, limit: int) -> StepStatistics | None:
    """Statistics of a long round, guessed from short ones; None without any, where responses have no limit,
    and where those that counted run to it."""
    short = _coming("short", kinds)
    edge = max(map(max, short), default=0)
    if not 0 < edge < limit:
        return None
    groups: Groups = []
    for at, group in enumerate(short):
        longest = edge + (limit - edge) * (at + 0.5) / len(short)
        groups.append([math.ceil(tokens * longest / max(group)) for tokens in group])
    return of_lengths(newest, groups, 0)


def _coming(kind: str, kinds: Mapping[str, KindState]) -> Groups:
    learnt = kinds[kind].learnt if kind in kinds else None
    return coming(learnt) if learnt is not None and learnt.lengths else []
