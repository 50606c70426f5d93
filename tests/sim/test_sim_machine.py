"""Threads of a simulated process.

Work runs in an instant; its result is delivered in order, after its duration in virtual time.
"""

import asyncio

import pytest

from gleaner.sim.loop import SimLoop
from gleaner.sim.machine import SimMachine, SimWorker
from gleaner.sim.meter import Meter
from gleaner.sim.process_loop import ProcessLoop
from gleaner.supervisor.machine import Child, OnExit
from gleaner.supervisor.process import ProcessSpec

WITHIN_S = 1000.0


class Rig:
    """One process and its machine; `done` lists the finished work with its times."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.process: ProcessLoop = self.loop.spawn("node/engine", "node")
        self.meter = Meter()
        self.machine = SimMachine(self.process, no_children, self.meter)
        self.done: list[tuple[float, str]] = []

    def work(self, name: str, seconds: float) -> str:
        """A piece of work whose effect is visible when it is over."""
        self.meter.spend(seconds)
        self.meter.then(lambda: self.done.append((self.loop.now_s, name)))
        return name

    async def run(self, worker: SimWorker, name: str, seconds: float) -> str:
        result = await worker.run(lambda: self.work(name, seconds))
        self.done.append((self.loop.now_s, f"{name} told"))
        return result


def no_children(spec: ProcessSpec, on_exit: OnExit) -> Child:
    raise FileNotFoundError(spec.argv[0])


@pytest.fixture
def host_devices() -> Rig:
    return Rig()


def thread(host_devices: Rig, name: str = "engine") -> SimWorker:
    worker = host_devices.machine.thread(name)
    assert isinstance(worker, SimWorker)
    return worker


def test_result_arrives_when_its_work_time_has_passed(host_devices: Rig) -> None:
    assert (
        host_devices.loop.complete(
            host_devices.process, host_devices.run(thread(host_devices), "a", 2.5), WITHIN_S
        )
        == "a"
    )
    assert host_devices.done == [(2.5, "a"), (2.5, "a told")]
    assert host_devices.meter.spent_s == 2.5


def test_one_thread_works_in_order_and_two_in_parallel(host_devices: Rig) -> None:
    one, two = thread(host_devices), thread(host_devices, "engine/aside")
    for worker, name, seconds in ((one, "a", 2.0), (one, "b", 1.0), (two, "c", 2.5), (one, "d", 0.0)):
        host_devices.process.create_task(host_devices.run(worker, name, seconds))
    host_devices.loop.run(10.0)
    effects = [entry for entry in host_devices.done if "told" not in entry[1]]
    assert effects == [(2.0, "a"), (2.5, "c"), (3.0, "b"), (3.0, "d")]


def test_work_error_arrives_after_its_time_and_next_continues(host_devices: Rig) -> None:
    worker = thread(host_devices)

    def fail() -> None:
        host_devices.meter.spend(3.0)
        raise ValueError("broken")

    async def main() -> float:
        with pytest.raises(ValueError, match="broken"):
            await worker.run(fail)
        failed_s = host_devices.loop.now_s
        await host_devices.run(worker, "after", 1.0)
        return failed_s

    assert host_devices.loop.complete(host_devices.process, main(), WITHIN_S) == 3.0
    assert host_devices.done == [(4.0, "after"), (4.0, "after told")]


def test_killed_process_has_neither_result_nor_effect(host_devices: Rig) -> None:
    host_devices.process.create_task(host_devices.run(thread(host_devices), "a", 2.0))
    host_devices.loop.call_at(1.0, host_devices.process.kill)
    host_devices.loop.run(10.0)
    assert host_devices.done == []


def test_work_pauses_while_its_process_is_frozen(host_devices: Rig) -> None:
    host_devices.process.create_task(host_devices.run(thread(host_devices), "a", 2.0))
    for freeze_s, thaw_s in ((1.0, 1.5), (2.25, 7.0)):
        host_devices.loop.call_at(freeze_s, host_devices.process.freeze)
        host_devices.loop.call_at(thaw_s, host_devices.process.thaw)
    host_devices.loop.run(10.0)
    assert host_devices.done == [(7.25, "a"), (7.25, "a told")]


def test_work_of_a_slow_process_takes_proportionally_longer(host_devices: Rig) -> None:
    host_devices.process.slow(4.0)
    host_devices.process.create_task(host_devices.run(thread(host_devices), "a", 2.0))
    host_devices.loop.run(20.0)
    assert host_devices.done[0][0] == pytest.approx(8.0, abs=0.01)


def test_cancelled_work_is_not_begun_and_begun_work_finishes(host_devices: Rig) -> None:
    worker = thread(host_devices)

    async def main() -> None:
        begun = host_devices.process.create_task(host_devices.run(worker, "begun", 2.0))
        waits = host_devices.process.create_task(host_devices.run(worker, "given up", 2.0))
        closed = host_devices.process.create_task(host_devices.run(worker, "closed", 2.0))
        host_devices.process.call_later(0.5, begun.cancel)
        host_devices.process.call_later(0.5, waits.cancel)
        host_devices.process.call_later(1.0, worker.close)
        host_devices.process.call_later(1.5, closed.cancel)

    host_devices.loop.complete(host_devices.process, main(), WITHIN_S)
    host_devices.loop.run(10.0)
    assert host_devices.done == [(2.0, "begun")]
    with pytest.raises(RuntimeError, match="engine takes no more work"):
        worker.run(lambda: None)


def test_later_thread_of_a_name_begins_when_the_earlier_has_ended(host_devices: Rig) -> None:
    """The two lives of an actor: what the first one still writes comes before what the next one does."""
    one = thread(host_devices)

    async def main() -> None:
        for name in ("begun", "never begun"):
            host_devices.process.create_task(host_devices.run(one, name, 2.0))
        await asyncio.sleep(0.5)
        one.close()
        two = thread(host_devices)
        await asyncio.gather(host_devices.run(two, "next", 1.0), host_devices.run(two, "after", 0.0))

    host_devices.loop.complete(host_devices.process, main(), WITHIN_S)
    assert [entry for entry in host_devices.done if "told" not in entry[1]] == [
        (2.0, "begun"), (3.0, "next"), (3.0, "after"),
    ]  # fmt: skip


def test_effects_outside_work_are_immediate_and_counted_apart(host_devices: Rig) -> None:
    host_devices.work("on the loop", 1.5)
    assert host_devices.done == [(0.0, "on the loop")]
    assert (host_devices.meter.spent_s, host_devices.meter.beside_s) == (0.0, 1.5)
    with pytest.raises(ValueError, match="cannot take"):
        host_devices.meter.spend(-1.0)


def test_pid_is_process_number_and_missing_command_an_oserror(host_devices: Rig) -> None:
    assert host_devices.machine.pid == host_devices.process.number
    with pytest.raises(OSError, match="rm"):
        host_devices.machine.start(ProcessSpec(["rm"], output=None), lambda exit_: None)  # type: ignore[arg-type]
