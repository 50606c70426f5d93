"""Aims: groups of faults that together lead to a rare recovery path.

Single faults seldom lead there. Owns the compositions, one for each path of `coverage`. Pure. `swarm` decides
which run gets one, and when. A schedule with an aim is an ordinary schedule: it is replayed and shrunk fault
by fault.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gleaner.chaos.faults import (
    FROZEN_DEAD_S,
    AnyFault,
    BadLink,
    ClockJump,
    CrashActor,
    DiskFull,
    FailLoad,
    Hang,
    KillHost,
    KillOnMessage,
    KillProcess,
    Notice,
    Partition,
    Reset,
    RestartStorm,
    Zombie,
)

Compose = Callable[[random.Random, str, float], tuple[AnyFault, ...]]
"""Faults of an aim, from a generator, the name of a preemptible host, and the start time."""


@dataclass(frozen=True, slots=True)
class FaultScenario:
    """path: target in `coverage.PATHS`. how: description. lasts_s: until its last fault is over."""

    path: str
    how: str
    lasts_s: float
    compose: Compose


def _broken_pull(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """The host needs some five seconds until it is back and pulls. Over this line an image of 1.2 GB in four
    chunks takes 7 to 14 s, so each reset finds some chunks present and others missing."""
    rate_bytes_s = round(rng.uniform(85e6, 170e6))
    first_s, gap_s = rng.uniform(8.5, 10.0), rng.uniform(2.0, 3.0)
    resets = (_ms(at_s + first_s + number * gap_s) for number in range(3))
    return (
        KillHost(at_s=at_s, host=host),
        BadLink(at_s=_ms(at_s + 0.1), a="@reserved", b=host, for_s=17.0, bytes_per_s=rate_bytes_s),
        *(Reset(at_s=reset_s, a="@reserved", b=host) for reset_s in resets),
    )


def _stale_stream(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """Frozen or cut off for longer than the manager's patience, then connected again with the contents of its
    ring."""
    if rng.random() < 0.5:
        return (Zombie(at_s=at_s, host=host, process="engine", for_s=_ms(rng.uniform(FROZEN_DEAD_S, 12.0))),)
    return (Partition(at_s=at_s, a="@head", b=host, for_s=_ms(rng.uniform(7.0, 12.0))),)


def _lost_ground(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """An actor on which the manager depends."""
    return (CrashActor(at_s=at_s, host="@head", process="rollout", actor="balancer"),)


def _clock_back(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """Components that start after this have an older incarnation than their predecessors."""
    by_s = rng.choice((-30.0, -3600.0, -86_400.0))
    kill_s = _ms(at_s + rng.uniform(0.2, 2.0))
    return (
        ClockJump(at_s=at_s, host=host, by_s=by_s),
        KillProcess(at_s=kill_s, host=host, process=rng.choice(("engine", "transfer"))),
    )


def _long_notice(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """Time enough to finish its running requests."""
    return (Notice(at_s=at_s, host=host, notice_s=rng.choice((30.0, 120.0))),)


def _worn_out(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """More deaths than the supervisor of a host tolerates."""
    return (
        RestartStorm(at_s=at_s, host=host, process="engine", kills=8, every_s=_ms(rng.uniform(0.8, 1.5))),
    )


def _lost_state(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """A step is on record, and the memory with its state is lost before the checkpoint."""
    return (
        KillOnMessage(
            at_s=at_s, host="@reserved", process="agent", message="SaveState", moment="replied",
            power_back_s=_ms(rng.uniform(0.5, 3.0)),
        ),
    )  # fmt: skip


def _unsent(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """The manager dies between the commit of a dispatch and its sending: the instance never receives it."""
    return (
        KillOnMessage(
            at_s=at_s, host="@head", process="rollout", message="Dispatch", count=rng.randint(1, 4),
            moment="sent",
        ),
    )  # fmt: skip


def _worn_line(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """Between an instance and its manager many messages are lost and many are duplicated, while it
    streams."""
    loss, duplicate = _ms(rng.uniform(0.1, 0.25)), _ms(rng.uniform(0.1, 0.25))
    return (BadLink(at_s=at_s, a="@head", b=host, for_s=15.0, loss=loss, duplicate=duplicate),)


def _still(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """Only the service manager of its host can end the process."""
    return (Hang(at_s=at_s, host="@reserved", process="agent"),)


def _no_room(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """Another process uses all shared memory of a host that comes back; the host pulls some ten seconds
    later."""
    return (
        KillHost(at_s=at_s, host=host),
        DiskFull(at_s=_ms(at_s + 0.1), host=host, for_s=_ms(rng.uniform(13.0, 16.0)), memory=True),
    )


def _failing_load(rng: random.Random, host: str, at_s: float) -> tuple[AnyFault, ...]:
    """The engine serves its old weights, and tries again."""
    return (FailLoad(at_s=at_s, host=host, count=rng.randint(1, 2)),)


AIMS: tuple[FaultScenario, ...] = (
    FaultScenario(
        "partial re-pull", "a new host pulls over a slow line that breaks in the middle", 17.1, _broken_pull
    ),
    FaultScenario("stream fence", "an instance answers again after it was given up", 12.0, _stale_stream),
    FaultScenario("rest_for_one", "the balancer crashes, and the manager depends on it", 0.0, _lost_ground),
    FaultScenario("name fence", "a process starts again after its host's clock went back", 2.0, _clock_back),
    FaultScenario("drain", "a host gets its notice long before its end", 0.0, _long_notice),
    FaultScenario(
        "rewind", "the newest state is lost with its host, before its checkpoint", 0.0, _lost_state
    ),
    FaultScenario("revoked", "a dispatch is on record, and never leaves", 0.0, _unsent),
    FaultScenario("frame gap", "token frames are lost and come twice", 15.0, _worn_line),
    FaultScenario("no room", "a host is back, and its shared memory is full", 16.1, _no_room),
    FaultScenario("load again", "an engine does not load newer weights at once", 0.0, _failing_load),
    FaultScenario("watchdog", "the node agent of a reserved host hangs for ever", 0.0, _still),
    FaultScenario("give up", "an engine is killed more often than its supervisor takes", 12.0, _worn_out),
)
BY_PATH: Mapping[str, FaultScenario] = {aim.path: aim for aim in AIMS}


def _ms(seconds: float) -> float:
    """Parameters as in drawn schedules."""
    return round(seconds, 3)
