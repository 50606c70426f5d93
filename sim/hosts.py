"""Host and SimProcess: machines of a simulated cluster and their processes.

A host has an address, a disk and memory. Owns which processes live where, how they are signalled, and how
their end is reported to their parents. What a process runs is production code, given as its `main`. The
network decides whether the process can still be reached, the disk what is left of its writes. A process dies
with its parent. A host that loses its power loses every process and its memory, sends nothing, and keeps its
disk.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass

from gleaner.nodeagent.exit_codes import CUT_SHORT, FAILED, as_cannot_run
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.sim.disk import SimDisk
from gleaner.sim.files import SimMemory
from gleaner.sim.loop import SimLoop
from gleaner.sim.meter import Meter
from gleaner.sim.network import SimNet
from gleaner.supervisor.process import TOO_SLOW, ProcessExit

SIGKILL, SIGTERM, SIGCONT, SIGSTOP = 9, 15, 18, 19
ENDS = {1: "SIGHUP", 2: "SIGINT", SIGTERM: "SIGTERM"}
"""Signals that request an end, as `gleaner.nodeagent.shutdown.SIGNALS`."""
REAP_S = 0.001
"""From the end of a process until its parent's loop knows it: a pidfd that becomes readable."""
KILLED = ProcessExit(None, SIGKILL)

log = logging.getLogger("sim")

Main = Callable[["SimProcess"], Coroutine[object, object, int]]
"""What a process runs: it returns the exit code, or raises what ended it."""
OnExit = Callable[[ProcessExit], None]


class SimShutdown(Shutdown):
    """The order to end of a simulated process; its signals are calls of `SimProcess.send_signal`."""

    def __init__(self, process: SimProcess) -> None:
        super().__init__(process.name)
        self._process = process

    def listen(self) -> None:
        """Nothing to do: no other code takes its signals."""

    def asked(self, name: str) -> None:
        """A signal that requests an end: in order the first time, at once the second."""
        if self.signal:
            self.clean_up()
            self._process.end(ProcessExit(CUT_SHORT, None, f"{name} again: ended at once, without order"))
            return
        self.signal = name
        self.set()

    def clean_up(self) -> None:
        """See `Shutdown`: the same for simulated processes."""
        self._process.kill_children()
        for undo in reversed(self._undo):
            try:
                undo()
            except OSError as problem:
                log.warning("not cleaned up: %s", problem)


