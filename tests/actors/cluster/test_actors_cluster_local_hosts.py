"""LocalHosts on a pretended machine: ends of node agents that count as restarts."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gleaner.actors.cluster import local_hosts
from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.cluster.local_hosts import Join, LocalHosts
from gleaner.actors.protocol.cluster import JobSpec, StopNode
from gleaner.configs import load
from gleaner.supervisor import Actor, ProcessExit, ProcessSpec, Restarted, handles
from gleaner.supervisor.machine import RealMachine
from gleaner.supervisor.testing import TestSystem
from gleaner.transport.wire import Peer

SIGKILL = 9


class PretendedChild:
    """Runs until `end` is called; it does not end by itself."""

    pid = 1

    def __init__(self, on_exit: Callable[[ProcessExit], None]) -> None:
        self.exit: ProcessExit | None = None
        self._on_exit, self._ended = on_exit, asyncio.Event()

    def end(self, exit_: ProcessExit) -> None:
        if self.exit is None:
            self.exit = exit_
            self._ended.set()
            self._on_exit(exit_)

    def send_signal(self, number: int) -> None:
        self.end(ProcessExit(None, number))

    def kill(self, why: str = "") -> None:
        self.send_signal(SIGKILL)

    async def wait(self) -> ProcessExit:
        await self._ended.wait()
        assert self.exit is not None
        return self.exit

    async def stop(self, timeout_s: float) -> ProcessExit:
        self.end(ProcessExit(0, None))
        return await self.wait()

    def cpu_s(self) -> float:
        return 0.0


class PretendedMachine(RealMachine):
    """The newest child of each host."""

    def __init__(self) -> None:
        super().__init__()
        self.children: dict[str, PretendedChild] = {}
        self.started: list[str] = []

    def start(self, spec: ProcessSpec, on_exit: Callable[[ProcessExit], None]) -> PretendedChild:
        name = spec.argv[spec.argv.index("--name") + 1]
        self.started.append(name)
        self.children[name] = PretendedChild(on_exit)
        return self.children[name]


def job(folder: Path) -> JobSpec:
    config = load.load("quickstart", ["fleet.trace="])
    return JobSpec(run_id="run", run_dir=str(folder), model_dir=str(folder), config=load.dump(config))


async def test_only_unrequested_ends_of_node_agents_are_restarts(
    tmp_path: Path,
) -> None:
    restarts: list[Restarted] = []
    async with TestSystem(tmp_path) as test:
        machine = PretendedMachine()
        test.system.machine = machine
        join = Join(Peer("tcp://127.0.0.1:1"), "127.0.0.1")
        hosts = LocalHosts(test.system, join, lambda _job, _name: None, restarts.append)
        await hosts.keep_reserved(job(tmp_path), lambda reason: None)
        machine.children[RESERVED].send_signal(SIGKILL)
        async with asyncio.timeout(30.0):
            while machine.started.count(RESERVED) < 2:
                await asyncio.sleep(0.01)
        assert restarts == [Restarted(f"{RESERVED}/agent", "SIGKILL", 1)]
        restarts.clear()

        hosts.start("spot-1", job(tmp_path))
        hosts.kill("spot-1")  # as the trace requires
        hosts.start("spot-1", job(tmp_path))
        machine.children["spot-1"].end(ProcessExit(0, None))  # in order
        hosts.start("spot-1", job(tmp_path))
        assert restarts == []
        for life in (1, 2):
            machine.children["spot-1"].end(ProcessExit(3, None, "no memory"))
            assert len(restarts) == life - 1, "the host has not restarted yet"
            hosts.start("spot-1", job(tmp_path))
            assert restarts[-1] == Restarted("spot-1/agent", "exit 3: no memory", life)
        machine.children["spot-1"].end(ProcessExit(0, None))
        await hosts.stop()


async def test_hosts_are_stopped_by_an_order_and_by_force_where_that_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_hosts, "ORDER_S", 0.2)
    ordered: list[str] = []
    freed: list[str] = []
    async with TestSystem(tmp_path) as test:
        machine = PretendedMachine()
        test.system.machine = machine
        join = Join(Peer("tcp://127.0.0.1:1"), "127.0.0.1")
        hosts = LocalHosts(test.system, join, lambda _job, name: freed.append(name), lambda _restarted: None)

        class Agent(Actor):
            @handles(StopNode)
            async def stop(self, _message: StopNode) -> None:
                ordered.append(self.ctx.name)
                machine.children["spot-1"].end(ProcessExit(0, None))

        test.spawn("spot-1/agent", Agent)
        for name in ("spot-1", "spot-2"):
            hosts.start(name, job(tmp_path))
        await hosts.stop()
        assert ordered == ["spot-1/agent"]
        assert hosts.running() == []
        assert {"spot-1", "spot-2"} <= set(freed)
        assert all(child.exit == ProcessExit(0, None) for child in machine.children.values())
