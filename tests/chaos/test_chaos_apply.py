"""Applying a schedule to a small fake cluster: fired, missed, healed faults."""

import heapq
import itertools
from collections.abc import Callable, Sequence

from gleaner.chaos.apply_sim import Faults
from gleaner.chaos.faults import (
    AnyFault,
    BadLink,
    BadScorer,
    ClockJump,
    CorruptChunk,
    CrashActor,
    DiskFull,
    FailLoad,
    FalseNotice,
    ForeignResult,
    Freeze,
    Hang,
    KillHost,
    KillInCommit,
    KillOnMessage,
    KillProcess,
    KillZone,
    Moment,
    Notice,
    Partition,
    Reset,
    RestartStorm,
    SickVerifier,
    Slow,
    Stay,
    Zombie,
)


class FakeCluster:
    """Three hosts, a clock, and a list of the faults applied to them."""

    def __init__(self) -> None:
        self.up = {"head": "head", "reserved-1": "reserved", "spot-1": "preemptible", "spot-2": "preemptible"}
        self.done: list[tuple[float, str]] = []
        self.waiting: list[Callable[[], None]] = []
        self._now_s = 0.0
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._ages = itertools.count()

    def run(self) -> list[str]:
        while self._timers:
            self._now_s, _, work = heapq.heappop(self._timers)
            work()
        return [f"{at_s:g} {what}" for at_s, what in self.done]

    def at(self, when_s: float, work: Callable[[], object]) -> None:
        heapq.heappush(self._timers, (when_s, next(self._ages), work))

    def hosts(self, role: str) -> Sequence[str]:
        return [name for name, its in self.up.items() if its == role]

    def _do(self, what: str, host: str = "head") -> bool:
        if host in self.up:
            self.done.append((self._now_s, what))
        return host in self.up

    def kill_process(self, host: str, kind: str) -> bool:
        return self._do(f"kill {host}/{kind}", host)

    def crash_actor(self, host: str, kind: str, actor: str) -> bool:
        return self._do(f"crash {actor} of {host}/{kind}", host)

    def kill_host(self, host: str) -> bool:
        done = self._do(f"off {host}", host)
        self.up.pop(host, None)
        return done

    def kill_zone(self, zone: str) -> bool:
        return self._do(f"zone {zone}")

    def start_host(self, host: str) -> bool:
        self.up[host] = "reserved"
        return self._do(f"on {host}")

    def kill_in_commit(self, host: str, kind: str, *, torn: bool, done: Callable[[], None]) -> bool:
        self.waiting.append(done)
        return self._do(f"in commit {host}/{kind} {torn}", host)

    def kill_on_message(
        self,
        host: str,
        kind: str,
        message: str,
        count: int,
        moment: Moment,
        done: Callable[[], None],
        *,
        power_back_s: float,
    ) -> bool:
        self.waiting.append(done)
        return self._do(f"on {moment} {message} {count} {host}/{kind} {power_back_s:g}", host)

    def freeze(self, host: str, kind: str) -> bool:
        return self._do(f"stop {host}/{kind}", host)

    def thaw(self, host: str, kind: str) -> bool:
        return self._do(f"cont {host}/{kind}")

    def hang(self, host: str, kind: str) -> bool:
        return self._do(f"stop {host}/{kind} for good", host)

    def slow(self, host: str, kind: str, factor: float) -> bool:
        return self._do(f"slow {host}/{kind} {factor:g}", host)

    def partition(self, a: str, b: str, *, both: bool) -> bool:
        return self._do(f"cut {a} {b} {both}")

    def heal(self, a: str, b: str) -> None:
        self._do(f"heal {a} {b}")

    def bad_link(
        self,
        a: str,
        b: str,
        *,
        loss: float,
        duplicate: float,
        delay_s: float,
        jitter_s: float,
        bytes_per_s: float,
    ) -> bool:
        return self._do(f"bad {a} {b} {loss:g}")

    def good_link(self, a: str, b: str) -> None:
        self._do(f"good {a} {b}")

    def reset(self, a: str, b: str) -> bool:
        return self._do(f"reset {a} {b}")

    def false_notice(self, host: str, notice_s: float, back_s: float, *, hint: bool) -> bool:
        return self._do(f"{'hint' if hint else 'notice'} {host} {notice_s:g} until {back_s:g}", host)

    def notice(self, host: str, notice_s: float) -> bool:
        return self._do(f"notice {host} {notice_s:g}", host)

    def clock_jump(self, host: str, by_s: float) -> bool:
        return self._do(f"clock {host} {by_s:g}", host)

    def fill_disk(self, host: str) -> bool:
        return self._do(f"full {host}", host)

    def empty_disk(self, host: str) -> None:
        self._do(f"room {host}")

    def fill_memory(self, host: str) -> bool:
        return self._do(f"no memory {host}", host)

    def empty_memory(self, host: str) -> None:
        self._do(f"memory {host}")

    def corrupt_chunks(self, host: str, count: int, done: Callable[[], None]) -> bool:
        self.waiting += [done] * count
        return self._do(f"corrupt {host} {count}", host)

    def fail_loads(self, host: str, count: int, done: Callable[[], None]) -> bool:
        self.waiting += [done] * count
        return self._do(f"loads {host} {count}", host)

    def bad_scorer(self, how: str, count: int, done: Callable[[], None]) -> bool:
        self.waiting += [done] * count
        return self._do(f"scorer {how} {count}")

    def foreign_results(self, host: str, count: int, done: Callable[[], None]) -> bool:
        self.waiting += [done] * count
        return self._do(f"foreign {host} {count}", host)

    def sick_verifier(self, how: str) -> bool:
        return self._do(f"sick {how}")

    def well_verifier(self) -> None:
        self._do("well")


