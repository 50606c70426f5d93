"""Applies faults of disks, clouds, engines, trainers and operators to a simulated cluster.

Owns the mapping from such a fault to the methods of the cluster, and ends those that last for a time.
`apply_sim` counts them with all others.
"""

from collections.abc import Callable
from typing import Protocol

from gleaner.chaos.machine_faults import (
    AnyMachineFault,
    BadEngine,
    BitRot,
    CloudTrouble,
    OperatorCommand,
    PowerLoss,
    SlowDisk,
    SlowTrainer,
)


class Machines(Protocol):
    """Operations that a schedule needs of a cluster's machines. Each returns whether it could."""

    def track_unsure_writes(self) -> None: ...
    def slow_disk(self, host: str, factor: float, bytes_per_s: float, for_s: float) -> bool: ...
    def stall_disk(self, host: str, for_s: float) -> bool: ...
    def lose_power(self, host: str, back_s: float, *, false_syncs: bool) -> bool: ...
    def rot(self, host: str, what: str, back_s: float, done: Callable[[], None]) -> bool:
        """`done` is called when the file is there and has rotted."""

    def refuse_hosts(self, *, refuse: bool) -> bool: ...
    def delay_hosts(self, late_s: float) -> bool: ...
    def deliver_host(self) -> bool: ...
    def bad_engine(self, host: str, how: str, count: int, done: Callable[[], None]) -> bool:
        """`done` is called for each turn that was garbage."""

    def slow_trainer(self, factor: float, for_s: float) -> bool: ...
    def command(self, what: str, host: str, notice_s: float) -> bool: ...


def begin(
    fault: AnyMachineFault,
    host: str,
    machines: Machines,
    at: Callable[[float, Callable[[], object]], None],
    hit: Callable[[], None],
) -> bool | None:
    """Inject the fault; `host` is what its place refers to, "" for none. Returns whether it fired, None for
    one that waits and calls `hit`. `at`: call this at that time."""
    if not host and not isinstance(fault, CloudTrouble | SlowTrainer | OperatorCommand):
        return False
    match fault:
        case SlowDisk(stall=True):
            return machines.stall_disk(host, fault.for_s)
        case SlowDisk():
            return machines.slow_disk(host, fault.factor, fault.bytes_per_s, fault.for_s)
        case PowerLoss():
            return machines.lose_power(host, fault.back_s, false_syncs=fault.false_syncs)
        case BitRot():
            return None if machines.rot(host, fault.what, fault.back_s, hit) else False
        case CloudTrouble(how="refuses"):
            at(fault.over_s, lambda: machines.refuse_hosts(refuse=False))
            return machines.refuse_hosts(refuse=True)
        case CloudTrouble(how="late"):
            at(fault.at_s + fault.for_s, lambda: machines.delay_hosts(0.0))
            return machines.delay_hosts(fault.late_s)
        case CloudTrouble():
            return machines.deliver_host()
        case OperatorCommand():
            return machines.command(fault.what, host, fault.notice_s)
        case BadEngine():
            return None if machines.bad_engine(host, fault.how, fault.count, hit) else False
        case SlowTrainer():
            return machines.slow_trainer(fault.factor, fault.for_s)
