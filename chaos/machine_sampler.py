"""Draws the parameters of one fault of a disk, a cloud, an engine or a trainer, or of a command.

Owns the ranges, with one method for each kind, as `fault_sampler` does for all others. Pure.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from gleaner.chaos.machine_faults import (
    AnyMachineFault,
    BadEngine,
    BitRot,
    CloudTrouble,
    Garbage,
    OperatorCommand,
    Order,
    PowerLoss,
    Rotten,
    SlowDisk,
    SlowTrainer,
    Trouble,
)

T = TypeVar("T")

TROUBLES: tuple[Trouble, ...] = ("refuses", "late", "extra")
HOST_ORDERS: tuple[Order, ...] = ("preempt", "preempt", "drain", "stop", "stop", "kill")
"""For one preemptible host. Two of them make a host leave in order, which is most of what is to be seen."""
JOB_ORDERS: tuple[Order, ...] = ("resubmit", "submit_other", "publish")
GARBAGE: tuple[Garbage, ...] = ("vocabulary", "nan", "positive", "ticket", "ragged", "version")
ROTTEN: tuple[Rotten, ...] = ("checkpoint", "copy", "image")
NOTICES_S = (0.0, 5.0, 30.0)


class MachineDrawer:
    """One method for each kind; each draws the parameters of one fault at a given time.

    Args:
        length: of a fault: from its start, the shortest and the longest, a duration that ends by the horizon.
        preemptible: their number. loses_head: the head may lose its power.
    """

    def __init__(
        self,
        rng: random.Random,
        length: Callable[[float, float, float], float],
        preemptible: int,
        *,
        loses_head: bool,
    ) -> None:
        self._rng, self._length, self._preemptible = rng, length, preemptible
        self._loses_head = loses_head
        self.draws: dict[str, Callable[[float], AnyMachineFault]] = {
            "slow_disk": self._slow_disk,
            "power_loss": self._power_loss,
            "bit_rot": self._bit_rot,
            "cloud_trouble": self._cloud_trouble,
            "operator_command": self._operator_command,
            "bad_engine": self._bad_engine,
            "slow_trainer": self._slow_trainer,
        }
        if not preemptible:
            for kind in ("cloud_trouble", "bad_engine"):
                del self.draws[kind]

    def _slow_disk(self, at_s: float) -> AnyMachineFault:
        host = self._of(("@head", "@head", "@reserved"))
        if self._rng.random() < 0.3:
            return SlowDisk(at_s=at_s, host=host, stall=True, for_s=self._length(at_s, 0.5, 4.0))
        return SlowDisk(
            at_s=at_s,
            host=host,
            factor=round(10.0 ** self._rng.uniform(0.5, 2.5), 1),
            bytes_per_s=round(10.0 ** self._rng.uniform(4.5, 6.5)) if self._rng.random() < 0.5 else 0.0,
            for_s=self._length(at_s, 1.0, 30.0),
        )

    def _power_loss(self, at_s: float) -> AnyMachineFault:
        host = self._of(("@head", "@reserved")) if self._loses_head else "@reserved"
        return PowerLoss(at_s=at_s, host=host, back_s=self._length(at_s, 0.5, 10.0))

    def _bit_rot(self, at_s: float) -> AnyMachineFault:
        what, back_s, host = self._of(ROTTEN), 0.0, "@reserved"
        if what == "checkpoint":
            back_s = self._length(at_s, 0.5, 10.0)
        elif what == "image" and self._preemptible and self._rng.random() < 0.5:
            host = self._host()
        return BitRot(at_s=at_s, host=host, what=what, back_s=back_s)

    def _cloud_trouble(self, at_s: float) -> AnyMachineFault:
        how = self._of(TROUBLES)
        if how == "extra":
            return CloudTrouble(at_s=at_s, how=how, for_s=1.0)
        late_s = round(self._rng.uniform(2.0, 10.0), 3) if how == "late" else 0.0
        return CloudTrouble(at_s=at_s, how=how, for_s=self._length(at_s, 2.0, 20.0), late_s=late_s)

    def _operator_command(self, at_s: float) -> AnyMachineFault:
        what = self._of(HOST_ORDERS + JOB_ORDERS if self._preemptible else JOB_ORDERS)
        if what in JOB_ORDERS:
            return OperatorCommand(at_s=at_s, what=what)
        notice_s = self._rng.choice(NOTICES_S) if what == "preempt" else 0.0
        if what == "drain":
            notice_s = self._length(at_s, 1.0, 20.0)
        return OperatorCommand(at_s=at_s, what=what, host=self._host(), notice_s=notice_s)

    def _bad_engine(self, at_s: float) -> AnyMachineFault:
        how = self._of(GARBAGE)
        return BadEngine(at_s=at_s, host=self._host(), how=how, count=self._rng.choice((1, 1, 2)))

    def _slow_trainer(self, at_s: float) -> AnyMachineFault:
        factor = round(2.0 ** self._rng.uniform(1.0, 4.5), 2)
        return SlowTrainer(at_s=at_s, factor=factor, for_s=self._length(at_s, 2.0, 30.0))

    def _host(self) -> str:
        return f"@preemptible/{self._rng.randrange(self._preemptible)}"

    def _of(self, values: Sequence[T]) -> T:
        return self._rng.choice(values)
