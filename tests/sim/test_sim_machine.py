"""Threads of a simulated process.

Work runs in an instant; its result is delivered in order, after its duration in virtual time.
"""

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
def rig() -> Rig:
    return Rig()


def thread(rig: Rig) -> SimWorker:
    worker = rig.machine.thread("engine")
    assert isinstance(worker, SimWorker)
    return worker


def test_result_arrives_when_its_work_time_has_passed(rig: Rig) -> None:
    assert rig.loop.complete(rig.process, rig.run(thread(rig), "a", 2.5), WITHIN_S) == "a"
    assert rig.done == [(2.5, "a"), (2.5, "a told")]
    assert rig.meter.spent_s == 2.5


def test_one_thread_works_in_order_and_two_in_parallel(rig: Rig) -> None:
    one, two = thread(rig), thread(rig)
    for worker, name, seconds in ((one, "a", 2.0), (one, "b", 1.0), (two, "c", 2.5), (one, "d", 0.0)):
        rig.process.create_task(rig.run(worker, name, seconds))
    rig.loop.run(10.0)
    effects = [entry for entry in rig.done if "told" not in entry[1]]
    assert effects == [(2.0, "a"), (2.5, "c"), (3.0, "b"), (3.0, "d")]


def test_work_error_arrives_after_its_time_and_next_continues(rig: Rig) -> None:
    worker = thread(rig)

    def fail() -> None:
        rig.meter.spend(3.0)
        raise ValueError("broken")

    async def main() -> float:
        with pytest.raises(ValueError, match="broken"):
            await worker.run(fail)
        failed_s = rig.loop.now_s
        await rig.run(worker, "after", 1.0)
        return failed_s

    assert rig.loop.complete(rig.process, main(), WITHIN_S) == 3.0
    assert rig.done == [(4.0, "after"), (4.0, "after told")]


def test_killed_process_has_neither_result_nor_effect(rig: Rig) -> None:
    rig.process.create_task(rig.run(thread(rig), "a", 2.0))
    rig.loop.call_at(1.0, rig.process.kill)
    rig.loop.run(10.0)
    assert rig.done == []


def test_work_pauses_while_its_process_is_frozen(rig: Rig) -> None:
    rig.process.create_task(rig.run(thread(rig), "a", 2.0))
    for freeze_s, thaw_s in ((1.0, 1.5), (2.25, 7.0)):
        rig.loop.call_at(freeze_s, rig.process.freeze)
        rig.loop.call_at(thaw_s, rig.process.thaw)
    rig.loop.run(10.0)
    assert rig.done == [(7.25, "a"), (7.25, "a told")]


def test_work_of_a_slow_process_takes_proportionally_longer(rig: Rig) -> None:
    rig.process.slow(4.0)
    rig.process.create_task(rig.run(thread(rig), "a", 2.0))
    rig.loop.run(20.0)
    assert rig.done[0][0] == pytest.approx(8.0, abs=0.01)


def test_cancelled_work_is_not_begun_and_begun_work_finishes(rig: Rig) -> None:
    worker = thread(rig)

    async def main() -> None:
        begun = rig.process.create_task(rig.run(worker, "begun", 2.0))
        waits = rig.process.create_task(rig.run(worker, "given up", 2.0))
        closed = rig.process.create_task(rig.run(worker, "closed", 2.0))
        rig.process.call_later(0.5, begun.cancel)
        rig.process.call_later(0.5, waits.cancel)
        rig.process.call_later(1.0, worker.close)
        rig.process.call_later(1.5, closed.cancel)

    rig.loop.complete(rig.process, main(), WITHIN_S)
    rig.loop.run(10.0)
    assert rig.done == [(2.0, "begun")]
    with pytest.raises(RuntimeError, match="engine takes no more work"):
        worker.run(lambda: None)


def test_effects_outside_work_are_immediate_and_counted_apart(rig: Rig) -> None:
    rig.work("on the loop", 1.5)
    assert rig.done == [(0.0, "on the loop")]
    assert (rig.meter.spent_s, rig.meter.beside_s) == (0.0, 1.5)
    with pytest.raises(ValueError, match="cannot take"):
        rig.meter.spend(-1.0)


def test_pid_is_process_number_and_missing_command_an_oserror(rig: Rig) -> None:
    assert rig.machine.pid == rig.process.number
    with pytest.raises(OSError, match="rm"):
        rig.machine.start(ProcessSpec(["rm"], output=None), lambda exit_: None)  # type: ignore[arg-type]
