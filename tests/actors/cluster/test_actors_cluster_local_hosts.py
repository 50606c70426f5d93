"""Hosts that are processes of this machine, on a machine that only pretends to start them: which ends of node
agents are told as restarts."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.cluster.local_hosts import Join, LocalHosts
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.configs import load
from gleaner.supervisor import ProcessExit, ProcessSpec, Restarted
from gleaner.supervisor.machine import RealMachine
from gleaner.supervisor.testing import TestSystem
from gleaner.transport.wire import Peer

SIGKILL = 9


class PretendedChild:
    """Runs until somebody ends it; it does not end by itself."""

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


async def test_a_node_agent_that_ends_by_itself_is_told_as_a_restart_and_one_that_was_taken_is_not(
    tmp_path: Path,
) -> None:
    told: list[Restarted] = []
    async with TestSystem(tmp_path) as test:
        machine = PretendedMachine()
        test.system.machine = machine
        join = Join(Peer("tcp://127.0.0.1:1"), "127.0.0.1")
        hosts = LocalHosts(test.system, join, lambda _job, _name: None, told.append)
        await hosts.keep_reserved(job(tmp_path), lambda reason: None)
        machine.children[RESERVED].send_signal(SIGKILL)
        async with asyncio.timeout(30.0):
            while machine.started.count(RESERVED) < 2:
                await asyncio.sleep(0.01)
        assert told == [Restarted(f"{RESERVED}/agent", "SIGKILL", 1)]
        told.clear()

        hosts.start("spot-1", job(tmp_path))
        hosts.kill("spot-1")  # as the trace says
        hosts.start("spot-1", job(tmp_path))
        machine.children["spot-1"].end(ProcessExit(0, None))  # in order
        hosts.start("spot-1", job(tmp_path))
        assert told == []
        for life in (1, 2):
            machine.children["spot-1"].end(ProcessExit(3, None, "no memory"))
            assert len(told) == life - 1, "it is not back yet"
            hosts.start("spot-1", job(tmp_path))
            assert told[-1] == Restarted("spot-1/agent", "exit 3: no memory", life)
        machine.children["spot-1"].end(ProcessExit(0, None))
        await hosts.stop()
