"""Health checks of child processes: the policy, and a small real tree."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from watched_process import system_of

from gleaner.supervisor import Health, ProcessSpec, Restarted, Supervisor, child, one_for_one
from gleaner.supervisor.process import ChildProcess
from gleaner.supervisor.watch.health import ChildHealth, Parent
from gleaner.transport.wire import Peer

HEALTH = Health(silent_s=10.0, start_s=60.0)
BEATING = Path(__file__).parents[1] / "beating_process.py"


def idle() -> float:
    """Processor seconds of a process that used 3 s and is idle now."""
    return 3.0


def first_ill_s(pulse: ChildHealth, cpu_s: Callable[[float], float], until_s: float = 1000.0) -> float:
    """The time at which a check once a second finds that the child is to be killed."""
    seconds = map(float, range(int(until_s)))
    return next((now_s for now_s in seconds if pulse.look(now_s, partial(cpu_s, now_s))), until_s)


def test_child_is_killed_after_the_stated_silence() -> None:
    pulse = ChildHealth(HEALTH, 0.0)
    pulse.beat(5.0)
    assert first_ill_s(pulse, lambda now_s: idle()) == 15.0
    assert pulse.look(15.0, idle) == "no heartbeat for 10.0 s"


def test_heartbeat_ends_a_silence() -> None:
    pulse = ChildHealth(HEALTH, 0.0)
    for beat_s in range(0, 100, 9):
        pulse.beat(float(beat_s))
        assert not pulse.look(beat_s + 8.9, idle)


def test_starting_child_has_its_own_limit() -> None:
    pulse = ChildHealth(HEALTH, 0.0)
    assert first_ill_s(pulse, lambda now_s: idle()) == 60.0
    assert pulse.look(60.0, idle) == "no heartbeat for 60.0 s since its start"


def test_silent_child_using_the_processor_has_longer_limit() -> None:
    pulse = ChildHealth(HEALTH, 0.0)
    pulse.beat(0.0)
    assert first_ill_s(pulse, lambda now_s: now_s) == 60.0


def test_starved_child_at_1_percent_gets_longer_limit() -> None:
    pulse = ChildHealth(HEALTH, 0.0)
    pulse.beat(0.0)
    assert first_ill_s(pulse, lambda now_s: now_s / 100) == 60.0


def test_idle_child_is_killed_one_silence_after_work() -> None:
    pulse = ChildHealth(HEALTH, 0.0)
    pulse.beat(0.0)
    assert first_ill_s(pulse, lambda now_s: min(now_s, 20.0)) == 30.0


def test_processor_use_is_read_only_for_late_children() -> None:
    pulse = ChildHealth(HEALTH, 0.0)
    pulse.beat(0.0)

    def never() -> float:
        raise AssertionError("looked at a child in good health")

    assert not pulse.look(4.0, never)


def test_contradictory_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="0 < silent_s <= start_s"):
        Health(silent_s=10.0, start_s=5.0)


def test_parent_address_is_in_the_environment_with_key() -> None:
    for key in ("", "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"):
        parent = Parent(Peer("tcp://127.0.0.1:7700", key), 0.5)
        assert Parent.parse(str(parent)) == parent


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.02)


async def test_stopped_process_is_replaced_busy_or_paused_ones_not(
    tmp_path: Path,
) -> None:
    """Real processes and links, a limit of 1 s: one is stopped for good, another blocks its own loop for 2 s
    by work, and the parent is paused for 2 s."""
    system = system_of("parent", tmp_path)
    system.start()
    restarts: list[Restarted] = []
    health = Health(silent_s=1.0, start_s=60.0)

    def beating(name: str, *words: str) -> ProcessSpec:
        return ProcessSpec([sys.executable, str(BEATING), *words], tmp_path / f"{name}.out", health=health)

    def lines_of(name: str) -> list[str]:
        output = tmp_path / f"{name}.out"
        return output.read_text().split() if output.exists() else []

    tree = Supervisor(
        system,
        one_for_one(child("stopped", beating("stopped")), child("busy", beating("busy", "2.0"))),
        on_failure=pytest.fail,
        on_restart=restarts.append,
    )
    try:
        await tree.start()
        await until(lambda: lines_of("stopped") and lines_of("busy"))
        time.sleep(2.0)  # the parent's own loop is blocked
        await until(lambda: "spun" in lines_of("busy"))
        assert restarts == []
        stopped = tree.process("stopped")
        assert stopped is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        await until(lambda: restarts)
        assert restarts[0].name == "stopped"
        assert restarts[0].cause.startswith("SIGKILL (no heartbeat for 1.")
        await until(lambda: len(lines_of("stopped")) == 2)  # its next life is up
        assert [state.last_failure for state in tree.states()] == [restarts[0].cause, ""]
    finally:
        await tree.stop()
        await system.close()


async def test_processor_seconds_of_a_child_are_its_own(tmp_path: Path) -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ntime.sleep(60)"
    process = ChildProcess(ProcessSpec([sys.executable, "-c", code], tmp_path / "out"), lambda exit_: None)
    await until(lambda: (tmp_path / "out").read_text() == "done\n")
    used_s = process.cpu_s()
    process.kill("the test is over")
    exit_ = await process.wait()
    assert 0.25 <= used_s <= 5.0
    assert exit_.cause == "SIGKILL (the test is over)"
    assert process.cpu_s() == 0.0
