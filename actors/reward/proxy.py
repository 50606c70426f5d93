"""`RewardProxy`: the entry to every reward computation of the job.

Owns the open items and their hosts: the worker processes of its own host, and those that reward hosts offer.
A wrong answer, a verifier that hangs and one that crashes are all verdicts; none of them is a hang or the
proxy's own death. A reward may be computed more than once; the manager counts the first verdict only. Over a
restart the proxy keeps verdicts that took long, histories of batches, and anchors of adaptive timeouts.
"""

import asyncio
from array import array
from collections import Counter
from functools import partial

import msgspec

from gleaner.actors.protocol.instances import NewWork, Withdraw
from gleaner.actors.protocol.reward import (
    BatchEnded,
    CancelScores,
    CodeRan,
    GetProblems,
    ItemsScored,
    OfferWorkers,
    Problems,
    RewardHint,
    RewardState,
    RewardStatus,
    RunCode,
    Score,
    ScoreText,
    StillOffered,
    Verdict,
    WorkersTaken,
)
from gleaner.actors.reward import pipe
from gleaner.actors.reward.assignment.open_items import RewardItem, TooMany
from gleaner.actors.reward.case_limits import CaseLimits, CaseTimes
from gleaner.actors.reward.host_offers import HostOffers
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.journal import RewardJournal
from gleaner.actors.reward.local_workers import LocalWorkers
from gleaner.actors.reward.planning.choice import STATIC
from gleaner.actors.reward.planning.items import Stage
from gleaner.actors.reward.pool import (
    NoProblem,
    PoolFailed,
    PoolLimits,
    ProblemLost,
    RunLost,
    WorkerPool,
)
from gleaner.actors.reward.scaling import WorkerScaling
from gleaner.actors.reward.scoring import StartWorker, WorkerSpec
from gleaner.actors.reward.scoring_queue import Verdict as Scored
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.status import state_of
from gleaner.actors.reward.timeouts import AdaptiveTimeouts
from gleaner.actors.reward.verdicts import OURS
from gleaner.configs.schema import Reward
from gleaner.supervisor import (
    Actor,
    Crashed,
    Deferred,
    Done,
    Overloaded,
    Refused,
    Suspected,
    Suspended,
    Terminated,
    handles,
)

WORKERS = "the reward workers"
SCORE = "score"
"""The stage of a pipeline that has one."""
MOST_ITEMS = 2**16
"""That a batch may be announced with."""
ADAPTIVE_SPLIT = "train"
"""Held-out responses are measured, so no limit of theirs depends on other responses."""
RUN_LATE, RUN_EXTRA_S = 4.0, 10.0
"""A worker may take so many times the seconds of a program, and so many more: for the start of a sandbox."""


def settings_of_task(settings: RewardSettings) -> dict[str, object]:
    """The settings for a worker, as plain values."""
    return {
        "job": {"seed": settings.job.seed},
        "task": msgspec.to_builtins(settings.task),
        "reward": msgspec.to_builtins(settings.reward),
    }


def worker_spec(settings: RewardSettings, tokenizer_dir: str) -> WorkerSpec:
    """What a job's workers run: the task of the settings. tokenizer_dir: checkpoint directory whose tokenizer
    turns tokens into text."""
    return WorkerSpec(config={"settings": settings_of_task(settings), "tokenizer": tokenizer_dir})


def pool_limits(reward: Reward) -> PoolLimits:
    """The limits of the workers of one host."""
    return PoolLimits(
        workers=reward.workers,
        deadline_s=reward.worker_s,
        attempts=reward.attempts,
        max_queue=reward.max_queue,
    )


