"""Reward workers without processes, which answer when a test lets them."""

import asyncio
from collections import Counter

from gleaner.actors.reward import pipe
from gleaner.actors.reward.scoring import WorkerSpec


class HeldWorkers:
    """Starts workers. `scored`: how often each problem was scored; `held`: problems whose scores wait for
    `let_go`."""

    def __init__(self, *held: int) -> None:
        self.held = {index: asyncio.Event() for index in held}
        self.begun: Counter[int] = Counter()
        self.scored: Counter[int] = Counter()

    def let_go(self, *indices: int) -> None:
        """Answer these."""
        for index in indices:
            self.held[index].set()

    async def start(self, spec: WorkerSpec) -> "HeldWorker":
        """See `StartWorker`."""
        return HeldWorker(self)


class HeldWorker:
    """See `ScoringWorker`. The score of a problem is its index."""

    dead = False

    def __init__(self, workers: HeldWorkers) -> None:
        self._workers = workers

    async def ask(self, frame: bytes, deadline_s: float) -> pipe.Answer:
        item = pipe.item(frame[pipe.PREFIX.size :])
        if isinstance(item, pipe.ScoreItems):
            return pipe.ScoresOut([await self._score(one) for one in item.items])
        if isinstance(item, pipe.ProblemItem):
            return pipe.ProblemOut("?", [item.index])
        assert isinstance(item, pipe.ScoreItem)
        return await self._score(item)

    async def _score(self, item: pipe.Scorable) -> pipe.ScoreOut:
        assert isinstance(item, pipe.ScoreItem)
        self._workers.begun[item.index] += 1
        if (gate := self._workers.held.get(item.index)) is not None:
            await gate.wait()
        self._workers.scored[item.index] += 1
        return pipe.ScoreOut(float(item.index))

    async def kill(self) -> None:
        self.dead = True
