"""`RewardProxy`: the entry to every reward computation of the job.

Owns the pool of worker processes and the verdicts of earlier requests. A wrong answer, a verifier that hangs
and one that crashes are all verdicts; none of them is a hang or the proxy's own death. A reward may be
computed more than once (the proxy keeps no journal); the manager counts the first verdict only.
"""

import asyncio
from array import array
from collections import Counter

import msgspec

from gleaner.actors.protocol.reward import GetProblems, Problems, Score, Verdict
from gleaner.actors.reward.pool import NoProblem, PoolFailed, PoolLimits, ProblemLost, WorkerPool
from gleaner.actors.reward.scoring import StartWorker, WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.supervisor import Actor, Crashed, Deferred, Overloaded, Refused, Suspended, handles

WORKERS = "the reward workers"


def settings_of_task(settings: RewardSettings) -> dict[str, object]:
    """The settings for a worker, as plain values."""
    return {
        "job": {"seed": settings.job.seed},
        "task": msgspec.to_builtins(settings.task),
        "reward": msgspec.to_builtins(settings.reward),
    }


class RewardProxy(Actor):
    """Answers `Score` and `GetProblems`.

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
        task = {"settings": settings_of_task(settings), "tokenizer": tokenizer_dir}
        self._pool = WorkerPool(
            scorer or WorkerSpec(config=task),
            start_worker,
            PoolLimits(
                workers=settings.reward.workers,
                deadline_s=settings.reward.worker_s,
                attempts=settings.reward.attempts,
                max_queue=settings.reward.max_queue,
            ),
        )
        self._late_s = settings.reward.verdict_s
        self._verdicts: Counter[str] = Counter()

    async def on_start(self) -> None:
        self._pool.start(self.ctx.wait)
        self.ctx.at_end(self._pool.close)

    @handles(GetProblems)
    async def problems(self, message: GetProblems) -> Deferred:
        deferred = Deferred()
        self.ctx.background(self._pose(message, deferred), "problems")
        return deferred

    async def _pose(self, message: GetProblems, deferred: Deferred) -> None:
        loop = asyncio.get_running_loop()
        asked = [loop.create_task(self._pool.problem(message.split, index)) for index in message.indices]
        try:
            async with self.ctx.wait("problems", on=WORKERS, deadline_s=self._late_s, go_on=True):
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

    @handles(Score)
    async def score(self, message: Score) -> Deferred:
        deferred = Deferred()
        self.ctx.background(self._judge(message, deferred), "score")
        return deferred

    async def _judge(self, message: Score, deferred: Deferred) -> None:
        if len(message.tokens) % 4:
            deferred.answer(Refused(f"{message.request}: {len(message.tokens)} bytes are no u32 tokens"))
            return
        try:
            late_s = self._late_s * (1 + self._pool.queued // self._pool.workers)
            async with self.ctx.wait("a verdict", on=WORKERS, deadline_s=late_s, go_on=True):
                verdict = await self._pool.score(message.split, message.index, array("I", message.tokens))
        except Overloaded as full:
            deferred.answer(full)
            return
        except PoolFailed as problem:
            deferred.answer(Crashed(str(problem)))
            raise
        self._verdicts[verdict.status] += 1
        deferred.answer(
            Verdict(
                request=message.request, score=verdict.score, status=verdict.status, detail=verdict.detail
            )
        )

    def summary(self) -> dict[str, str | int | float]:
        return {
            "workers": self._pool.alive,
            "queued": self._pool.queued,
            "workers_lost": self._pool.deaths.total(),
            **{f"verdicts_{status}": count for status, count in sorted(self._verdicts.items())},
        }
