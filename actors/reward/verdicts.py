"""`Judgement`: the score of a response, or the reason why it has none. Pure.

The program's statuses are the response's own fault and score. Ours are no evidence about the response: it is
tried elsewhere, then sampled again, and is never trained on with a made-up score.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gleaner.actors.reward.case_limits import CaseTimes
from gleaner.actors.reward.sandbox.port import Outcome, Status

OK, NO_ANSWER, COMPILE_FAILED = "ok", "no_answer", "compile_failed"
LOST, OVERLOADED, UNAVAILABLE = "lost", Status.OVERLOADED.value, "unavailable"
SANDBOX_FAILED, VERIFIER_FAILED = "sandbox_failed", "verifier_failed"
PASSED = "passed"
"""No verdict: the item has passed a stage, and the next one has it."""
BLOB_LOST = "blob_lost"
"""No verdict: what a stage before left is gone with its host; the item begins again."""

PROGRAMS = frozenset(
    {
        OK,
        NO_ANSWER,
        COMPILE_FAILED,
        *(status.value for status in Status if status not in (Status.SANDBOX_FAILED, Status.OVERLOADED)),
    }
)
"""Statuses of the response itself."""
OURS = frozenset({LOST, OVERLOADED, UNAVAILABLE, SANDBOX_FAILED, VERIFIER_FAILED})
"""Statuses of the verifier, its sandbox or its host: they never score."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The score of a response, unless `status` is "ok" that of the status (0 where the settings give none);
    with a status of ours it is never used.

    detail: further information as text. parts: the components of the score, by name, such as the tests that
    passed; shown, not summed. cpu_s: processor time of its programs, where they ran for it alone. tests: of a
    program that had limits.
    """

    score: float
    status: str = OK
    detail: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    tests: CaseTimes | None = None


def of_failure(outcome: Outcome) -> Judgement:
    """The judgement of a response from a program that did not end well on it."""
    return Judgement(0.0, outcome.status.value, outcome.detail, cpu_s=outcome.cpu_s)
