"""`VerifierHealth`: health check of a job's verifier by its newest verdicts.

A verifier is sick if too large a share of them are failures. Pure: inputs are verdicts and times. The manager
(`gleaner.actors.rollout.batches.scoring`) and the controller act on it. No state is kept over a restart:
every pending verdict is requested again, so a verifier that is still sick shows with the first one.

- Failures are verdicts of ours (`verdicts.OURS`); and timeouts, as long as no response has ended in another
  way: a verifier that hangs looks like responses that make it work.
- With `LEAST` verdicts or more it is sick when more than `share` of the last `WINDOW` failed; with fewer,
  when all did: one that fails from the first response on is seen at once.
- It has recovered when that no longer holds of the last `LEAST` verdicts, and counts as well while nothing
  waits for a verdict: there is nothing that it could fail at.
"""

from collections import Counter, deque
from collections.abc import Iterable, Set

from gleaner.actors.protocol.reward import Sickness
from gleaner.actors.reward.sandbox.port import Status
from gleaner.actors.reward.verdicts import OURS

WINDOW = 200
LEAST = 20
OURS_OR_LATE = OURS | {Status.TIMEOUT.value}
MAX_TEXT = 500
"""Characters of a verifier's text that are kept."""


class VerifierHealth:
    """The health of one verifier.

    Args:
        share: of verdicts that fail, above which the verifier is sick; 1: never.
        limit_s: for how long it may be sick.
    """

    def __init__(self, share: float, limit_s: float) -> None:
        self._share, self._limit_s = share, limit_s
        self._window: deque[str] = deque(maxlen=WINDOW)
        self._since_s: float | None = None
        self.text = ""
        """The text of the last failure."""

    @property
    def sick(self) -> bool:
        return self._since_s is not None

    @property
    def outage(self) -> bool:
        """It is sick by so many verdicts that another response to the same problem would not help."""
        return self.sick and len(self._window) >= LEAST

    def observe(self, status: str, detail: str, now_s: float) -> None:
        """Add a verdict."""
        self._window.append(status)
        if self.fails(status):
            self.text = " ".join(detail.split())[:MAX_TEXT]
        if self._since_s is None:
            if self._failing(list(self._window)):
                self._since_s = now_s
        elif not self._failing(newest := list(self._window)[-LEAST:]):
            self._since_s = None
            self._window = deque(newest, maxlen=WINDOW)

    def fails(self, status: str) -> bool:
        """Whether a verdict with this status counts as a failure, by present knowledge."""
        return status in _failures(self._window)

    def idle(self) -> None:
        """No verdict is pending."""
        if self._since_s is None:
            return
        self._since_s = None
        if not self.fails(self._window[-1]):
            self._window.clear()

    def sickness(self, now_s: float) -> Sickness | None:
        """The present sickness; None while it is well."""
        if self._since_s is None:
            return None
        failures = _failures(self._window)
        counts = Counter(status for status in self._window if status in failures)
        return Sickness(
            for_s=now_s - self._since_s,
            limit_s=self._limit_s,
            of=len(self._window),
            counts=dict(sorted(counts.items())),
            text=self.text,
        )

    def _failing(self, statuses: list[str]) -> bool:
        failures = _failures(statuses)
        failed = sum(map(failures.__contains__, statuses))
        if len(statuses) < LEAST:
            return self._share < 1.0 and failed == len(statuses)
        return failed > self._share * len(statuses)


def _failures(statuses: Iterable[str]) -> Set[str]:
    """The verdicts that are no evidence about their responses."""
    return OURS_OR_LATE if OURS_OR_LATE.issuperset(statuses) else OURS
