"""`GangRank`: carries out the orders of rank 0, on ranks from 1 on.

Adapter behind `rank.RankWork`. Owns the replies: an order is carried out, or this rank reports the reason and
ends.
"""

from __future__ import annotations

import time
from pathlib import Path

from gleaner.actors.training.fsdp2_compute import join_group
from gleaner.actors.training.fsdp2_shard import Shard
from gleaner.actors.training.gang import GangBroken, RankMembership
from gleaner.actors.training.gang_orders import (
    Add,
    Begin,
    Failed,
    Finish,
    Load,
    Order,
    Report,
    Sums,
    WriteState,
)
from gleaner.actors.training.policy_update import NotFinite
from gleaner.actors.training.settings import ComputeSettings

LEAVE_S = 5.0  # from the end of rank 0 until the supervisor ends this rank; then it ends by itself


class GangRank:
    """A `RankWork`; `shard` exists after the order to load.

    Args:
        settings: sections `training` and `rollout`.
        rank: from 1.
        model_dir: the initial checkpoint.
        gang_dir: where the ranks meet.
    """

    shard: Shard

    def __init__(self, settings: ComputeSettings, rank: int, model_dir: Path, gang_dir: Path) -> None:
        self._settings = settings
        self._model_dir = model_dir
        self._link = RankMembership(gang_dir, rank, settings.training.exchange_s)
        self._joined = False
        self.doing = "waits for rank 0"

    def serve(self, within_s: float) -> None:
        """See `RankWork`. Raises GangBroken if rank 0 is gone, and any error of an order."""
        if not self._joined:
            welcome = self._link.join(within_s)
            if welcome is not None:
                self._joined = True
                store, ranks = Path(welcome.store), welcome.ranks
                join_group(store, self._link.rank, ranks, self._settings.training.exchange_s)
            return
        try:
            order = self._link.next(within_s)
        except GangBroken:
            time.sleep(LEAVE_S)  # its supervisor ends the gang: this end must not be taken for the cause
            raise
        if order is None:
            return
        self.doing = type(order).__name__
        try:
            report = Report(self._do(order))
        except NotFinite:
            report = Report({})
        except Exception as problem:
            self._link.answer(Failed(f"{type(problem).__name__}: {problem}"))
            raise
        self._link.answer(report)
        self.doing = "idle"

    def _do(self, order: Order) -> Sums:
        if isinstance(order, Load):
            self.shard = Shard(self._settings, self._model_dir, order.path)
        elif isinstance(order, Begin):
            self.shard.compute.begin_step()
        elif isinstance(order, Add):
            return self.shard.compute.add_share([row.sample() for row in order.rows], order.passes)
        elif isinstance(order, Finish):
            self.shard.compute.finish_together(order.sums)
        elif isinstance(order, WriteState):
            self.shard.write_state(Path(order.directory))
        else:
            self.shard.write_image(Path(order.path))
        return {}