class SimProcess:
    """One process, from its start to its end; made by `Host.start`. To its parent it is a
    `gleaner.supervisor.machine.Child`.

    Args:
        host: its host. name: `node/kind`. parent: it dies with that one.
        on_exit: called once, in the parent's loop.
    """

    def __init__(self, host: Host, name: str, parent: SimProcess | None, on_exit: OnExit | None) -> None:
        self.host = host
        self.name = name
        self.parent = parent
        self.loop = host.loop.spawn(name, host.name)
        self.meter = Meter()
        self.children: list[SimProcess] = []
        self.stop_order = SimShutdown(self)
        self.ended: ProcessExit | None = None
        """Its end, from the moment of it; its parent is notified a little later."""
        self.exit: ProcessExit | None = None
        self._on_exit = on_exit
        self.env: Mapping[str, str] = {}
        """Variables that its parent added to its environment."""
        self.watchdog_s = 0.0
        """Within which time its starter expects the next sign of life; 0: it expects none."""
        self.notified_s: float | None = None
        """When it sent its last sign of life to its starter."""
        self.stopping = False  # by its parent's order
        self.struck = False  # by a fault, which ends it
        self._killed_for = ""
        self._reaped = asyncio.Event()
        if parent is not None:
            parent.children.append(self)
        self.loop.at_death(self._died)

    @property
    def pid(self) -> int:
        """Its number, unique in the run."""
        return self.loop.number

    @property
    def kind(self) -> str:
        """Kind of the process: `agent`, `rollout`, `trainer`, ..."""
        return self.name.partition("/")[2]

    @property
    def alive(self) -> bool:
        """Whether it has not ended; it may be frozen."""
        return self.loop.alive

    def __repr__(self) -> str:
        return f"<{self.name} (pid {self.pid}) on {self.host.name}>"

    # -- for its parent --

    def send_signal(self, number: int) -> None:
        """See `Child`: SIGKILL, SIGSTOP, SIGCONT, or one that asks for an end."""
        if not self.alive:
            return
        if number == SIGSTOP:
            self.loop.freeze()
            self.host.net.process_froze(self.loop)
        elif number == SIGCONT:
            self.host.net.process_thawed(self.loop)
            self.loop.thaw()
        elif number in ENDS:
            self.loop.call_soon(self.stop_order.asked, ENDS[number])
        else:
            self.end(ProcessExit(None, number, "", self._killed_for if number == SIGKILL else ""))

    async def wait(self) -> ProcessExit:
        """See `Child`."""
        await self._reaped.wait()
        assert self.exit is not None
        return self.exit

    async def stop(self, timeout_s: float) -> ProcessExit:
        """See `Child`."""
        self.stopping = True
        if timeout_s > 0:
            self.send_signal(SIGTERM)
            try:
                async with asyncio.timeout(timeout_s):
                    return await self.wait()
            except TimeoutError:
                self.kill(TOO_SLOW)
        self.kill()
        return await self.wait()

    def kill(self, why: str = "") -> None:
        """See `Child`."""
        self._killed_for = self._killed_for or why
        self.send_signal(SIGKILL)

    def cpu_s(self) -> float:
        """See `Child`: it works, unless it is frozen."""
        return self.loop.awake_s()

    # -- its life --

    def run(self, main: Main, start_s: float) -> None:
        """Begin, `start_s` from now: before that it loads its programs. What `main` raises ends it as
        `gleaner.nodeagent.host.run_process` would."""
        self.loop.create_task(self._run(main, start_s), name=f"main of {self.name}")

    async def _run(self, main: Main, start_s: float) -> None:
        await asyncio.sleep(start_s)
        try:
            ended = ProcessExit(await main(self), None)
        except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 (the edge of a process)
            known = as_cannot_run(problem)
            if known is None:
                what = f"a defect ended {self.name}"
                self.loop.call_exception_handler({"message": what, "exception": problem})
            reason = f"{type(problem).__name__}: {problem}" if known is None else str(known)
            ended = ProcessExit(
                FAILED if known is None else known.code, None, f"{self.name}: error: {reason}"
            )
        self.end(ended)

    def end(self, exit_: ProcessExit) -> None:
        """It is over, this way."""
        if self.alive:
            self.ended = exit_
            self.host.loop.trace.note("exit", self.name, self.pid, exit_.cause)
            self.loop.kill()

    def kill_children(self) -> None:
        """SIGKILL to every process that it started; theirs die with them."""
        for child in list(self.children):
            child.kill()

    def _died(self) -> None:
        """Its loop has stopped."""
        self.ended = self.ended or KILLED
        self.host.process_died(self)
        for child in list(self.children):  # PR_SET_PDEATHSIG
            child.end(KILLED)
        if self.parent is not None:
            self.parent.children.remove(self)
            self.parent.loop.call_later(REAP_S, self._reap)

    def _reap(self) -> None:
        """In the parent's loop."""
        self.exit = self.ended
        assert self.exit is not None
        self._reaped.set()
        if self._on_exit is not None:
            self._on_exit(self.exit)


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A machine before it has power.

    Args:
        name: its name, and that of the node on it.
        zone: hosts of a zone may fail together.
        seed: of the run, for the draws of its disk.
        egress_bytes_s, ingress_bytes_s: of its network card.
        is_process: it is a process of a machine that stays up, whose kernel closes its connections.
    """

    name: str
    zone: str
    seed: int
    egress_bytes_s: float
    ingress_bytes_s: float = math.inf
    is_process: bool = False


class Host:
    """A machine of the cluster; it has no power yet."""

    def __init__(
        self,
        loop: SimLoop,
        net: SimNet,
        spec: HostSpec,
    ) -> None:
        self.loop, self.net = loop, net
        self._is_process = spec.is_process
        self.name, self.zone = spec.name, spec.zone
        self.address = net.add_host(
            spec.name, egress_bytes_s=spec.egress_bytes_s, ingress_bytes_s=spec.ingress_bytes_s
        )
        self.disk = SimDisk(loop, random.Random(f"{spec.seed}/disk/{spec.name}"), spec.name)
        self.memory = SimMemory()
        self.locks: dict[str, SimProcess] = {}
        """State directories, and the process that holds each."""
        self.processes: list[SimProcess] = []
        """The living processes, in the order of their start."""
        self.up = False

    def power_on(self) -> None:
        """It is up, with what its disk holds and nothing in memory; no process runs yet."""
        if not self.up:
            self.loop.trace.note("host up", self.name)
            self.up = True
            self.net.host_back(self.name)

    def power_off(self) -> None:
        """Power off, without any message; but if the host is a process, others see its connections break."""
        if not self.up:
            return
        self.loop.trace.note("host down", self.name)
        if not self._is_process:
            # first: the deaths of its processes must not break connections visibly
            self.net.host_died(self.name)
        self.up = False
        for process in list(self.processes):
            process.end(KILLED)
        self.memory.forget()

    def start(
        self,
        name: str,
        main: Main,
        start_s: float,
        parent: SimProcess | None = None,
        on_exit: OnExit | None = None,
        env: Mapping[str, str] | None = None,
    ) -> SimProcess:
        """Start a process. Raises OSError where the host is not up."""
        if not self.up:
            raise OSError(f"host {self.name} is not up")
        process = SimProcess(self, name, parent, on_exit)
        process.env = env or {}
        self.processes.append(process)
        process.run(main, start_s)
        return process

    def find(self, kind: str) -> SimProcess | None:
        """The living process of a kind (`agent`, `rollout`, `trainer`, ...); the newest, if there are two."""
        name = f"{self.name}/{kind}"
        return next((process for process in reversed(self.processes) if process.name == name), None)

    def process_died(self, process: SimProcess) -> None:
        """Called by `SimProcess`."""
        self.processes.remove(process)
        for place in [place for place, holder in self.locks.items() if holder is process]:
            del self.locks[place]
        self.net.process_died(process.loop)
