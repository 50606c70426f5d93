"""Leads: schedules that lead to the place where a planted bug has an effect.

Chance alone seldom gets there in a short job. Owns the scripts: which faults follow each other, with times
and targets that a seed draws. They are ordinary faults, and the job must survive them; only their frequency
is not left to chance. Pure: one seed gives one schedule.
"""

import random
from collections.abc import Callable, Mapping

from gleaner.chaos.faults import (
    AnyFault,
    BadLink,
    BadScorer,
    ClockJump,
    DiskFull,
    FailLoad,
    FalseNotice,
    Freeze,
    Hang,
    KillHost,
    KillOnMessage,
    KillProcess,
    Partition,
    Process,
    Reset,
    SickVerifier,
    Slow,
    Zombie,
)
from gleaner.chaos.machine_faults import BitRot, CloudTrouble, OperatorCommand, SlowDisk
from gleaner.chaos.schedule import Schedule

Script = Callable[[random.Random], list[AnyFault]]
BEGIN_S = 6.0
"""A cluster is up and has its job by then."""


def lead(name: str, seed: int) -> Schedule:
    """The schedule of that name for a seed. Raises KeyError."""
    rng = random.Random(f"{seed}/{name}")
    order = rng.getrandbits(32) + 1 if name in ORDERED else 0
    return Schedule(seed=seed, order=order).with_faults(LEADS[name](rng))


def _at(rng: random.Random, low: float, high: float) -> float:
    return round(rng.uniform(low, high), 3)


def _dispatches_that_never_leave(rng: random.Random) -> list[AnyFault]:
    """The manager dies between the commit of a dispatch and its sending: the instance never receives it."""
    return [
        KillOnMessage(
            at_s=_at(rng, low, low + 6.0), host="@head", process="rollout", message="Dispatch",
            count=rng.randint(1, 4), moment="sent",
        )
        for low in (BEGIN_S, 16.0, 26.0)
    ]  # fmt: skip


def _other_verdicts_after_a_restart(rng: random.Random) -> list[AnyFault]:
    """The manager and the reward workers die; the second scoring gives a different result."""
    at_s = _at(rng, 12.0, 22.0)
    return [
        KillProcess(at_s=at_s, host="@head", process="rollout"),
        KillProcess(at_s=at_s, host="@head", process="reward"),
        BadScorer(at_s=at_s, how="lie", count=16),
    ]


def _a_host_lost_before_its_checkpoint(rng: random.Random) -> list[AnyFault]:
    """Checkpoints are written slowly, and the memory with the newest states is lost before one is
    complete."""
    at_s = _at(rng, 18.0, 40.0)
    return [
        Slow(at_s=BEGIN_S, host="@reserved", process="agent", factor=16.0, for_s=60.0),
        KillHost(at_s=at_s, host="@reserved", back_s=_at(rng, 1.0, 3.0)),
    ]


def _a_manager_that_is_silent(rng: random.Random) -> list[AnyFault]:
    """Acknowledgements stop for a while, and instances decode on."""
    return [
        Freeze(at_s=_at(rng, low, low + 4.0), host="@head", process="rollout", for_s=_at(rng, 3.0, 4.0))
        for low in (8.0, 16.0, 24.0)
    ]


def _instances_that_are_given_up_and_live(rng: random.Random) -> list[AnyFault]:
    """Cut off for longer than the manager's patience, then connected again with the tokens decoded
    meanwhile."""
    return [
        Partition(
            at_s=_at(rng, 11.0, 16.0), a="@head", b=f"@preemptible/{number}", for_s=_at(rng, 12.0, 18.0)
        )
        for number in range(2)
    ]


def _notices_that_become_hints(rng: random.Random) -> list[AnyFault]:
    """A cloud takes the notice of a host back, and hints that the host may go all the same."""
    faults: list[AnyFault] = []
    for number, low in enumerate((8.0, 12.0, 16.0)):
        at_s, host = _at(rng, low, low + 4.0), f"@preemptible/{number}"
        faults.append(FalseNotice(at_s=at_s, host=host, notice_s=120.0, back_s=14.0))
        hint_s = round(at_s + 8.0, 3)
        faults.append(FalseNotice(at_s=hint_s, host=host, notice_s=30.0, back_s=10.0, hint=True))
    return faults


def _instances_that_are_gone(rng: random.Random) -> list[AnyFault]:
    """Every preemptible host vanishes while it has requests."""
    return [KillHost(at_s=_at(rng, 10.0, 18.0), host=f"@preemptible/{number}") for number in range(3)]


