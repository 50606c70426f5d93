"""`TrainerRank`: a process of a trainer gang other than the first.

The first rank's actor is `trainer`. Owns only the loop: check for an order of rank 0, carry it out. Its
mailbox is not used for work: orders arrive on the gang's own sockets, and lead to collective operations. Any
failure ends the actor, its process and so the gang.
"""

from typing import Protocol

from gleaner.supervisor import Actor

LOOK_S = 1.0  # between two checks for an order: an ordered stop of the actor waits so long at most


class RankWork(Protocol):
    """Work of a rank. Calls arrive from one thread at a time and block."""

    @property
    def doing(self) -> str:
        """Its current activity, in a word or two."""

    def serve(self, within_s: float) -> None:
        """Wait for an order at most so long, and carry it out. Raises an error that ends this rank."""


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
