"""Bounds: faults that a job can survive by its own settings, so that it ends (I8).

Owns the bounds and the choice of faults that fit in them. Pure. A supervisor that gives up on a reserved host
fails the job, as it should. That is a separate promise, and a drawn schedule must not require it by chance.
On preemptible hosts it may: the host goes, and another one replaces it.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from gleaner.chaos.faults import (
    AnyFault,
    CrashActor,
    Hang,
    KillHost,
    KillInCommit,
    KillOnMessage,
    KillProcess,
    RestartStorm,
    Zombie,
)
from gleaner.chaos.machine_faults import BitRot, PowerLoss
from gleaner.configs.schema import Config

REPLACED = ("@preemptible", "@reward")
"""Hosts that may go: another one replaces them, or starts again."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """kills: deaths of processes of one permanent host, within `within_s`. storm: kills of one storm on a
    preemptible host. zombie_s, partition_s, disk_full_s: longest times."""

    kills: Annotated[int, Meta(ge=1)] = 4
    within_s: Annotated[float, Meta(gt=0)] = 60.0
    storm: Annotated[int, Meta(ge=2)] = 8
    zombie_s: Annotated[float, Meta(gt=0)] = 30.0
    partition_s: Annotated[float, Meta(gt=0)] = 30.0
    disk_full_s: Annotated[float, Meta(gt=0)] = 30.0


def bounds_of(config: Config) -> Bounds:
    """The bounds of a job: one death less than its supervisors tolerate, for a failure that follows from a
    kill."""
    return Bounds(kills=max(config.fleet.restarts - 1, 1), within_s=config.fleet.restarts_within_s)


def bearable(faults: Iterable[AnyFault], bounds: Bounds) -> list[AnyFault]:
    """The faults in order, without those that would be one death too many on a permanent host."""
    deaths: dict[str, list[float]] = {}
    lurking: Counter[str] = Counter()
    kept: list[AnyFault] = []
    for fault in sorted(faults, key=lambda it: it.at_s):
        host, times_s = _deaths(fault)
        name = _one_name(host)
        lurks = _lurks(fault)
        if name in REPLACED or not (times_s or lurks):
            kept.append(fault)
        elif _fits([*deaths.get(name, []), *times_s], lurking[name] + lurks, bounds):
            deaths.setdefault(name, []).extend(times_s)
            lurking[name] += lurks
            kept.append(fault)
    return kept


def _deaths(fault: AnyFault) -> tuple[str, list[float]]:
    """The host on which a fault ends processes, and when. A fault that waits for an event may fire at any
    time, and a process that is frozen may be ended at any time."""
    match fault:
        case RestartStorm():
            return fault.host, [fault.at_s + n * fault.every_s for n in range(fault.kills)]
        case KillProcess() | KillHost() | CrashActor() | PowerLoss():
            return fault.host, [fault.at_s]
        case Zombie():
            return fault.host, [fault.over_s]  # it ends itself when it learns that it was replaced
        case KillInCommit() | KillOnMessage() | Hang() | BitRot():
            return fault.host, []
    return "", []


def _lurks(fault: AnyFault) -> int:
    """Deaths by a fault that waits for its moment. A file rots as soon as it is there; with the image of a
    reserved host, its agent and its trainer die."""
    if isinstance(fault, BitRot):
        return 2 if fault.what == "image" else int(fault.back_s > 0)
    return int(isinstance(fault, KillOnMessage | KillInCommit | Hang))


def _one_name(host: str) -> str:
    """One name for a permanent host, whatever its aliases; one for all others."""
    named = {"head": "@head", "reserved-1": "@reserved"}.get(host, "@preemptible")
    return host.partition("/")[0] if host.startswith("@") else named


def _fits(times_s: list[float], lurking: int, bounds: Bounds) -> bool:
    ordered = sorted(times_s)
    most = max(
        (sum(1 for other in ordered if start <= other < start + bounds.within_s) for start in ordered),
        default=0,
    )
    return most + lurking <= bounds.kills
