"""TrainerRank: one process of a gang of trainers, but not its first; that one's actor is `trainer`.

Owns nothing but the loop: look for an order of rank 0, carry it out. It has no mailbox to speak of: orders
come by the gang's own sockets, and lead to collective operations. What fails ends the actor, its process and
so the gang.
"""

from typing import Protocol

from supervisor import Actor

LOOK_S = 1.0  # at most, until an order is looked for again: an ordered stop of the actor waits so long


class RankWork(Protocol):
    """Calls come from one thread at a time and block."""

    @property
    def doing(self) -> str:
        """What it is at, in a word or two."""

    def serve(self, within_s: float) -> None:
        """Wait for an order at most so long, and carry it out. Raises what ends this rank."""


class TrainerRank(Actor):
    """See the module.

    Args:
        rank: from 1.
        work: its part of the model in training.
    """

    def __init__(self, rank: int, work: RankWork) -> None:
        self._rank = rank
        self._work = work

    async def on_start(self) -> None:
        self.ctx.background(self._serve(), "orders")

    async def _serve(self) -> None:
        while True:
            await self.ctx.offload(self._work.serve, LOOK_S)

    def summary(self) -> dict[str, str | int | float]:
        return {"rank": self._rank, "doing": self._work.doing}
