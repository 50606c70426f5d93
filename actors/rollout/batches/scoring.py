"""Scoring: one verdict of the RewardProxy for every finished request.

Owns the requests that wait for a verdict. It asks for as many at a time as may wait at the proxy, which turns
each failure of a verifier into a verdict. An ask that the proxy did not take, or did not answer, is repeated,
with ever longer pauses. While the verifier is sick (`gleaner.actors.reward.health`) its failure is not the
verdict of a sample. Scoring then asks for the verdict again in the same way, until the verifier has recovered
or the job ends.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import Score, Verdict
from gleaner.actors.reward.health import MAX_TEXT, VerifierHealth
from gleaner.actors.reward.verdicts import OURS
from gleaner.actors.rollout.batches.reward_notes import RewardNotes
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.events import Scored
from gleaner.actors.rollout.state.group_policy import made_again
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.token_log import Batch
from gleaner.configs.schema import Reward
from gleaner.supervisor import AskFailed, Context, Overloaded
from gleaner.supervisor.system_messages import WaitState

RETRY_S = 0.05
MAX_RETRY_S = 2.0
DEADLINE = "deadline"
"""Status of a response that ended at its deadline; it has the score of the text that there is."""


class Scoring:
    """See the module. `on_scored` is awaited with each verdict, in the order of arrival; `on_health` is
    called when the verifier becomes sick, or healthy."""

    def __init__(
        self,
        ctx: Context,
        journaled: JournaledState,
        limits: Reward,
        on_scored: Callable[[Scored], Awaitable[None]],
        on_health: Callable[[], None],
    ) -> None:
        self._ctx, self._journaled, self._limits = ctx, journaled, limits
        self._on_scored, self._on_health = on_scored, on_health
        self.health = VerifierHealth(limits.sick_share, limits.sick_limit_s)
        self.asked_again: Counter[str] = Counter()
        """Verdicts of a sick verifier since the manager's start, by status: no sample has them."""
        self._waiting: deque[str] = deque()  # bounded by the open requests
        self._asked: set[str] = set()
        self._notes = RewardNotes(ctx)
        ctx.lists_waits(self.waits)

    def start(self) -> None:
        """Start with the requests that the last incarnation had left without a verdict."""
        self._ctx.background(self._notes.run(), "notes to the reward proxy")
        for log in self._journaled.state.log.unscored():
            self.add(log.id)

    def add(self, request: str) -> None:
        """Queue a finished request."""
        self._waiting.append(request)
        self._ask_more()

    def opened(self, batch: Batch) -> None:
        """The rollout of a batch begins."""
        self._notes.opened(batch.name, sum(map(len, batch.groups)), batch.submitted.kind)

    def dropped(self, requests: Sequence[str]) -> None:
        """The verdicts of these requests are not needed."""
        if asked := [request for request in requests if request in self._asked]:
            self._notes.dropped(asked)

    def released(self, batch: str) -> None:
        """No verdict of this batch is requested again."""
        self._notes.released(batch)

    def waits(self, _loop_s: float) -> Iterator[WaitState]:
        """The wait on a sick verifier, if it is sick."""
        if (sick := self.health.sickness(self._ctx.now())) is not None:
            yield WaitState(
                who=self._ctx.name,
                what=f"a verifier that scores ({sick.words})",
                on=REWARD,
                since_s=sick.for_s,
                left_s=max(0.0, sick.limit_s - sick.for_s),
            )

    def _ask_more(self) -> None:
        while self._waiting and len(self._asked) < self._limits.max_queue:
            log = self._journaled.state.log.requests.get(self._waiting.popleft())
            if log is not None and not log.judged and log.state is RequestState.FINISHED:
                self._asked.add(log.id)
                self._ctx.background(self._score(log), "score")

    async def _score(self, log: RequestLog) -> None:
        try:
            await self._until_scored(log)
        finally:
            self._asked.discard(log.id)
        self._ask_more()
        if not self._asked:
            self._idle()

    async def _until_scored(self, log: RequestLog) -> None:
        if not self._wanted(log):
            return
        if log.due and not len(log):  # there is no text to score
            await self._on_scored(Scored(request=log.id, score=0.0, status=DEADLINE))
            return
        prompt = self._journaled.state.log.batches[log.batch].prompt(log.group)
        ask = Score(
            request=log.id,
            split=prompt.split,
            index=prompt.index,
            tokens=log.tokens_bytes(),
            batch=log.batch,
        )
        late_s = 2 * self._deadline_s()
        async with self._ctx.wait("a verdict", on=REWARD, deadline_s=late_s, go_on=True):
            scored = await self._ask_until_scored(log, ask)
        if scored is not None:
            await self._on_scored(scored)

    def _deadline_s(self) -> float:
        """Deadline of one ask: others may be ahead of it."""
        return self._limits.verdict_s * (1 + len(self._asked) // self._limits.workers)

    async def _ask_until_scored(self, log: RequestLog, ask: Score) -> Scored | None:
        """The verdict of a sample; None if it was dropped meanwhile."""
        pause_s, failures = RETRY_S, 0
        while self._wanted(log):
            try:
                verdict = await self._ctx.ask(
                    REWARD,
                    ask,
                    deadline_s=self._deadline_s(),
                    expect=Verdict,
                    key=f"score/{log.id}/{failures}",  # a failed ask is a new one, not answered as before
                )
            except Overloaded as full:  # others are ahead: only pause
                self._ctx.log.debug("score not received: request=%s: %s", log.id, full)
            except AskFailed as problem:
                if not self._wanted(log):  # it was dropped, and the proxy answered that
                    return None
                self._ctx.log.warning("score not received: request=%s: %s", log.id, problem)
            else:
                self._observe(verdict)
                if not self._wanted(log):
                    return None
                if not self._tried_again(log, verdict.status):
                    return _scored(log, verdict)
                self.asked_again[verdict.status] += 1
                failures += 1
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_RETRY_S)
        return None

    def _wanted(self, log: RequestLog) -> bool:
        """Whether it is still finished and open: it was not dropped meanwhile."""
        return log.id in self._journaled.state.log.requests and log.state is RequestState.FINISHED

    def _tried_again(self, log: RequestLog, status: str) -> bool:
        """Whether this failure is the verifier's, so that the same response is scored again. With few
        verdicts the response may be at fault: then the sample is generated again first."""
        if not (self.health.sick and self.health.fails(status)):
            return False
        most = self._journaled.state.log.batches[log.batch].submitted.again
        return self.health.outage or log.due or not made_again(status, log.again, most)

    def _observe(self, verdict: Verdict) -> None:
        before = self.health.sick
        self.health.observe(verdict.status, verdict.detail, self._ctx.now())
        self._changed(before)

    def _idle(self) -> None:
        before = self.health.sick
        self.health.idle()
        self._changed(before)

    def _changed(self, before: bool) -> None:
        """Log and report a change of the verifier's health; `before`: whether it was sick."""
        if (sick := self.health.sickness(self._ctx.now())) is not None and not before:
            self._ctx.log.error("no groups are handed out, the verifier is sick: %s", sick.words)
        elif before and sick is None:
            self._ctx.log.warning("the verifier is well again")
        if before != self.health.sick:
            self._on_health()


def _scored(log: RequestLog, verdict: Verdict) -> Scored:
    """The event of a verdict: a failure of our own has no score, whatever the verdict contains; any other has
    one."""
    if verdict.status in OURS or verdict.score is None:
        return Scored(request=log.id, score=None, status=verdict.status, detail=verdict.detail[:MAX_TEXT])
    return Scored(request=log.id, score=verdict.score, status=DEADLINE if log.due else verdict.status)
