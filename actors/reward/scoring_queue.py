"""`ScoringQueue`: items that wait for a reward worker, or run in one.

First in, first out; an item that is tried again is in front. Owns which items may be scored together, and
their futures. `pool` owns the workers.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gleaner.actors.reward import pipe
from gleaner.actors.reward.case_limits import CaseTimes

TOGETHER = 32
TOKENS_TOGETHER = 2**20


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a response. A status of ours has no score, any other but `ok` that of the settings for
    it, and `detail` gives the reason. tests: of a program that had limits. carried: with the status
    `passed`, which is no verdict yet: what the next stage needs."""

    score: float | None
    status: str
    detail: str = ""
    tests: CaseTimes | None = None
    carried: bytes = b""


@dataclass(slots=True)
class ScoringItem:
    """A waiting or running item, packed: tokens as objects would take many times as much. tokens: those of a
    response, 0 for a problem."""

    number: int
    frame: bytes
    tokens: int
    scores: bool
    deadline_s: float
    done: "asyncio.Future[pipe.Answer | Verdict]"
    attempts: int = 0
    alone: bool = False
    """Items that were given together with it cost a worker, or its program may take long."""
    took_s: float = 0.0  # its share of a worker's time, in the last try
    left: Callable[[], None] | None = None
    """Called when its caller does not wait any more, while a worker has it."""

    @property
    def joint_tokens(self) -> int:
        """Size of an item that can be scored together with others; 0 for one that is scored alone."""
        return self.tokens + 1 if self.scores and not self.alone else 0

    def settle(self, answer: pipe.Answer | Verdict) -> None:
        """Give the caller its answer, if it still waits."""
        if not self.done.done():
            self.done.set_result(answer)


class ScoringQueue:
    """See the module docstring. Use it on one loop."""

    def __init__(self) -> None:
        self._waiting: asyncio.PriorityQueue[tuple[int, ScoringItem]] = asyncio.PriorityQueue()
        self._items: dict[int, ScoringItem] = {}
        self._submitted = 0

    def __len__(self) -> int:
        """Items that no worker has yet."""
        return self._waiting.qsize()

    async def answer(self, item: pipe.Single, deadline_s: float) -> tuple[pipe.Answer | Verdict, float]:
        """Queue an item and wait for its answer, and the seconds that a worker took for it. Raises
        `pipe.BadFrame`, and what `fail` was called with."""
        frame = pipe.pack(item)
        self._submitted += 1
        scores, tokens = isinstance(item, pipe.Scorable | pipe.StageItem), _tokens(item)
        alone = isinstance(item, pipe.StageItem) or (
            isinstance(item, pipe.ScoreItem) and item.limits is not None
        )
        done: asyncio.Future[pipe.Answer | Verdict] = asyncio.get_running_loop().create_future()
        queued = ScoringItem(self._submitted, frame, tokens, scores, deadline_s, done, alone=alone)
        self._items[queued.number] = queued
        self.put_back(queued)
        try:
            return await done, queued.took_s
        except asyncio.CancelledError:
            if queued.left is not None:
                queued.left()
            raise
        finally:
            del self._items[queued.number]

    def put_back(self, item: ScoringItem) -> None:
        """The item waits; its number puts an item that was taken in front."""
        self._waiting.put_nowait((item.number, item))

    async def take(self) -> ScoringItem:
        """The next item whose caller still waits."""
        while True:
            _, item = await self._waiting.get()
            if not item.done.done():
                return item

    def take_joint(self, first: ScoringItem) -> list[ScoringItem]:
        """Items that wait and can be scored together with the first one."""
        joint: list[ScoringItem] = []
        tokens = first.joint_tokens
        while tokens and len(joint) + 1 < TOGETHER and not self._waiting.empty():
            _, item = self._waiting.get_nowait()
            if item.done.done():
                continue
            count = item.joint_tokens
            if not count or tokens + count > TOKENS_TOGETHER:
                self.put_back(item)
                break
            tokens += count
            joint.append(item)
        return joint

    def fail(self, problem: Exception) -> None:
        """End every open item with this error."""
        for item in self._items.values():
            if not item.done.done():
                item.done.set_exception(problem)


def _tokens(item: pipe.Single) -> int:
    """Size of a response: its tokens, or the characters and bytes of a text and its problem."""
    match item:
        case pipe.ScoreItem(tokens=tokens):
            return len(tokens)
        case pipe.TextItem(entry=entry, response=response):
            return len(entry) + len(response)
    return 0
