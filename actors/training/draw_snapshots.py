"""Draw snapshots: an order of draws at one moment, in a snapshot of the controller's journal.

Owns the shapes: `ProblemsDrawn` of `problem_order`, `RoundsDrawn` of `round_draws`. Their size is bounded as
the orders are: by the batches that they keep, by the draws that wait, and by the problems of the training
split.
"""

from gleaner.supervisor import Message


class ProblemsDrawn(Message, frozen=True):
    """In a snapshot: the draws of a job without rounds. cursor: new draws so far. waiting: problems that were
    given back, in their order. batches: the kept ones, the oldest first, with the problem of each group.
    settled: those of them that gave problems back."""

    cursor: int
    waiting: tuple[int, ...]
    batches: dict[str, tuple[int, ...]]
    settled: tuple[str, ...]


class RoundKept(Message, frozen=True):
    """In a snapshot: an open or recent round; kind, groups (spare ones of them) and samples as it was
    launched, and the draw of each group."""

    batch: str
    kind: str
    groups: int
    samples: int
    draws: tuple[int, ...]
    settled: bool
    spare: int = 0


class RoundsDrawn(Message, frozen=True):
    """In a snapshot: the draws of a job with rounds. cursor: new draws so far. queue: the deferred draws,
    first deferred first; launched: draws of open rounds; each with the step that launched it first. rounds:
    the kept ones, the oldest first; newest: the kind of the newest; on: whether the job has rounds now
    (`auto`); surplus: of the newest short round or of the next one; held: draws that the newest short round
    deferred without a launch. holds: long problems, each with its draws that may be held yet. uniform: of the
    newest rounds that were no long ones, the oldest first, groups that counted and uniform ones that were
    dropped."""

    cursor: int
    queue: tuple[tuple[int, int], ...]
    launched: tuple[tuple[int, int], ...]
    rounds: tuple[RoundKept, ...]
    newest: str
    on: bool
    surplus: int
    held: int
    holds: tuple[tuple[int, int], ...]
    uniform: tuple[tuple[int, int], ...] = ()


DrawSnapshot = ProblemsDrawn | RoundsDrawn
