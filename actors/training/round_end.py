"""Round end: what came of a round, for the history.

Pure.
"""

from dataclasses import dataclass

from gleaner.actors.protocol.rollout import GroupFatesAre
from gleaner.actors.training.length_law import total
from gleaner.actors.training.round_draws import RoundDraws

MOST_LENGTHS = 64
"""Different lengths that are kept of a round; more are joined, each to the mean of its neighbours."""


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """What came of the round of a step. round: its kind (`rounds.Kind`). launched, counted, over, deferred:
    groups. queued: draws in the queue behind it; oldest_age: steps since the first launch of the oldest of
    them. edge: tokens of the longest response that counts, longest: of any. ended, aborted: tokens and number
    of the launched responses. trained_tokens, trained_responses: of the groups that count. aborted_tokens:
    of surplus groups and samples, those that had ended included."""

    round: str
    launched: int
    counted: int
    over: int
    deferred: int
    queued: int
    oldest_age: int
    edge: int
    longest: int
    ended: tuple[tuple[int, int], ...]
    aborted: tuple[tuple[int, int], ...]
    aborted_tokens: int
    trained_tokens: int
    trained_responses: int


def round_end(draws: RoundDraws, step: int, fates: GroupFatesAre) -> RoundEnd:
    """The outcome of the round of this step, which is settled."""
    batch = f"step-{step}"
    launched = len(draws.of(batch))
    oldest = draws.oldest()
    lengths = [tokens for tokens, _ in (*fates.finished, *fates.cut_off)]
    return RoundEnd(
        round=draws.shape(batch, step).kind.value,
        launched=launched,
        counted=len(fates.kept),
        over=len(fates.dropped),
        deferred=launched - len(fates.kept) - len(fates.dropped),
        queued=draws.waiting,
        oldest_age=0 if oldest is None else step - oldest,
        edge=fates.edge,
        longest=max(lengths, default=0),
        ended=joined(fates.finished),
        aborted=joined(fates.cut_off),
        aborted_tokens=fates.surplus_tokens,
        trained_tokens=fates.trained[0],
        trained_responses=fates.trained[1],
    )


def joined(lengths: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """These lengths, as at most `MOST_LENGTHS` of them with the same number of responses."""
    size = -(-len(lengths) // MOST_LENGTHS) or 1
    found = []
    for first in range(0, len(lengths), size):
        tokens, count = total(lengths[first : first + size])
        found.append((round(tokens / count), count))
    return tuple(found)
