"""Threads of a simulated process: work is done in an instant and waited out, in order, in virtual time."""

import pytest

from gleaner.sim.loop import SimLoop
from gleaner.sim.machine import SimMachine, SimWorker
from gleaner.sim.meter import Meter
from gleaner.sim.process_loop import ProcessLoop
from gleaner.supervisor.machine import Child, OnExit
from gleaner.supervisor.process import ProcessSpec

WITHIN_S = 1000.0


class Rig:
    """One process and its machine; `done` has what was done and when."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.process: ProcessLoop = self.loop.spawn("node/engine", "node")
        self.meter = Meter()
        self.machine = SimMachine(self.process, no_children, self.meter)
        self.done: list[tuple[float, str]] = []

    def work(self, name: str, seconds: float) -> str:
        """A piece of work that others see when it is over."""
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


def test_a_result_comes_when_the_seconds_of_its_work_have_passed(rig: Rig) -> None:
    assert rig.loop.complete(rig.process, rig.run(thread(rig), "a", 2.5), WITHIN_S) == "a"
    assert rig.done == [(2.5, "a"), (2.5, "a told")]
    assert rig.meter.spent_s == 2.5


def test_work_of_one_thread_is_done_in_the_order_of_the_calls_and_that_of_two_at_once(rig: Rig) -> None:
    one, two = thread(rig), thread(rig)
    for worker, name, seconds in ((one, "a", 2.0), (one, "b", 1.0), (two, "c", 2.5), (one, "d", 0.0)):
        rig.process.create_task(rig.run(worker, name, seconds))
    rig.loop.run(10.0)
    effects = [entry for entry in rig.done if "told" not in entry[1]]
    assert effects == [(2.0, "a"), (2.5, "c"), (3.0, "b"), (3.0, "d")]


def test_what_work_raises_comes_when_its_seconds_have_passed_and_the_next_goes_on(rig: Rig) -> None:
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


def test_a_killed_process_has_neither_result_nor_effect(rig: Rig) -> None:
    rig.process.create_task(rig.run(thread(rig), "a", 2.0))
    rig.loop.call_at(1.0, rig.process.kill)
    rig.loop.run(10.0)
    assert rig.done == []


def test_while_a_process_is_frozen_its_work_stands_still(rig: Rig) -> None:
    rig.process.create_task(rig.run(thread(rig), "a", 2.0))
    for freeze_s, thaw_s in ((1.0, 1.5), (2.25, 7.0)):
        rig.loop.call_at(freeze_s, rig.process.freeze)
        rig.loop.call_at(thaw_s, rig.process.thaw)
    rig.loop.run(10.0)
    assert rig.done == [(7.25, "a"), (7.25, "a told")]


def test_work_of_a_slow_process_takes_as_many_times_longer(rig: Rig) -> None:
    rig.process.slow(4.0)
    rig.process.create_task(rig.run(thread(rig), "a", 2.0))
    rig.loop.run(20.0)
    assert rig.done[0][0] == pytest.approx(8.0, abs=0.01)


def test_what_nobody_waits_for_is_not_begun_and_what_has_begun_is_finished(rig: Rig) -> None:
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


def test_effects_outside_of_any_work_come_at_once_and_its_seconds_are_told_apart(rig: Rig) -> None:
    rig.work("on the loop", 1.5)
    assert rig.done == [(0.0, "on the loop")]
    assert (rig.meter.spent_s, rig.meter.beside_s) == (0.0, 1.5)
    with pytest.raises(ValueError, match="cannot take"):
        rig.meter.spend(-1.0)


def test_its_number_is_the_process_s_and_a_command_that_is_not_there_is_an_oserror(rig: Rig) -> None:
    assert rig.machine.pid == rig.process.number
    with pytest.raises(OSError, match="rm"):
        rig.machine.start(ProcessSpec(["rm"], output=None), lambda exit_: None)  # type: ignore[arg-type]
