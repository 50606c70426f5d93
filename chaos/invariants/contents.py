"""Checks of what a sample contains besides its tokens, in order.

Owns the list. They compare with the models of the run (`truth`), so only a simulated run has them.
"""

from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.dispatched_requests import SentAsSubmitted
from gleaner.chaos.invariants.group_selection import SelectedByScores
from gleaner.chaos.invariants.problem_draws import DrawnInTurn
from gleaner.chaos.invariants.races import ShortestCount
from gleaner.chaos.invariants.recorded_figures import FiguresOfSamples
from gleaner.chaos.invariants.rounds import DrawsKept
from gleaner.chaos.invariants.sample_contents import TrueContents
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.trained_weights import WeightsOfSamples
from gleaner.chaos.invariants.true_verdicts import TrueVerdicts
from gleaner.chaos.invariants.truth import Truth

CONTENTS: tuple[type[Check], ...] = (
    DrawnInTurn, SentAsSubmitted, TrueVerdicts, SelectedByScores, TrueContents, WeightsOfSamples,
    FiguresOfSamples, DrawsKept, ShortestCount,
)  # fmt: skip


def content_checks(shadow: Shadow, truth: Truth | None) -> tuple[Check, ...]:
    """All of them; none without a truth."""
    if truth is None:
        return ()
    return (
        DrawnInTurn(truth),
        SentAsSubmitted(shadow),
        TrueVerdicts(shadow, truth),
        SelectedByScores(shadow, truth),
        TrueContents(shadow, truth),
        WeightsOfSamples(shadow, truth),
        FiguresOfSamples(shadow, truth),
        DrawsKept(truth),
        ShortestCount(shadow, truth),
    )
