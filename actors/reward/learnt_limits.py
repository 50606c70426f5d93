"""LearntLimits: adaptive timeouts of a job's programs, as the proxy uses them.

Owns which items have limits, what their results teach, and the audits, which run on the proxy's own host, one
at a time. `timeouts` has the policy.
"""

from array import array

from gleaner.actors.protocol.reward import Score
from gleaner.actors.reward.case_limits import CaseLimits, CaseTimes
from gleaner.actors.reward.journal import RewardJournal
from gleaner.actors.reward.local_services import WORKERS
from gleaner.actors.reward.pool import PoolFailed, WorkerPool
from gleaner.actors.reward.timeouts import AdaptiveTimeouts
from gleaner.supervisor import Context, Overloaded

ADAPTIVE_SPLIT = "train"
"""Held-out responses are measured, so no limit of theirs depends on other responses."""


class LearntLimits:
    """See the module. verdict_s: deadline of one verdict."""

    def __init__(
        self,
        ctx: Context,
        pool: WorkerPool,
        timeouts: AdaptiveTimeouts,
        journal: RewardJournal,
        verdict_s: float,
    ) -> None:
        self._ctx, self._pool, self._timeouts = ctx, pool, timeouts
        self._journal, self._verdict_s = journal, verdict_s
        self._audits = False  # one at a time, so audits take no more than one worker

    def limits(self, message: Score) -> CaseLimits:
        """The limits of the tests of a response's program."""
        adapts = message.split == ADAPTIVE_SPLIT
        return self._timeouts.limits(_problem(message)) if adapts else self._timeouts.unanchored()

    def learn(self, message: Score, tests: CaseTimes) -> None:
        """A program had limits, and took these times."""
        timeouts, problem = self._timeouts, _problem(message)
        if message.split != ADAPTIVE_SPLIT:
            return
        if raised := timeouts.observe(problem, tests):
            self._journal.anchor_raised(problem, raised)
        if tests.cut and not self._audits and timeouts.audits():
            self._audits = True
            self._ctx.background(self._audit(message), "audit")

    async def _audit(self, message: Score) -> None:
        """Run a program that was cut up to the longest limit, on this host; its verdict has been given."""
        late_s = self._verdict_s * (1 + self._pool.queued // self._pool.workers)
        try:
            async with self._ctx.wait("an audit", on=WORKERS, deadline_s=late_s, go_on=True):
                tokens, limits = array("I", message.tokens), self._timeouts.unanchored()
                found = await self._pool.score(message.split, message.index, tokens, limits=limits)
        except (Overloaded, PoolFailed) as problem:
            self._ctx.log.debug("no audit of %s: %s", message.request, problem)
        else:
            raised = self._timeouts.observe_audit(_problem(message), found.tests) if found.tests else None
            if raised:
                self._journal.anchor_raised(_problem(message), raised)
        finally:
            self._audits = False

    def counts(self) -> dict[str, int]:
        """Figures for inspection."""
        return {
            "timeouts_cut": self._timeouts.cut,
            "timeouts_audited": self._timeouts.audited,
            "timeout_would_have_passed": self._timeouts.would_have_passed,
            "anchors": self._timeouts.tests,
        }


def _problem(message: Score) -> str:
    return f"{message.split}/{message.index}"
