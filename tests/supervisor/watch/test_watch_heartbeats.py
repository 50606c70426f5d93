"""`HeartbeatSender` and `HealthChecks`: when heartbeats leave, and which children are killed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gleaner.supervisor.inspection.vitals import Recovery
from gleaner.supervisor.process import ProcessExit
from gleaner.supervisor.system_messages import Heartbeat
from gleaner.supervisor.watch.health import Health, Parent
from gleaner.supervisor.watch.heartbeats import HealthChecks, HeartbeatSender
from gleaner.transport.wire import Peer

if TYPE_CHECKING:
    from gleaner.supervisor.machine import Child
    from gleaner.supervisor.system import ActorSystem

PARENT = Parent(Peer("tcp://127.0.0.1:7700", "key"), 0.5)
HEALTH = Health(silent_s=10.0, start_s=60.0)
PID = 41


@dataclass
class Timer:
    at_s: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class System:
    """What heartbeats use of an actor system, and of its loop. Its loop never waits."""

    def __init__(self, parent: Parent | None = None) -> None:
        self.now_s = 0.0
        self.paused_s = 0.0
        """For so long this process did not run: its turn clock leaves that out."""
        self.timers: list[Timer] = []
        self.sent: list[tuple[float, Peer, object]] = []
        self.recoveries: Counter[Recovery] = Counter()
        self.machine = SimpleNamespace(parent=parent, pid=PID)
        self.turn_clock = SimpleNamespace(now=lambda: self.now_s - self.paused_s)
        self.inspection = SimpleNamespace(vitals=SimpleNamespace(recoveries=self.recoveries))

    def call_later(self, after_s: float, call: Callable[..., None], *words: Any) -> Timer:
        self.timers.append(Timer(self.now_s + after_s, lambda: call(*words)))
        return self.timers[-1]

    def send_system(self, peer: Peer, message: object) -> None:
        self.sent.append((self.now_s, peer, message))

    def waiting(self) -> list[Timer]:
        return sorted((one for one in self.timers if not one.cancelled), key=lambda timer: timer.at_s)

    def pass_until(self, at_s: float) -> None:
        """Let what is due by then happen."""
        while (due := self.waiting()) and due[0].at_s <= at_s:
            self.timers.remove(due[0])
            self.now_s = due[0].at_s
            due[0].call()
        self.now_s = at_s


@dataclass
class Process:
    """A child process, which uses the processor as `used_s` tells."""

    system: System
    pid: int
    used_s: Callable[[], float] = lambda: 3.0
    exit: ProcessExit | None = None
    kills: list[tuple[float, str]] = field(default_factory=list)

    def cpu_s(self) -> float:
        return self.used_s()

    def kill(self, why: str = "") -> None:
        self.kills.append((self.system.now_s, why))

    @property
    def child(self) -> "Child":
        return cast("Child", self)


def begin(monkeypatch: pytest.MonkeyPatch, system: System) -> "ActorSystem":
    """The system, whose loop is the running one from now on."""
    loop = SimpleNamespace(get_running_loop=lambda: system)
    monkeypatch.setattr("gleaner.supervisor.watch.heartbeats.asyncio", loop)
    return cast("ActorSystem", system)


@pytest.fixture
def system() -> System:
    return System()


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch, system: System) -> HealthChecks:
    return HealthChecks(begin(monkeypatch, system))


def test_heartbeats_go_to_the_parent_at_once_and_then_as_often_as_it_expects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = System(PARENT)
    sender = HeartbeatSender(begin(monkeypatch, system))
    assert system.sent == []
    sender.start()
    system.pass_until(1.0)
    assert system.sent == [(at_s, PARENT.peer, Heartbeat(pid=PID)) for at_s in (0.0, 0.5, 1.0)]


def test_no_heartbeat_is_sent_after_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(PARENT)
    sender = HeartbeatSender(begin(monkeypatch, system))
    sender.close()
    sender.start()
    system.pass_until(0.5)
    sender.close()
    sender.close()
    system.pass_until(9.0)
    assert [at_s for at_s, _, _ in system.sent] == [0.0, 0.5]


def test_process_without_a_parent_sends_no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(parent=None)
    sender = HeartbeatSender(begin(monkeypatch, system))
    sender.start()
    system.pass_until(9.0)
    sender.close()
    assert (system.sent, system.timers) == ([], [])


def test_child_is_killed_once_when_its_heartbeats_end(
    system: System, checks: HealthChecks, caplog: pytest.LogCaptureFixture
) -> None:
    silent, beating = Process(system, 1), Process(system, 2)
    checks.add(silent.child, HEALTH)
    checks.add(beating.child, HEALTH)
    for second in range(60):
        system.pass_until(float(second))
        if second <= 7:
            checks.beat(1)
        checks.beat(2)
    assert silent.kills == [(17.0, "no heartbeat for 10.0 s")]
    assert beating.kills == []
    assert system.recoveries == {Recovery.CHILD_KILLED: 1}
    assert "child process 1 is killed: no heartbeat for 10.0 s" in caplog.text


def test_child_without_a_first_heartbeat_is_killed_after_the_time_for_its_start(
    system: System, checks: HealthChecks
) -> None:
    system.pass_until(100.0)
    starting = Process(system, 1)
    checks.add(starting.child, HEALTH)
    checks.beat(2)  # of a process that is not known
    system.pass_until(300.0)
    assert starting.kills == [(160.0, "no heartbeat for 60.0 s since its start")]


def test_child_that_uses_the_processor_is_not_killed_for_its_silence(
    system: System, checks: HealthChecks
) -> None:
    busy = Process(system, 1, used_s=lambda: system.now_s)
    checks.add(busy.child, HEALTH)
    checks.beat(1)
    system.pass_until(59.0)
    assert busy.kills == []
    system.pass_until(60.0)
    assert busy.kills == [(60.0, "no heartbeat for 60.0 s")]


def test_pause_of_the_parent_is_no_silence_of_its_children(system: System, checks: HealthChecks) -> None:
    child = Process(system, 1)
    checks.add(child.child, HEALTH)
    system.pass_until(3.0)
    checks.beat(1)
    system.paused_s, system.now_s = 500.0, 503.0
    system.pass_until(512.0)
    assert child.kills == []
    system.pass_until(520.0)
    assert child.kills == [(513.0, "no heartbeat for 10.0 s")]


@pytest.mark.parametrize("end", ["stop", "exit"])
def test_child_that_is_stopped_or_has_ended_is_not_killed(
    system: System, checks: HealthChecks, end: str
) -> None:
    ended, silent = Process(system, 1), Process(system, 2)
    checks.add(ended.child, HEALTH)
    checks.add(silent.child, HEALTH)
    system.pass_until(5.0)
    if end == "stop":
        checks.forget(ended.child)
        checks.forget(ended.child)
    else:
        ended.exit = ProcessExit(code=0, signal=None)
    system.pass_until(100.0)
    assert (ended.kills, len(silent.kills)) == ([], 1)


@pytest.mark.parametrize("frequent_first", [True, False])
def test_looks_are_as_frequent_as_the_most_frequent_heartbeats(
    frequent_first: bool, system: System, checks: HealthChecks
) -> None:
    rare, frequent = Process(system, 1), Process(system, 2)
    children = [
        (frequent.child, Health(silent_s=1.0, start_s=60.0)),
        (rare.child, Health(silent_s=100.0, start_s=600.0)),
    ]
    for child, health in children if frequent_first else reversed(children):
        checks.add(child, health)
    assert len(system.waiting()) == 1, "one timer for all children"
    checks.beat(2)
    system.pass_until(50.0)
    ((killed_s, _),) = frequent.kills
    assert killed_s == pytest.approx(1.0, abs=0.1001)


def test_nothing_is_looked_at_while_there_are_no_children(system: System, checks: HealthChecks) -> None:
    assert system.waiting() == []
    first, second = Process(system, 1), Process(system, 2)
    checks.add(first.child, HEALTH)
    checks.forget(first.child)
    system.pass_until(5.0)
    assert system.waiting() == []
    checks.add(second.child, HEALTH)
    system.pass_until(100.0)
    assert (first.kills, len(second.kills)) == ([], 1)
    assert system.waiting() == []


def test_closed_checks_kill_none_of_the_children_before_the_close(
    system: System, checks: HealthChecks
) -> None:
    checks.close()
    before, after = Process(system, 1), Process(system, 2)
    checks.add(before.child, HEALTH)
    checks.close()
    assert system.waiting() == []
    checks.add(after.child, HEALTH)
    system.pass_until(100.0)
    assert (before.kills, len(after.kills)) == ([], 1)
