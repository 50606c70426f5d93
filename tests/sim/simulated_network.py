"""A simulated network for the carrier suites, and a driver on virtual time.

Production's carriers must pass the same suites.
"""

import asyncio
import inspect
import mmap
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from gleaner.sim.loop import SimLoop
from gleaner.sim.network import SimNet
from gleaner.sim.network_path import Profile
from gleaner.transport.keys import NodeKeys
from gleaner.transport.wire import LinkTimes, Peer, Wire
from tests.transport.conftest import Recorder, eventually

HERE = "here"  # the host of each process without a host of its own
Promise = Callable[..., Coroutine[object, object, None]]


class Simulated:
    """Opens wires of simulated processes, each on its own host with a fixed port."""

    keys: NodeKeys | None = None

    def __init__(self, loop: SimLoop, seed: int = 1, profile: Profile | None = None) -> None:
        self.loop = loop
        self.net = SimNet(loop, random.Random(seed), loop.trace, profile=profile)
        self.net.add_host(HERE)
        self.addresses: dict[str, str] = {}
        self.wires: list[Wire] = []
        self.patience_s = 0.4

    def open(self, name: str) -> Wire:
        address = self.address(name)
        wire = self.net.wire(
            self.loop.spawn(name, name),
            name,
            name,
            address.endpoint,
            self.keys,
            times=LinkTimes(self.patience_s, self.patience_s),
        )
        self.wires.append(wire)
        return wire

    def address(self, name: str) -> Peer:
        """The address at which `name` will listen, known before it does."""
        if name not in self.addresses:
            self.addresses[name] = self.net.add_host(name)
        return Peer(f"tcp://{self.addresses[name]}:7000", self.keys.public if self.keys else "")

    def gives_up_after(self, seconds: float) -> None:
        """Sets how long links opened from now on wait for an absent peer."""
        self.patience_s = seconds

    async def cuttable(self, name: str) -> Peer:
        """An address of `name` whose connections are broken by `cut` until `mend`."""
        return self.address(name)

    def cut(self, name: str) -> None:
        for other in self.addresses:
            if other != name:
                self.net.jam(other, name)

    def mend(self, name: str) -> None:
        for other in self.addresses:
            if other != name:
                self.net.heal(other, name)

    async def close(self) -> None:
        for wire in self.wires:
            await wire.close()


class SimulatedKeyed(Simulated):
    """The same with keys."""

    keys = NodeKeys.generate()


def cases(module: object, leave_out: str = "") -> Iterator[tuple[str, Promise, dict[str, object]]]:
    """The tests of a suite, one for each value of their parameters.

    Tests whose source contains a word of `leave_out` are excluded: they open their own sockets or inspect
    production's carrier.
    """
    for name, test in vars(module).items():
        if not name.startswith("test_") or not inspect.iscoroutinefunction(test):
            continue
        if any(word in inspect.getsource(test) for word in leave_out.split()):
            continue
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        if not marks:
            yield name, test, {}
        for mark in marks:
            for number, value in enumerate(mark.args[1]):
                yield f"{name}-{number}", test, {mark.args[0]: value}


def run(test: Promise, loop: SimLoop, given: dict[str, object], request: pytest.FixtureRequest) -> None:
    """Run a test in a process of the simulation, with the fixtures that it requests."""
    given = {"recorder": Recorder, "eventually": eventually, **given}
    wanted = inspect.signature(test).parameters
    arguments = {name: given[name] if name in given else request.getfixturevalue(name) for name in wanted}
    process = loop.spawn("test", HERE)
    loop.complete(process, test(**arguments), within_s=300.0)


def mapped(path: Path | str) -> memoryview:
    """A real file, mapped as production publishes it."""
    with Path(path).open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until the condition holds."""
    await eventually(condition, within_s)


def now_s() -> float:
    """Virtual time."""
    return asyncio.get_running_loop().time()