def _a_bad_network(rng: random.Random) -> list[AnyFault]:
    """Between the hosts with the most traffic, messages are lost or duplicated, and connections break."""
    faults: list[AnyFault] = []
    for other in ("@reserved", "@preemptible/0", "@preemptible/1"):
        at_s = _at(rng, 7.0, 10.0)
        faults.append(
            BadLink(
                at_s=at_s, a="@head", b=other, for_s=_at(rng, 20.0, 30.0), loss=_at(rng, 0.05, 0.15),
                duplicate=_at(rng, 0.1, 0.3), jitter_s=_at(rng, 0.0, 0.1),
            )
        )  # fmt: skip
        faults += [Reset(at_s=_at(rng, at_s, at_s + 20.0), a="@head", b=other) for _ in range(3)]
    return faults


def _a_trainer_that_starts_again(rng: random.Random) -> list[AnyFault]:
    """Its process dies in step after step; the successor finds the sealed state."""
    return [
        KillProcess(at_s=_at(rng, low, low + 5.0), host="@reserved", process="trainer")
        for low in (20.0, 30.0, 40.0)
    ]


def _a_trainer_that_dies_behind_its_step(rng: random.Random) -> list[AnyFault]:
    """The step is sealed, and its waiter gets no reply."""
    return [
        KillOnMessage(
            at_s=BEGIN_S, host="@reserved", process="trainer", message="SaveState", count=rng.randint(1, 2),
            moment="sent",
        )
    ]  # fmt: skip


def _a_manager_that_restarts_during_drains(rng: random.Random) -> list[AnyFault]:
    """An operator has hosts drained, and the manager dies shortly after it was notified."""
    faults: list[AnyFault] = []
    for number, low in enumerate((10.0, 26.0, 42.0)):
        at_s = _at(rng, low, low + 2.0)
        host = f"@preemptible/{number}"
        faults += [
            OperatorCommand(at_s=at_s, what="drain", host=host, notice_s=_at(rng, 12.0, 14.0)),
            KillProcess(at_s=_at(rng, at_s + 0.5, at_s + 1.5), host="@head", process="rollout"),
        ]
    return faults


def _a_host_that_is_delivered_to_no_head(rng: random.Random) -> list[AnyFault]:
    """A cloud delivers a host that was not requested while the head has no power."""
    at_s = _at(rng, 9.0, 12.0)
    return [
        KillHost(at_s=at_s, host="@head", back_s=_at(rng, 3.0, 4.0)),
        CloudTrouble(at_s=_at(rng, at_s + 0.5, at_s + 1.0), how="extra", for_s=1.0),
    ]


def _a_spared_host_without_its_head(rng: random.Random) -> list[AnyFault]:
    """A notice is withdrawn while the host cannot reach the head, and its image rots before the next version
    comes."""
    at_s, host = _at(rng, 7.0, 8.0), "@preemptible/0"
    back_s = _at(rng, 11.0, 12.0)
    stays_s = at_s + back_s
    return [
        FalseNotice(at_s=at_s, host=host, notice_s=120.0, back_s=back_s),
        KillProcess(at_s=round(stays_s - 3.0, 3), host="@reserved", process="trainer"),
        Partition(at_s=round(stays_s - 0.3, 3), a="@head", b=host, for_s=_at(rng, 3.0, 4.0)),
        BitRot(at_s=_at(rng, stays_s + 5.0, stays_s + 6.0), host=host, what="image"),
    ]


def _verifiers_that_hang(rng: random.Random) -> list[AnyFault]:
    """Every reward worker hangs, again and again: the scores queued behind pass their deadline."""
    return [BadScorer(at_s=_at(rng, 11.0, 15.0), how="hang", count=12)]


def _a_verifier_that_fails(rng: random.Random) -> list[AnyFault]:
    """No score for a while, and before and after it single answers of the workers are invalid."""
    return [
        BadScorer(at_s=_at(rng, 7.0, 9.0), how="crash", count=40),
        SickVerifier(at_s=_at(rng, 12.0, 20.0), how="raise", for_s=_at(rng, 2.0, 6.0)),
        BadScorer(at_s=_at(rng, 26.0, 30.0), how="lie", count=40),
    ]


def _verdicts_that_are_none(rng: random.Random) -> list[AnyFault]:
    """A few invalid answers of the workers, now and then: too few for a sick verifier."""
    return [BadScorer(at_s=_at(rng, low, low + 3.0), how="lie", count=3) for low in (9.0, 14.0, 19.0, 24.0)]


