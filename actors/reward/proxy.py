"""`RewardProxy`: the entry to every reward computation of the job.

Owns the open items and their hosts: the worker processes of its own host, and those that reward hosts offer.
A wrong answer, a verifier that hangs and one that crashes are all verdicts; none of them is a hang or the
proxy's own death. A reward may be computed more than once; the manager counts the first verdict only. Over a
restart the proxy keeps verdicts that took long, histories of batches, and anchors of adaptive timeouts.
"""

import asyncio
from collections import Counter
from functools import partial

import msgspec

from gleaner.actors.protocol.instances import NewWork, Withdraw
from gleaner.actors.protocol.reward import (
    BatchEnded,
    BlobPart,
    CancelScores,
    GetProblems,
    ItemsScored,
    OfferWorkers,
    ReadBlob,
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
from gleaner.actors.reward.assignment.batches import RewardBatch
from gleaner.actors.reward.assignment.jobs import JobLimits, JobSick, TooMany
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.blob_transfer import BlobTransfer
from gleaner.actors.reward.host_offers import HostOffers
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.journal import RewardJournal
from gleaner.actors.reward.learnt_limits import LearntLimits
from gleaner.actors.reward.local_services import WORKERS, ServedProblems, ServedPrograms
from gleaner.actors.reward.local_workers import LocalWorkers
from gleaner.actors.reward.planning.choice import CHECKS, STATIC
from gleaner.actors.reward.pool import PoolFailed
from gleaner.actors.reward.scaling import WorkerScaling
from gleaner.actors.reward.scoring import StartWorker, WorkerSpec
from gleaner.actors.reward.scoring_queue import Verdict as Scored
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.stage_pools import OWN_PARTS, HostParts, StageLimits, StagePools
from gleaner.actors.reward.stages import Pipelines
from gleaner.actors.reward.status import state_of
from gleaner.actors.reward.timeouts import AdaptiveTimeouts
from gleaner.actors.reward.verdicts import OURS
from gleaner.supervisor import (
    Actor,
    Crashed,
    Deferred,
    Done,
    Overloaded,
    Refused,
    Suspected,
    Terminated,
    handles,
)

TEXT_SCORER = "gleaner.actors.reward.text_tasks:make"
MOST_ITEMS = 2**16
"""That a batch may be announced with."""


def settings_of_task(settings: RewardSettings) -> dict[str, object]:
    """The settings for a worker, as plain values."""
    return {
        "job": {"seed": settings.job.seed, "name": settings.job.name},
        "task": msgspec.to_builtins(settings.task),
        "reward": msgspec.to_builtins(settings.reward),
    }


def worker_spec(settings: RewardSettings, tokenizer_dir: str) -> WorkerSpec:
    """What a job's workers run: the task of the settings. tokenizer_dir: checkpoint directory whose tokenizer
    turns tokens into text."""
    return WorkerSpec(config={"settings": settings_of_task(settings), "tokenizer": tokenizer_dir})


def text_worker(settings: RewardSettings) -> WorkerSpec:
    """What the workers of a reward service run: the same tasks, of texts; there is no tokenizer."""
    return WorkerSpec(scorer=TEXT_SCORER, config={"settings": settings_of_task(settings)})


class RewardProxy(Actor):
    """Answers `Score`, `ScoreText`, `RunCode` and `GetProblems`.

    Args:
        settings: sections `job`, `task` and `reward`.
        tokenizer_dir: checkpoint directory whose tokenizer turns tokens into text.
        start_worker: starts a process that scores.
        scorer: what the workers run; None: the task of the settings.
        jobs: limits of the jobs that share it, where there are several.
        parts: what the workers of its host are made with, beside their processes.

    Raises ValueError where a stage has no worker anywhere.
    """

    def __init__(
        self,
        settings: RewardSettings,
        tokenizer_dir: str,
        start_worker: StartWorker,
        scorer: WorkerSpec | None = None,
        jobs: JobLimits | None = None,
        parts: HostParts = OWN_PARTS,
    ) -> None:
        self._limits = settings.reward
        self._pipelines = Pipelines(settings.task, settings.reward)
        if problem := self._pipelines.problem():
            raise ValueError(problem)
        self._pools = StagePools(
            StageLimits.of(settings.reward, self._pipelines, self._pipelines.workers()),
            scorer or worker_spec(settings, tokenizer_dir),
            start_worker,
            parts,
        )
        self._dispatch = ItemDispatch(
            self._pipelines.names,
            settings.reward.max_queue,
            settings.reward.attempts,
            jobs,
            settings.reward.aging_s,
            settings.reward.planner.history_batches,
        )
        self._dispatch.hosts.most_ahead = self._pools.most_ahead
        self._given: Counter[str] = Counter()  # verdicts, by status
        self._learnt: LearntLimits | None = None  # with adaptive timeouts

    async def on_start(self) -> None:
        limits, dispatch = self._limits, self._dispatch
        timeouts = AdaptiveTimeouts(limits.timeouts, self.ctx.rng) if limits.timeouts.adaptive else None
        self._journal = RewardJournal(
            self.ctx.journal, timeouts, dispatch.verdicts, dispatch.batches, dispatch.passed, self.ctx.log
        )
        await self._journal.replay(self.ctx.now())
        if timeouts is not None:
            self._learnt = LearntLimits(
                self.ctx, self._pools.first, timeouts, self._journal, limits.verdict_s
            )
        self._problems = ServedProblems(self.ctx, self._pools.first, limits.verdict_s, limits.problem_s)
        self._programs = ServedPrograms(self.ctx, self._pools.first, limits.attempts)
        dispatch.settlement.on_verdict = self._record
        dispatch.settlement.on_passed = self._record_passed
        self._blobs = BlobTransfer(self.ctx, self._pools.blobs)
        self._pools.start(self.ctx.wait)
        self.ctx.at_end(self._pools.close)
        planner = self._limits.planner
        self._scaling = WorkerScaling(
            self.ctx,
            self._dispatch,
            planner,
            self._pipelines.stages,
            least={WORKERS: 1},
            resize=self._dispatch.resize,
        )
        self._scaling.on_lapsed = self._lapsed
        self._offers = HostOffers(self.ctx, self._dispatch, self._scaling.hosts_changed)
        local = LocalWorkers(
            self.ctx,
            WORKERS,
            self._pools,
            self._dispatch,
            self._blobs,
            self._pool_failed,
        )
        self._dispatch.join(WORKERS, self._pools.most, local)
        if planner.kind != STATIC:
            self.ctx.background(self._scaling.run(), "scaling")

    def _pool_failed(self, problem: PoolFailed) -> None:
        """The supervisor starts another pool, or gives up with the error."""
        self._dispatch.fail(Crashed(str(problem)))
        self.ctx.crash(problem)

    # -- problems and programs --

    @handles(GetProblems)
    async def problems(self, message: GetProblems) -> Deferred:
        return self._problems.pose(message)

    @handles(RunCode)
    async def run_code(self, message: RunCode) -> Deferred:
        return self._programs.run(message)

    # -- scores --

    @handles(RewardHint)
    async def hint(self, message: RewardHint) -> None:
        items = min(max(message.items, 0), MOST_ITEMS)
        if self._limits.planner.kind != STATIC:
            self._journal.batch_announced(message.batch, items, message.kind)
        if self._dispatch.batches.hint(message.batch, items, self.ctx.now(), message.kind):
            self._scaling.changed()
        self._pools.opened(message.batch, items, message.kind)

    @handles(Score)
    async def score(self, message: Score) -> Deferred:
        if len(message.tokens) % 4:
            raise Refused(f"{message.request}: {len(message.tokens)} bytes are no u32 tokens")
        limits = self._learnt.limits(message) if self._learnt is not None else None
        item = pipe.score_item(message.split, message.index, message.tokens, limits)
        return self._submit(message, item, self._pipelines.of_problem(message.split, message.index))

    @handles(ScoreText)
    async def score_text(self, message: ScoreText) -> Deferred:
        item = pipe.TextItem(message.task, message.entry, message.response)
        return self._submit(message, item, self._pipelines.of_task(message.task))

    def _submit(self, message: Score | ScoreText, work: pipe.Scorable, pipeline: tuple[str, ...]) -> Deferred:
        try:
            packed = pipe.pack(work)
        except pipe.BadFrame as problem:
            raise Refused(f"{message.request}: {problem}") from problem
        deferred = Deferred()
        job = message.job if isinstance(message, ScoreText) else ""
        item = RewardItem(message.request, message.batch, self.ctx.now(), pipeline[0], packed, job, pipeline)
        try:
            verdict = self._dispatch.submit(item)
        except TooMany as full:
            deferred.answer(Overloaded(str(full)))
            return deferred
        except JobSick as sick:
            deferred.answer(Refused(str(sick)))
            return deferred
        verdict.add_done_callback(partial(self._answer, message, deferred))
        batch = self._dispatch.batches.get(message.batch)
        if batch is not None and batch.arrived == 1:
            if batch.expected and self._limits.planner.kind != STATIC:  # again, if it had lapsed
                self._journal.batch_announced(batch.name, batch.expected, batch.announced)
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
            if verdict.tests and isinstance(message, Score) and self._learnt is not None:
                self._learnt.learn(message, verdict.tests)
            deferred.answer(
                Verdict(request=request, score=verdict.score, status=verdict.status, detail=verdict.detail)
            )

    def _record(self, item: RewardItem, verdict: Scored) -> None:
        """Keep a verdict that took long over a restart: short ones are computed again."""
        if verdict.status not in OURS and item.took_s >= self._limits.journal_above_s:
            self._journal.verdict_given(item.batch, item.id, verdict)

    def _record_passed(self, item: RewardItem) -> None:
        """Keep what a stage left that took long, in the same way."""
        if item.took_s >= self._limits.journal_above_s:
            self._journal.stage_passed(item)

    @handles(ReadBlob)
    async def read_blob(self, message: ReadBlob) -> BlobPart:
        return await self._blobs.part(message)

    @handles(CancelScores)
    async def cancel(self, message: CancelScores) -> None:
        self._dispatch.cancel(message.requests)
        self._programs.cancel(message.requests)

    @handles(BatchEnded)
    async def batch_ended(self, message: BatchEnded) -> None:
        ended = self._dispatch.end_batch(message.batch)
        if ended is not None:
            self._pools.ended(message.batch)
        kind = ended.kind if ended is not None else ""
        planned = self._limits.planner.kind != STATIC
        history = ended.history() if ended is not None and planned else None
        self._journal.batch_closed(message.batch, kind, history)
        self._scaling.changed()

    def _lapsed(self, batch: RewardBatch) -> None:
        """Nothing of an announced batch came in time: no plan counts on it, in the next life neither."""
        self.ctx.log.warning(
            "batch %s was announced with %d items %.0f s ago, and none came: no workers are kept for it",
            batch.name,
            batch.expected,
            self.ctx.now() - batch.origin_s,
        )
        self._journal.batch_closed(batch.name, "", None)

    @handles(RewardStatus)
    async def status(self, message: RewardStatus) -> RewardState:
        planner = self._limits.planner
        delay_s = planner.max_delay_s if planner.kind in CHECKS else None
        return state_of(self._dispatch, self._scaling.planned, self.ctx.now(), message.request, delay_s)

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

    def summary(self) -> dict[str, str | int | float]:
        items = self._dispatch.items
        return {
            "workers": self._pools.alive,
            "hosts": len(self._offers),
            "queued": items.waiting,
            "running": len(items) - items.waiting,
            **({"programs": len(self._programs)} if self._programs else {}),
            "batches": len(self._dispatch.batches),
            **({"plans": self._scaling.plans} if self._scaling.plans else {}),
            **({"hints_expired": self._scaling.expired} if self._scaling.expired else {}),
            **{f"planned_{stage}": count for stage, count in self._scaling.planned.items()},
            **({"calls": self._pools.calls} if self._pools.served else {}),
            "workers_lost": self._pools.deaths.total(),
            "workers_cancelled": self._pools.cancelled,
            **({"blobs_fetched": self._blobs.fetched} if self._pools.staged else {}),
            **dict(sorted(self._dispatch.counts.items())),
            **{f"verdicts_{status}": count for status, count in sorted(self._given.items())},
            **(self._learnt.counts() if self._learnt is not None else {}),
        }
