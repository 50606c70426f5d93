"""Bit rot of a simulated host: it waits for its file, damages one, and has its effects on the host."""

import random

import pytest
from whole_system import SMALL

from gleaner.actors.cluster import job as places
from gleaner.configs.load import load
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.files import SimFiles
from gleaner.sim.hosts import SimProcess
from gleaner.sim.machine_injector import LOOK_S, MachineInjector
from gleaner.sim.run_setup import RunSetup

HOST = "reserved-1"


class Power(FaultInjector):
    """Notes which hosts get power again, and when; nothing is started there."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        self.loop = cluster.loop
        self.back: list[tuple[float, str]] = []

    def start_host(self, name: str) -> bool:
        self.back.append((self.loop.now_s, name))
        return True


class Rotting:
    """A host with power and without processes, whose files a test writes."""

    def __init__(self) -> None:
        self.cluster = SimCluster(RunSetup(load("quickstart", SMALL), seed=3))
        self.host, self.loop = self.cluster.hosts[HOST], self.cluster.loop
        self.host.power_on()
        self.seen: list[str] = []
        self.power = Power(self.cluster)
        self.machines = MachineInjector(
            self.cluster,
            self.power,
            random.Random(1),
            before_rot=lambda host: self.seen.append(f"before rot on {host}: {self.damaged()}"),
        )
        self.copies = str(places.state_copy_dir(self.cluster.job, HOST))
        self.images = str(places.store_dir(self.cluster.job, HOST))
        self.checkpoints = str(places.checkpoint_dir(self.cluster.job))
        self._written: dict[tuple[str, str], bytes] = {}

    def write(self, path: str, *, disk: bool = False) -> None:
        self._files(disk).write(path, b"whole")
        self._written["disk" if disk else "memory", path] = b"whole"

    def damaged(self) -> list[str]:
        return [
            path
            for (place, path), content in self._written.items()
            if (files := self._files(place == "disk")).exists(path) and files.read(path) != content
        ]

    def rot(self, what: str, back_s: float = 0.0) -> bool:
        return self.machines.rot(HOST, what, back_s, lambda: self.seen.append(f"done at {self.loop.now_s}"))

    def run(self, until_s: float) -> None:
        # a loop without events does not move
        self.loop.call_at(until_s, lambda: None)
        self.loop.run(until_s)

    def _files(self, disk: bool) -> SimFiles:
        return self.host.disk.files if disk else self.host.memory


@pytest.fixture
def rotting() -> Rotting:
    return Rotting()


def test_rot_strikes_the_newest_file_that_is_there(rotting: Rotting) -> None:
    rotting.write(f"{rotting.images}/v1/model")
    rotting.write(f"{rotting.images}/v2/model")
    assert rotting.rot("image")
    assert rotting.damaged() == [f"{rotting.images}/v2/model"]
    assert rotting.seen == [f"before rot on {HOST}: []", "done at 0.0"]


def test_rot_waits_until_its_file_is_there_and_strikes_once(rotting: Rotting) -> None:
    assert rotting.rot("copy")
    rotting.run(2.2 * LOOK_S)
    assert rotting.seen == []
    rotting.write(f"{rotting.copies}/slot-0/state")
    rotting.run(9 * LOOK_S)
    assert rotting.damaged() == [f"{rotting.copies}/slot-0/state"]
    assert rotting.seen[1:] == [f"done at {3 * LOOK_S}"]


def test_rot_of_a_checkpoint_waits_for_an_earlier_one(rotting: Rotting) -> None:
    rotting.write(f"{rotting.checkpoints}/step-000001/state", disk=True)
    rotting.rot("checkpoint", back_s=2.0)
    rotting.run(1.5 * LOOK_S)
    assert rotting.damaged() == []
    rotting.write(f"{rotting.checkpoints}/step-000002/state", disk=True)
    rotting.run(2.5 * LOOK_S)
    assert rotting.damaged() == [f"{rotting.checkpoints}/step-000002/state"]
    assert not rotting.host.up
    rotting.run(9 * LOOK_S)
    assert rotting.power.back == [(2 * LOOK_S + 2.0, HOST)]


def test_checkpoint_of_the_last_step_does_not_rot(rotting: Rotting) -> None:
    steps = rotting.cluster.setting.config.job.steps
    for step in (steps - 1, steps):
        rotting.write(f"{rotting.checkpoints}/step-{step:06d}/state", disk=True)
    rotting.rot("checkpoint", back_s=2.0)
    rotting.run(3 * LOOK_S)
    assert rotting.damaged() == []


def test_rot_waits_while_its_host_has_no_power(rotting: Rotting) -> None:
    rotting.host.power_off()
    rotting.rot("copy")
    rotting.run(LOOK_S)
    rotting.host.power_on()
    rotting.write(f"{rotting.copies}/slot-0/state")
    rotting.run(4 * LOOK_S)
    assert rotting.damaged() == [f"{rotting.copies}/slot-0/state"]


def test_rot_ends_with_the_job(rotting: Rotting) -> None:
    rotting.rot("copy")
    rotting.cluster.ended = object()  # type: ignore[assignment]  # any end
    rotting.run(LOOK_S)
    rotting.write(f"{rotting.copies}/slot-0/state")
    rotting.run(4 * LOOK_S)
    assert rotting.damaged() == []
    assert rotting.seen == []


def test_rot_of_a_host_that_does_not_exist_misses(rotting: Rotting) -> None:
    assert not rotting.machines.rot("nowhere", "copy", 0.0, lambda: None)
    assert rotting.seen == []


def test_engine_that_an_operator_kills_is_ended_by_a_fault(rotting: Rotting) -> None:
    async def idle(process: SimProcess) -> int:
        await process.stop_order.wait()
        return 0

    host = rotting.cluster.hosts["spot-1"]
    host.power_on()
    engine = host.start("spot-1/engine", idle, 0.0)
    assert rotting.machines.command("drain", "spot-1", 3.0)
    assert not engine.struck
    assert rotting.machines.command("kill", "spot-1", 0.0)
    assert engine.struck
    rotting.run(1.0)