def _a_clock_that_went_back(rng: random.Random) -> list[AnyFault]:
    """A host's clock goes back by much more than a restart takes, then a process of it is started again."""
    at_s = _at(rng, BEGIN_S, 16.0)
    return [
        ClockJump(at_s=at_s, host="@head", by_s=-float(rng.choice((600, 3600, 86_400)))),
        KillProcess(at_s=at_s + _at(rng, 0.5, 5.0), host="@head", process="rollout"),
        KillProcess(at_s=at_s + _at(rng, 6.0, 9.0), host="@head", process="rollout"),
    ]


def _restarts_below_the_numbers_of_before(rng: random.Random) -> list[AnyFault]:
    """A host's clock goes back, and a process without a journal starts again and again: the registry
    refuses its first numbers while its actors start."""
    again = [
        KillProcess(at_s=_at(rng, low, low + 2.0), host="@reserved", process="transfer")
        for low in (9.0, 14.0, 19.0)
    ]
    return [ClockJump(at_s=7.0, host="@reserved", by_s=-3600.0), *again]


def _reward_hosts_that_stay_away(rng: random.Random) -> list[AnyFault]:
    """A reward host loses power while it has items, and is not back before the verdicts are late."""
    return [
        KillHost(at_s=_at(rng, low, low + 6.0), host=f"@reward/{number}", back_s=_at(rng, 60.0, 80.0))
        for number, low in enumerate((10.0, 20.0))
    ]


def _a_disk_that_is_full_for_moments(rng: random.Random) -> list[AnyFault]:
    """A commit finds no space; the next one, which was called for meanwhile, finds some again."""
    slow = SlowDisk(at_s=BEGIN_S, host="@head", for_s=40.0, factor=_at(rng, 20.0, 100.0))
    full = [
        DiskFull(at_s=_at(rng, low, low + 2.0), host="@head", for_s=_at(rng, 0.02, 0.2))
        for low in range(8, 44, 3)
    ]
    return [slow, *full]


def _a_head_that_hangs(rng: random.Random) -> list[AnyFault]:
    """Frozen for longer than the silence that counts as death, and shorter than its service manager waits."""
    return [
        Zombie(at_s=_at(rng, low, low + 4.0), host="@head", process="agent", for_s=_at(rng, 10.0, 15.0))
        for low in (10.0, 28.0)
    ]


def _processes_that_hang(rng: random.Random) -> list[AnyFault]:
    """Frozen for good: a process that the job needs, and one that it does not."""
    needed: tuple[str, Process] = rng.choice((("@head", "rollout"), ("@reserved", "trainer")))
    return [
        Hang(at_s=_at(rng, 8.0, 14.0), host=needed[0], process=needed[1]),
        Hang(at_s=_at(rng, 8.0, 14.0), host="@preemptible/0", process="engine"),
    ]


def _loads_that_fail(rng: random.Random) -> list[AnyFault]:
    """One or two of the loads of each version."""
    return [
        FailLoad(at_s=_at(rng, 6.0, 9.0), host=f"@preemptible/{number}", count=rng.randint(1, 3))
        for number in range(3)
    ]


LEADS: Mapping[str, Script] = {
    "dispatches that never leave": _dispatches_that_never_leave,
    "other verdicts after a restart": _other_verdicts_after_a_restart,
    "a host lost before its checkpoint": _a_host_lost_before_its_checkpoint,
    "a manager that is silent": _a_manager_that_is_silent,
    "instances that are given up, and live": _instances_that_are_given_up_and_live,
    "instances that are gone": _instances_that_are_gone,
    "a bad network": _a_bad_network,
    "a trainer that starts again": _a_trainer_that_starts_again,
    "a trainer that dies behind its step": _a_trainer_that_dies_behind_its_step,
    "a manager that restarts during drains": _a_manager_that_restarts_during_drains,
    "notices that become hints": _notices_that_become_hints,
    "a host that is delivered to no head": _a_host_that_is_delivered_to_no_head,
    "a spared host without its head": _a_spared_host_without_its_head,
    "verifiers that hang": _verifiers_that_hang,
    "a verifier that fails": _a_verifier_that_fails,
    "verdicts that are none": _verdicts_that_are_none,
    "a clock that went back": _a_clock_that_went_back,
    "restarts below the numbers of before": _restarts_below_the_numbers_of_before,
    "reward hosts that stay away": _reward_hosts_that_stay_away,
    "a disk that is full for moments": _a_disk_that_is_full_for_moments,
    "a head that hangs": _a_head_that_hangs,
    "processes that hang": _processes_that_hang,
    "loads that fail": _loads_that_fail,
}
ORDERED = frozenset({"restarts below the numbers of before"})
"""Leads to races: their turns run in a drawn order."""
