"""`StairSeeding`: a seeding window whose engines leave in two halves.

All engines of the trainer's host roll out first. Then half of them leave, and the trainer trains complete
groups on their devices while the other half rolls out (RollPacker's stream trainer, arXiv 2509.21009, section
4.4). No optimizer step is made there. Owns the order of these; the trainer takes groups and trains them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gleaner.actors.protocol.rollout import GroupOut, Groups
from gleaner.actors.protocol.training import HalveSeeding
from gleaner.actors.training.stairs import Stair
from gleaner.supervisor import Context, Done, Refused

LOOK_S = 2.0  # between two looks at the batch, at most


@dataclass(frozen=True, slots=True)
class Wait:
    """What ends a wait for groups before they are there: `at_most_s`; the share `ended` of the requests that
    need no engine any more; with `until_served` a preemptible instance that serves."""

    at_most_s: float
    until_served: bool = False
    ended: float | None = None


class Take(Protocol):
    """Takes groups from the manager, and counts progress."""

    async def __call__(self, all_left: bool, wait: Wait) -> Groups:
        """The groups that are complete, when there are all that are left, or enough to train, or the wait is
        over. No group comes twice."""


@dataclass(frozen=True, slots=True)
class Spent:
    """stair_s: seconds of the window until half of the engines had left, None if they did not; half_s:
    seconds of training on half of the devices."""

    stair_s: float | None = None
    half_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WindowTraining:
    """What the trainer does within a window. on_half: train on half of the devices from now on, or on all of
    them; train: add these groups, train what is due, and return its seconds. groups: of one micro-batch."""

    on_half: Callable[[bool], Awaitable[None]]
    train: Callable[[Groups], Awaitable[float]]
    groups: int


class StairSeeding:
    """See the module.

    Args:
        engine: the worker of the trainer's host. ask_s: deadline of a message to it.
        take: see `Take`.
    """

    def __init__(self, ctx: Context, engine: str, ask_s: float, take: Take, training: WindowTraining) -> None:
        self._ctx, self._engine, self._ask_s = ctx, engine, ask_s
        self._take, self._training = take, training
        self.refused = False
        """The engines cannot be halved."""
        self._began_s = ctx.now()
        self._spent = Spent()

    async def run(self, window_s: float, stair: Stair) -> tuple[Spent, Groups]:
        """Lend engines for `window_s`, or until the batch is complete where no preemptible instance serves.
        Returns the groups that were taken and are not trained yet."""
        reply, untrained = await self._take(True, Wait(0.0, ended=1.0)), list[GroupOut]()
        while True:
            untrained += reply.groups
            if self._over(reply, window_s):
                return self._spent, _with(reply, untrained)
            if stair.due(self._elapsed_s, reply.ended, reply.half_fits):
                break
            wait_s, ended = stair.look(self._elapsed_s)
            reply = await self._take(True, self._wait(window_s, wait_s, ended))
        if not await self._halved():
            return await self._whole(window_s, reply, untrained)
        await self._training.on_half(True)
        self._spent = Spent(stair_s=self._elapsed_s)
        reply = await self._half(window_s, _with(reply, untrained))
        await self._training.on_half(False)
        return self._spent, reply

    async def _half(self, window_s: float, reply: Groups) -> Groups:
        """Train on half of the devices until the window is over, a micro-batch at a time: what is left then
        is faster on all of them."""
        untrained = list(reply.groups)
        while not self._over(reply, window_s):
            piece, untrained = untrained[: self._training.groups], untrained[self._training.groups :]
            half_s = self._spent.half_s + await self._training.train(_with(reply, piece))
            self._spent = Spent(self._spent.stair_s, half_s)
            reply = await self._take(False, Wait(0.0) if untrained else self._wait(window_s))
            untrained += reply.groups
        return _with(reply, untrained)

    async def _whole(self, window_s: float, reply: Groups, untrained: list[GroupOut]) -> tuple[Spent, Groups]:
        """The rest of a window whose engines leave together."""
        while not self._over(reply, window_s):
            reply = await self._take(True, self._wait(window_s))
            untrained += reply.groups
        return self._spent, _with(reply, untrained)

    async def _halved(self) -> bool:
        try:
            await self._ctx.ask(self._engine, HalveSeeding(), deadline_s=self._ask_s, expect=Done)
        except Refused as refusal:
            self.refused = True
            self._ctx.log.warning("all engines stay until the window is over: %s", refusal)
            return False
        return True

    @property
    def _elapsed_s(self) -> float:
        return self._ctx.now() - self._began_s

    def _wait(self, window_s: float, wait_s: float = LOOK_S, ended: float | None = None) -> Wait:
        """At most to the end of the window; beyond it until the first instance serves."""
        left_s = window_s - self._elapsed_s
        at_most_s = min(LOOK_S, max(wait_s, 0.0), left_s if left_s > 0 else LOOK_S)
        return Wait(at_most_s, until_served=left_s <= 0, ended=ended)

    def _over(self, reply: Groups, window_s: float) -> bool:
        return reply.remaining == 0 or (self._elapsed_s >= window_s and reply.remote_serving > 0)


def _with(reply: Groups, groups: Sequence[GroupOut]) -> Groups:
    return Groups(
        groups=list(groups),
        remaining=reply.remaining,
        remote_serving=reply.remote_serving,
        dropped=reply.dropped,
        collected=reply.collected,
    )