def carried_out(*faults: AnyFault) -> tuple[list[str], Faults, FakeCluster]:
    cluster = FakeCluster()
    armed = Faults(cluster, faults)
    armed.arm()
    return cluster.run(), armed, cluster


def test_temporary_fault_heals_when_it_is_over() -> None:
    done, armed, _ = carried_out(
        Freeze(at_s=1, host="head", process="rollout", for_s=2),
        Zombie(at_s=2, host="@preemptible/1", process="engine", for_s=12),
        Slow(at_s=3, host="@reserved", process="trainer", factor=4, for_s=5),
        Partition(at_s=4, a="head", b="spot-1", both=False, for_s=3),
        BadLink(at_s=5, a="head", b="@reserved", for_s=4, loss=0.1),
        DiskFull(at_s=6, host="head", for_s=7),
        DiskFull(at_s=6, host="spot-1", for_s=9, memory=True),
        SickVerifier(at_s=7.5, how="raise", for_s=10),
    )
    assert done == [
        "1 stop head/rollout", "2 stop spot-2/engine", "3 slow reserved-1/trainer 4", "3 cont head/rollout",
        "4 cut head spot-1 False", "5 bad head reserved-1 0.1", "6 full head", "6 no memory spot-1",
        "7 heal head spot-1", "7.5 sick raise", "8 slow reserved-1/trainer 1", "9 good head reserved-1",
        "13 room head", "14 cont spot-2/engine", "15 memory spot-1", "17.5 well",
    ]  # fmt: skip
    assert armed.fired == {
        "freeze": 1, "zombie": 1, "slow": 1, "partition": 1, "bad_link": 1, "disk_full": 2,
        "sick_verifier": 1,
    }  # fmt: skip
    assert armed.shapes == {"partition: one way": 1, "bad_link: loss": 1, "sick_verifier: raise": 1}
    assert not armed.missed


def test_hung_process_is_not_woken_and_counts_by_kind() -> None:
    done, armed, _ = carried_out(
        Hang(at_s=1, host="@head", process="rollout"),
        Hang(at_s=2, host="@reserved", process="agent"),
        Hang(at_s=3, host="@preemptible", process="engine"),
    )
    assert done == [
        "1 stop head/rollout for good",
        "2 stop reserved-1/agent for good",
        "3 stop spot-1/engine for good",
    ]
    assert armed.fired == {"hang": 3}
    assert armed.shapes == {"hang: manager": 1, "hang: reserved node agent": 1, "hang: engine": 1}


def test_reserved_host_always_returns_preemptible_by_its_provider() -> None:
    done, _, cluster = carried_out(
        KillHost(at_s=1, host="@reserved", back_s=0.0),
        KillHost(at_s=2, host="spot-1"),
        KillHost(at_s=20, host="@reserved", back_s=3.0),
    )
    assert done == [
        "1 off reserved-1",
        "2 off spot-1",
        "6 on reserved-1",
        "20 off reserved-1",
        "23 on reserved-1",
    ]
    assert "spot-1" not in cluster.up