class RewardProxy(Actor):
    """Answers `Score`, `ScoreText`, `RunCode` and `GetProblems`.

    Args:
        settings: sections `job`, `task` and `reward`.
        tokenizer_dir: checkpoint directory whose tokenizer turns tokens into text.
        start_worker: starts a process that scores.
        scorer: what the workers run; None: the task of the settings.
    """

    def __init__(
        self,
        settings: RewardSettings,
        tokenizer_dir: str,
        start_worker: StartWorker,
        scorer: WorkerSpec | None = None,
    ) -> None:
        self._limits = settings.reward
        self._pool = WorkerPool(
            scorer or worker_spec(settings, tokenizer_dir), start_worker, pool_limits(settings.reward)
        )
        self._dispatch = ItemDispatch([[SCORE]], settings.reward.max_queue, settings.reward.attempts)
        self._given: Counter[str] = Counter()  # verdicts, by status
        self._timeouts: AdaptiveTimeouts | None = None
        self._audits = False  # one at a time, so audits take no more than one worker
        self._runs: dict[str, asyncio.Task[None]] = {}  # programs by request; the pool's queue bounds them

    async def on_start(self) -> None:
        if self._limits.timeouts.adaptive:
            self._timeouts = AdaptiveTimeouts(self._limits.timeouts, self.ctx.rng)
        dispatch = self._dispatch
        self._journal = RewardJournal(
            self.ctx.journal, self._timeouts, dispatch.verdicts, dispatch.batches, self.ctx.log
        )
        await self._journal.replay()
        dispatch.on_verdict = self._record
        self._pool.start(self.ctx.wait)
        self.ctx.at_end(self._pool.close)
        planner = self._limits.planner
        self._scaling = WorkerScaling(
            self.ctx,
            self._dispatch,
            planner,
            [Stage(SCORE, timeout_s=self._limits.worker_s)],
            least={WORKERS: 1},
            resize=self._dispatch.resize,
        )
        self._offers = HostOffers(self.ctx, self._dispatch, self._scaling.hosts_changed)
        local = LocalWorkers(
            self.ctx, WORKERS, self._pool, self._limits.verdict_s, self._dispatch, self._pool_failed
        )
        self._dispatch.join(WORKERS, {SCORE: self._limits.workers}, local)
        if planner.kind != STATIC:
            self.ctx.background(self._scaling.run(), "scaling")

    def _pool_failed(self, problem: PoolFailed) -> None:
        """The supervisor starts another pool, or gives up with the error."""
        self._dispatch.fail(Crashed(str(problem)))
        self.ctx.crash(problem)

    # -- problems --

    @handles(GetProblems)
    async def problems(self, message: GetProblems) -> Deferred:
        deferred = Deferred()
        self.ctx.background(self._pose(message, deferred), "problems")
        return deferred

    async def _pose(self, message: GetProblems, deferred: Deferred) -> None:
        loop = asyncio.get_running_loop()
        asked = [loop.create_task(self._pool.problem(message.split, index)) for index in message.indices]
        late_s = self._limits.verdict_s
        try:
            async with self.ctx.wait("problems", on=WORKERS, deadline_s=late_s, go_on=True):
                posed = await asyncio.gather(*asked)
        except (ProblemLost, Overloaded) as problem:  # a job waits for it, and must not fail
            deferred.answer(Suspended(str(problem)))
            return
        except NoProblem as problem:
            deferred.answer(Refused(str(problem)))
            return
        except PoolFailed as problem:
            deferred.answer(Crashed(str(problem)))
            raise  # the supervisor starts another pool, or gives up with an error
        finally:
            for one in asked:  # if one is lost all are requested anew, so the others are not needed
                one.cancel()
        deferred.answer(Problems(prompts=[one.prompt_tokens for one in posed]))

    # -- scores --

    @handles(RewardHint)
    async def hint(self, message: RewardHint) -> None:
        items = min(max(message.items, 0), MOST_ITEMS)
        if self._dispatch.batches.hint(message.batch, items, self.ctx.now()):
            self._scaling.changed()

    @handles(Score)
    async def score(self, message: Score) -> Deferred:
        if len(message.tokens) % 4:
            raise Refused(f"{message.request}: {len(message.tokens)} bytes are no u32 tokens")
        limits = self._case_limits(message)
        return self._submit(message, pipe.score_item(message.split, message.index, message.tokens, limits))

    @handles(ScoreText)
    async def score_text(self, message: ScoreText) -> Deferred:
        return self._submit(message, pipe.TextItem(message.task, message.entry, message.response))

    @handles(RunCode)
    async def run_code(self, message: RunCode) -> Deferred:
        deferred = Deferred()
        if message.request in self._runs:
            raise Refused(f"{message.request} runs already")
        task = self.ctx.background(self._run(message, deferred), "run")
        self._runs[message.request] = task
        task.add_done_callback(lambda done: self._runs.pop(message.request, None))
        return deferred

    async def _run(self, message: RunCode, deferred: Deferred) -> None:
        work = pipe.RunItem(message.language, message.code, message.stdin, message.run_s, message.compile_s)
        late_s = RUN_LATE * (message.run_s + message.compile_s) + RUN_EXTRA_S
        queued_s = late_s * (1 + self._pool.queued // self._pool.workers) * self._limits.attempts
        try:
            async with self.ctx.wait("a program", on=WORKERS, deadline_s=queued_s, go_on=True):
                found = await self._pool.run(work, deadline_s=late_s)
        except Overloaded as full:
            deferred.answer(full)
        except RunLost as problem:  # after all its tries
            deferred.answer(Refused(str(problem)))
        except PoolFailed as problem:
            deferred.answer(Crashed(str(problem)))
            raise  # the supervisor starts another pool, or gives up with an error
        except asyncio.CancelledError:
            deferred.answer(Refused(f"{message.request}: its output is not needed any more"))
            raise
        else:
            deferred.answer(CodeRan(request=message.request, ran=found.ran, compiled=found.compiled))

    def _submit(self, message: Score | ScoreText, work: pipe.Scorable) -> Deferred:
        try:
            packed = pipe.pack(work)
        except pipe.BadFrame as problem:
            raise Refused(f"{message.request}: {problem}") from problem
        deferred = Deferred()
        item = RewardItem(message.request, message.batch, self.ctx.now(), [SCORE], packed)
        try:
            verdict = self._dispatch.submit(item)
        except TooMany as full:
            deferred.answer(Overloaded(str(full)))
            return deferred
        verdict.add_done_callback(partial(self._answer, message, deferred))
        batch = self._dispatch.batches.get(message.batch)
        if batch is not None and batch.arrived == 1:
            self._scaling.changed()
        return deferred

    def _answer(self, message: Score | ScoreText, deferred: Deferred, done: "asyncio.Future[Scored]") -> None:
        request = message.request
        if done.cancelled():
            deferred.answer(Refused(f"{request}: its verdict is not needed any more"))
        elif (problem := done.exception()) is not None:
            deferred.answer(problem if isinstance(problem, Crashed) else Crashed(str(problem)))
        else:
            verdict = done.result()
            self._given[verdict.status] += 1
            if verdict.tests and isinstance(message, Score):
                self._learn(message, verdict.tests)
            deferred.answer(
                Verdict(request=request, score=verdict.score, status=verdict.status, detail=verdict.detail)
            )

    def _record(self, item: RewardItem, verdict: Scored) -> None:
        """Keep a verdict that took long over a restart: short ones are computed again."""
        if verdict.status not in OURS and sum(item.times_s) >= self._limits.journal_above_s:
            self._journal.verdict_given(item.batch, item.id, verdict)

    @handles(CancelScores)
    async def cancel(self, message: CancelScores) -> None:
        self._dispatch.cancel(message.requests)
        for request in message.requests:
            if (run := self._runs.get(request)) is not None:
                run.cancel()

    @handles(BatchEnded)
    async def batch_ended(self, message: BatchEnded) -> None:
        ended = self._dispatch.end_batch(message.batch)
        kind = ended.kind if ended is not None else ""
        planned = ended is not None and self._limits.planner.kind != STATIC
        history = self._dispatch.batches.history(kind) if planned else None
        self._journal.batch_closed(message.batch, kind, history)
        self._scaling.changed()

    @handles(RewardStatus)
    async def status(self, message: RewardStatus) -> RewardState:
        return state_of(self._dispatch, self._scaling.planned, self.ctx.now(), message.request)

    # -- reward hosts --

    @handles(OfferWorkers)
    async def offered(self, message: OfferWorkers) -> WorkersTaken:
        return self._offers.take(message)

    @handles(StillOffered)
    async def still_offered(self, message: StillOffered) -> Done:
        self._offers.require(message.host, message.epoch)
        return Done()

    @handles(ItemsScored)
    async def scored(self, message: ItemsScored) -> Done:
        self._offers.scored(message)
        return Done()

    @handles(Withdraw)
    async def withdraw(self, message: Withdraw) -> Deferred:
        return self._offers.drain(message.instance, message.grace_s)

    @handles(NewWork)
    async def new_work(self, message: NewWork) -> Done:
        self._offers.allow(message.instance, allowed=message.allowed)
        return Done()

    async def on_suspected(self, event: Suspected) -> None:
        self._offers.suspected(event.name, suspected=event.suspected)

    async def on_terminated(self, event: Terminated) -> None:
        self._offers.ended(event.name, event.incarnation, event.cause)

    # -- timeouts --

    def _case_limits(self, message: Score) -> CaseLimits | None:
        if self._timeouts is None:
            return None
        adapts = message.split == ADAPTIVE_SPLIT
        return self._timeouts.limits(_problem(message)) if adapts else self._timeouts.unanchored()

    def _learn(self, message: Score, tests: CaseTimes) -> None:
        timeouts, problem = self._timeouts, _problem(message)
        if timeouts is None or message.split != ADAPTIVE_SPLIT:
            return
        if raised := timeouts.observe(problem, tests):
            self._journal.anchor_raised(problem, raised)
        if tests.cut and not self._audits and timeouts.audits():
            self._audits = True
            self.ctx.background(self._audit(message, timeouts), "audit")

    async def _audit(self, message: Score, timeouts: AdaptiveTimeouts) -> None:
        """Run a program that was cut up to the longest limit, on this host; its verdict has been given."""
        late_s = self._limits.verdict_s * (1 + self._pool.queued // self._pool.workers)
        try:
            async with self.ctx.wait("an audit", on=WORKERS, deadline_s=late_s, go_on=True):
                tokens, limits = array("I", message.tokens), timeouts.unanchored()
                found = await self._pool.score(message.split, message.index, tokens, limits=limits)
        except (Overloaded, PoolFailed) as problem:
            self.ctx.log.debug("no audit of %s: %s", message.request, problem)
        else:
            raised = timeouts.observe_audit(_problem(message), found.tests) if found.tests else None
            if raised:
                self._journal.anchor_raised(_problem(message), raised)
        finally:
            self._audits = False

    def summary(self) -> dict[str, str | int | float]:
        items = self._dispatch.items
        return {
            "workers": self._pool.alive,
            "hosts": len(self._offers),
            "queued": items.waiting,
            "running": len(items) - items.waiting,
            **({"programs": len(self._runs)} if self._runs else {}),
            "batches": len(self._dispatch.batches),
            **({"plans": self._scaling.plans} if self._scaling.plans else {}),
            **{f"planned_{stage}": count for stage, count in self._scaling.planned.items()},
            "workers_lost": self._pool.deaths.total(),
            **dict(sorted(self._dispatch.counts.items())),
            **{f"verdicts_{status}": count for status, count in sorted(self._given.items())},
            **self._timeout_counts(),
        }

    def _timeout_counts(self) -> dict[str, int]:
        if self._timeouts is None:
            return {}
        return {
            "timeouts_cut": self._timeouts.cut,
            "timeouts_audited": self._timeouts.audited,
            "timeout_would_have_passed": self._timeouts.would_have_passed,
            "anchors": self._timeouts.tests,
        }


def _problem(message: Score) -> str:
    return f"{message.split}/{message.index}"
