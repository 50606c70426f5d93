"""`WorkerPool`: scoring processes; every item gets a verdict, never a hang.

Owns the workers and the count of their deaths. `scoring_queue` owns the order of scoring, and `scoring` the
protocol of a worker.

- Waiting items are given to a worker together, up to `TOGETHER`. If that fails, each is tried alone.
- An item that hangs its worker beyond the deadline, or crashes it, costs that worker; it is tried alone
  `attempts` times, then its verdict is "lost". Other items are not affected. An item that got a verdict of
  ours from a live worker is tried again in the same way; the last verdict counts.
- A worker whose items are all cancelled is killed half a second later (`unneeded_work`), with what it runs in
  the sandbox, and replaced at once. That is no failure of an item or a worker.
- A dead worker is replaced: at once, as long as fewer than `intensity.restarts` were replaced within
  `intensity.within_s`; beyond that each replacement backs off, so a storm costs time, not the machine.
- A scorer that cannot be loaded, or workers that cannot be started more than `intensity.restarts` times in a
  row, end the pool: every item gets `PoolFailed`.
- The queue has a limit; at the limit `Overloaded`.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from gleaner.actors.reward import pipe
from gleaner.actors.reward.case_limits import CaseLimits
from gleaner.actors.reward.scoring import (
    ScorerUnusable,
    ScoringWorker,
    StartWorker,
    WorkerDied,
    WorkerHung,
    WorkerSpec,
)
from gleaner.actors.reward.scoring_queue import ScoringItem, ScoringQueue, Verdict
from gleaner.actors.reward.unneeded_work import NotNeeded, while_needed
from gleaner.actors.reward.verdicts import BLOB_LOST, LOST, OURS, PASSED, VERIFIER_FAILED
from gleaner.configs.schema import Reward
from gleaner.supervisor import Intensity, Overloaded

LONGEST_BACKOFF_S = 5.0
RETIRED, CANCELLED = "retired", "cancelled"
"""Ends of workers that are not needed any more, or whose items are not."""
START_LATE_S = 5.0  # beyond the time of a worker for its start: then the start itself hangs


class Wait(Protocol):
    """`Context.wait`."""

    def __call__(
        self, what: str, *, on: str, deadline_s: float, go_on: bool = False
    ) -> AbstractAsyncContextManager[object]: ...


def _unlisted(
    what: str, *, on: str, deadline_s: float, go_on: bool = False
) -> AbstractAsyncContextManager[object]:
    """For a pool outside of actors (tests, tools)."""
    return nullcontext()


class PoolFailed(RuntimeError):
    """No worker can be had, or the pool was closed; the text gives the reason."""


class NoProblem(LookupError):
    """The scorer gave no problem for a split and index; the text gives the reason."""


class ProblemLost(NoProblem):
    """Its workers hung, died or sent invalid replies; a repeated request may get the problem."""


class RunLost(RuntimeError):
    """A program was not run, for a reason outside of it; the text gives it."""


@dataclass(slots=True)
class Restarts:
    """Computes the time of the next worker start; pure, with times as arguments."""

    intensity: Intensity
    times_s: deque[float] = field(default_factory=deque)

    def delay_s(self, now_s: float) -> float:
        """Note a restart and return its delay."""
        while self.times_s and self.times_s[0] <= now_s - self.intensity.within_s:
            self.times_s.popleft()
        excess = len(self.times_s) - self.intensity.restarts
        self.times_s.append(now_s)
        backoff_s = min(self.intensity.backoff_s * 2.0 ** min(max(excess, 0), 20), LONGEST_BACKOFF_S)
        return backoff_s if excess >= 0 else 0.0


def verdict_of(answer: pipe.Answer | Verdict) -> Verdict:
    """The verdict in a reply; anything but a score is our failure."""
    match answer:
        case Verdict():
            return answer
        case pipe.ScoreOut(score, status, detail, tests):
            return Verdict(None if status in OURS or status == BLOB_LOST else score, status, detail, tests)
        case pipe.PassedOut(carried):
            return Verdict(None, PASSED, carried=carried)
        case pipe.Failed(detail):
            return Verdict(None, VERIFIER_FAILED, detail)
    return Verdict(None, VERIFIER_FAILED, f"the worker answered {type(answer).__name__}")


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of a pool.

    Args:
        workers: processes that score at a time.
        deadline_s: of one attempt.
        attempts: of one item, before its verdict is a failure.
        max_queue: items that wait for a worker; beyond that they are refused.

    Raises ValueError.
    """

    workers: int
    deadline_s: float
    attempts: int = 2
    max_queue: int = 1024

    def __post_init__(self) -> None:
        if min(self.workers, self.attempts, self.max_queue) < 1 or self.deadline_s <= 0:
            raise ValueError("workers, attempts and max_queue must be at least 1, deadline_s above 0")


