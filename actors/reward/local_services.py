"""ServedProblems and ServedPrograms: what the workers of the proxy's host do beside scoring.

Problems are posed for a job, programs are run for clients over HTTP. Both wait in the pool's own queue, which
bounds them.
"""

import asyncio
from collections.abc import Iterable

from gleaner.actors.protocol.reward import CodeRan, GetProblems, Problems, RunCode
from gleaner.actors.reward import pipe
from gleaner.actors.reward.pool import NoProblem, PoolFailed, ProblemLost, RunLost, WorkerPool
from gleaner.supervisor import Context, Crashed, Deferred, Overloaded, Refused, Suspended

WORKERS = "the reward workers"
"""Name of the workers of the proxy's own host."""
RUN_LATE, RUN_EXTRA_S = 4.0, 10.0
"""A worker may take so many times the seconds of a program, and so many more: for the start of a sandbox."""


class ServedProblems:
    """See the module. late_s: a problem that takes longer is reported. deadline_s: of a worker for one."""

    def __init__(self, ctx: Context, pool: WorkerPool, late_s: float, deadline_s: float) -> None:
        self._ctx, self._pool, self._late_s, self._deadline_s = ctx, pool, late_s, deadline_s

    def pose(self, message: GetProblems) -> Deferred:
        """The prompts of these problems."""
        deferred = Deferred()
        self._ctx.background(self._pose(message, deferred), "problems")
        return deferred

    async def _pose(self, message: GetProblems, deferred: Deferred) -> None:
        loop = asyncio.get_running_loop()
        asked = [
            loop.create_task(self._pool.problem(message.split, index, deadline_s=self._deadline_s))
            for index in message.indices
        ]
        try:
            async with self._ctx.wait("problems", on=WORKERS, deadline_s=self._late_s, go_on=True):
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


class ServedPrograms:
    """See the module. attempts: tries of one program."""

    def __init__(self, ctx: Context, pool: WorkerPool, attempts: int) -> None:
        self._ctx, self._pool, self._attempts = ctx, pool, attempts
        self._runs: dict[str, asyncio.Task[None]] = {}  # by request

    def __len__(self) -> int:
        """Programs that wait or run."""
        return len(self._runs)

    def run(self, message: RunCode) -> Deferred:
        """Run a program. Raises Refused for a request that runs already."""
        if message.request in self._runs:
            raise Refused(f"{message.request} runs already")
        deferred = Deferred()
        task = self._ctx.background(self._run(message, deferred), "run")
        self._runs[message.request] = task
        task.add_done_callback(lambda done: self._runs.pop(message.request, None))
        return deferred

    def cancel(self, requests: Iterable[str]) -> None:
        """The output of these is not needed."""
        for request in requests:
            if (run := self._runs.get(request)) is not None:
                run.cancel()

    async def _run(self, message: RunCode, deferred: Deferred) -> None:
        work = pipe.RunItem(message.language, message.code, message.stdin, message.run_s, message.compile_s)
        late_s = RUN_LATE * (message.run_s + message.compile_s) + RUN_EXTRA_S
        queued_s = late_s * (1 + self._pool.queued // self._pool.workers) * self._attempts
        try:
            async with self._ctx.wait("a program", on=WORKERS, deadline_s=queued_s, go_on=True):
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