def test_fault_without_target_is_missed_not_fired() -> None:
    done, armed, _ = carried_out(
        KillHost(at_s=1, host="spot-1"),
        KillHost(at_s=2, host="spot-2"),
        KillProcess(at_s=3, host="@preemptible", process="engine"),
        KillProcess(at_s=3, host="spot-7", process="engine"),
        Partition(at_s=4, a="@preemptible", b="head", for_s=1),
        Reset(at_s=5, a="head", b="@head"),
    )
    assert done == ["1 off spot-1", "2 off spot-2"]
    assert armed.fired == {"kill_host": 2}
    assert armed.shapes == {"kill_host: preemptible": 2}
    assert armed.missed == {"kill_process": 2, "partition": 1, "reset": 1}


def test_armed_fault_counts_when_it_strikes() -> None:
    _, armed, cluster = carried_out(
        KillOnMessage(
            at_s=1, host="head", process="rollout", message="TakeGroups", count=3, moment="replied"
        ),
        KillInCommit(at_s=2, host="head", process="rollout", torn=True),
        CorruptChunk(at_s=3, host="spot-1", count=2),
        BadScorer(at_s=4, how="lie", count=1),
        FailLoad(at_s=5, host="spot-1", count=2),
        ForeignResult(at_s=6, host="spot-1", count=2),
    )
    assert not armed.fired
    assert not armed.missed
    for strike in cluster.waiting:
        strike()
    others = {"corrupt_chunk": 2, "bad_scorer": 1, "fail_load": 2, "foreign_result": 2}
    assert armed.fired == {"kill_on_message": 1, "kill_in_commit": 1, **others}
    assert armed.shapes == {"kill_on_message: replied": 1, "kill_in_commit: torn": 1, "bad_scorer: lie": 1}


def test_armed_fault_strikes_the_host_that_it_was_armed_on() -> None:
    faults = CorruptChunk(at_s=1, host="@preemptible/0", count=1), KillHost(at_s=2, host="spot-1")
    _, armed, cluster = carried_out(*faults)
    struck: list[AnyFault] = []
    armed.on_strike = lambda fault, how: struck.append(fault)
    cluster.waiting[0]()
    assert armed.resolve("@preemptible/0") == "spot-2"
    assert struck == [CorruptChunk(at_s=1, host="spot-1", count=1)]


def test_notice_is_left_to_cluster_and_storm_strikes_repeatedly() -> None:
    done, armed, _ = carried_out(
        Notice(at_s=1, host="spot-2", notice_s=30),
        RestartStorm(at_s=2, host="spot-1", process="engine", kills=3, every_s=0.5),
    )
    assert done == [
        "1 notice spot-2 30", "2 kill spot-1/engine", "2.5 kill spot-1/engine", "3 kill spot-1/engine",
    ]  # fmt: skip
    assert armed.shapes == {"notice: 30 s": 1}


def test_withdrawn_notice_is_left_to_cluster_in_both_shapes() -> None:
    done, armed, _ = carried_out(
        FalseNotice(at_s=1, host="spot-2", notice_s=30, back_s=4),
        FalseNotice(at_s=2, host="spot-1", notice_s=30, back_s=5, hint=True),
    )
    assert done == ["1 notice spot-2 30 until 4", "2 hint spot-1 30 until 5"]
    assert armed.shapes == {"false_notice: notice": 1, "false_notice: hint": 1}
    assert FalseNotice(at_s=1, host="spot-2", notice_s=30, back_s=4).over_s == 5


def test_other_kinds_reach_cluster_and_stays_the_provider() -> None:
    done, armed, _ = carried_out(
        ClockJump(at_s=1, host="head", by_s=-3600),
        KillZone(at_s=2, zone="a"),
        CrashActor(at_s=2.5, host="head", process="rollout", actor="manager"),
        Reset(at_s=3, a="head", b="spot-1"),
        Stay(host="spot-9", at_s=4, for_s=5),
    )
    assert done == [
        "1 clock head -3600", "2 zone a", "2.5 crash manager of head/rollout", "3 reset head spot-1",
    ]  # fmt: skip
    assert armed.fired == {"clock_jump": 1, "crash_actor": 1, "kill_zone": 1, "reset": 1}