def pool_limits(reward: Reward) -> PoolLimits:
    """The limits of the workers of one host."""
    return PoolLimits(
        workers=reward.workers,
        deadline_s=reward.worker_s,
        attempts=reward.attempts,
        max_queue=reward.max_queue,
    )


class WorkerPool:
    """See the module docstring. `start` it, `close` it, and use it on the loop that it was started on."""

    def __init__(
        self,
        spec: WorkerSpec,
        start_worker: StartWorker,
        limits: PoolLimits,
        intensity: Intensity | None = None,
    ) -> None:
        self.spec, self.workers, self.deadline_s = spec, limits.workers, limits.deadline_s
        self._start_worker = start_worker
        self.attempts, self.max_queue = limits.attempts, limits.max_queue
        self.intensity = intensity or Intensity(restarts=8, within_s=10.0, backoff_s=0.1)
        self.alive = 0
        self.deaths: Counter[str] = Counter()  # of workers, by cause: timeout, crashed, idle, start
        self.cancelled = 0
        """Workers that were killed because their items were cancelled; they are no deaths."""
        self._restarts = Restarts(self.intensity)
        self._queue = ScoringQueue()
        self._slots: list[asyncio.Task[None]] = []
        self._idle: dict[asyncio.Task[None], None] = {}  # slots whose workers wait for an item, in order
        self._failure = "it was not started"
        self._wait: Wait = _unlisted

    @property
    def queued(self) -> int:
        """Items that no worker has yet."""
        return len(self._queue)

    def start(self, wait: Wait = _unlisted) -> None:
        """Start the workers; items may be given at once. `wait`: `Context.wait` of the pool's owner."""
        self._failure = ""
        self._wait = wait
        self._grow()

    def resize(self, workers: int) -> None:
        """Have so many workers, one at least. Further ones start at once; of surplus ones those that are idle
        end now, the others with the items that they have."""
        self.workers = max(workers, 1)
        if self._failure:
            return
        for slot in [*self._idle][: max(len(self._slots) - self.workers, 0)]:
            self._retire(slot)
            slot.cancel()
        self._grow()

    def _grow(self) -> None:
        while len(self._slots) < self.workers:
            slot = asyncio.create_task(self._slot(), name="reward-slot")
            slot.add_done_callback(self._slot_ended)
            self._slots.append(slot)

    def _retire(self, slot: "asyncio.Task[None]") -> None:
        self._slots.remove(slot)
        self._idle.pop(slot, None)

    async def close(self) -> None:
        """End every worker; open items get `PoolFailed`."""
        self._fail("it was closed")
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)

    async def score(
        self,
        split: str,
        index: int,
        tokens: Sequence[int],
        *,
        limits: CaseLimits | None = None,
        deadline_s: float | None = None,
    ) -> Verdict:
        """The verdict of a response. limits: of the tests of its program. deadline_s: of each try, from the
        moment that a worker has it.

        Raises `Overloaded` (the queue is full) or `PoolFailed`.
        """
        item = pipe.ScoreItem(split, index, list(tokens), limits)
        return (await self.scored(item, deadline_s=deadline_s))[0]

    async def scored(
        self, item: pipe.Scorable | pipe.StageItem, *, deadline_s: float | None = None
    ) -> tuple[Verdict, float]:
        """As `score`, with the seconds that a worker took for this item."""
        answer, took_s = await self._submit(item, deadline_s)
        return verdict_of(answer), took_s

    async def problem(self, split: str, index: int, *, deadline_s: float | None = None) -> pipe.ProblemOut:
        """A problem's question and prompt tokens. Raises `NoProblem` (`ProblemLost` if a retry may succeed),
        `Overloaded` or `PoolFailed`."""
        answer, _ = await self._submit(pipe.ProblemItem(split, index), deadline_s)
        if isinstance(answer, pipe.ProblemOut):
            return answer
        detail = answer.detail if isinstance(answer, Verdict | pipe.Failed) else type(answer).__name__
        final = isinstance(answer, pipe.Failed) or (
            isinstance(answer, Verdict) and answer.status == VERIFIER_FAILED
        )
        raise (NoProblem if final else ProblemLost)(f"problem {index} of {split!r}: {detail}")

    async def read(self, item: pipe.ReadItem) -> pipe.TextItem | Verdict:
        """The text of a response with its problem, or the verdict that it has none. Raises `Overloaded`,
        `PoolFailed`."""
        answer, _ = await self._submit(item, None)
        return answer.item if isinstance(answer, pipe.ReadOut) else verdict_of(answer)

    async def run(self, item: pipe.RunItem, *, deadline_s: float) -> pipe.RunOut:
        """What a program did. Raises `RunLost`, `Overloaded` or `PoolFailed`."""
        answer, _ = await self._submit(item, deadline_s)
        if isinstance(answer, pipe.RunOut):
            return answer
        detail = answer.detail if isinstance(answer, Verdict | pipe.Failed) else type(answer).__name__
        raise RunLost(f"the program was not run: {detail}")

    async def _submit(
        self, item: pipe.Single, deadline_s: float | None
    ) -> tuple[pipe.Answer | Verdict, float]:
        if self._failure:
            raise PoolFailed(f"the reward pool cannot score: {self._failure}")
        if self.queued >= self.max_queue:
            raise Overloaded(f"{self.queued} items wait for a reward worker, at most {self.max_queue} may")
        try:
            return await self._queue.answer(item, deadline_s or self.deadline_s)
        except pipe.BadFrame as error:
            return Verdict(None, VERIFIER_FAILED, str(error)), 0.0

    async def _slot(self) -> None:
        """One worker after the other."""
        failures = 0
        while True:
            try:
                start_s = self.spec.start_s + START_LATE_S
                async with self._wait(
                    "a worker process to start", on=self.spec.scorer, deadline_s=start_s, go_on=True
                ):
                    worker = await self._start_worker(self.spec)
            except ScorerUnusable as error:
                self._fail(str(error))
                return
            except (WorkerDied, WorkerHung) as error:
                failures += 1
                self.deaths["start"] += 1
                if failures > self.intensity.restarts:
                    self._fail(f"no worker could be started, {failures} times in a row: {error}")
                    return
            else:
                failures = 0
                self.alive += 1
                try:
                    ended = await self._serve(worker)
                finally:
                    self.alive -= 1
                    await worker.kill()
                if ended == RETIRED:
                    return
                if ended == CANCELLED:
                    self.cancelled += 1
                    continue
                self.deaths[ended] += 1
            await asyncio.sleep(self._restarts.delay_s(asyncio.get_running_loop().time()))

    async def _serve(self, worker: ScoringWorker) -> str:
        """Give items to a worker until it must be replaced; the reason for that."""
        own = asyncio.current_task()
        assert own is not None
        while True:
            if len(self._slots) > self.workers:
                self._retire(own)
                return RETIRED
            self._idle[own] = None
            try:
                first = await self._queue.take()
            finally:
                self._idle.pop(own, None)
            if worker.dead:  # it died while idle: no item is to blame
                self._queue.put_back(first)
                return "idle"
            given = [first, *self._queue.take_joint(first)]
            try:
                await self._give(worker, given)
            except NotNeeded:
                return CANCELLED
            except WorkerHung as error:
                cause, detail = "timeout", str(error)
            except WorkerDied as error:
                cause, detail = "crashed", str(error)
            else:
                continue
            for item in given:
                self._failed(item, Verdict(None, LOST, detail), alone=len(given) == 1)
            return cause

    def _failed(self, item: ScoringItem, verdict: Verdict, *, alone: bool) -> None:
        """This item got a verdict of ours: it is tried alone, or that is its verdict. alone: it was alone."""
        if item.done.done():
            return
        item.attempts += alone
        item.alone = True
        if item.attempts < self.attempts:
            self._queue.put_back(item)
        else:
            item.settle(verdict)

    def _answered(self, item: ScoringItem, answer: pipe.Answer, *, alone: bool) -> None:
        """The worker is alive, and sent this reply."""
        if item.scores and (verdict := verdict_of(answer)).status in OURS:
            self._failed(item, verdict, alone=alone)
        else:
            item.settle(answer)

    async def _give(self, worker: ScoringWorker, given: list[ScoringItem]) -> None:
        """Have a worker score these; scored items are removed from `given`. Raises `WorkerHung`,
        `WorkerDied`, `NotNeeded`.
        """
        if len(given) > 1:
            items = [pipe.item(one.frame[pipe.PREFIX.size :]) for one in given]
            whole = pipe.ScoreItems([item for item in items if isinstance(item, pipe.Scorable)])
            began_s = _now_s()
            together = await while_needed(
                worker.ask(pipe.pack(whole), max(one.deadline_s for one in given)), given
            )
            for one in given:
                one.took_s = (_now_s() - began_s) / len(given)
            if isinstance(together, pipe.ScoresOut) and len(together.scores) == len(given):
                for score in together.scores:
                    self._answered(given.pop(0), score, alone=False)
        while given:  # it is one, or one of them made the scorer raise
            item = given[0]
            began_s = _now_s()
            answer = None
            if not item.done.done():
                answer = await while_needed(worker.ask(item.frame, item.deadline_s), [item])
            item.took_s = _now_s() - began_s
            del given[0]
            if answer is not None:
                self._answered(item, answer, alone=True)

    def _slot_ended(self, slot: "asyncio.Task[None]") -> None:
        if not slot.cancelled() and (error := slot.exception()) is not None:
            self._fail(f"its own failure: {type(error).__name__}: {error}")

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._queue.fail(PoolFailed(f"the reward pool cannot score: {why}"))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
