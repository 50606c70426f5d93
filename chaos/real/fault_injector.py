"""FaultInjector: injects and mends faults on hosts and processes.

Owns the mapping from a fault to its hosts and processes, and the faults of processes and their resources.
`wire_injector` has those of wires, `storage_faults` those of files. The nemesis decides when one is due and
whether the cluster recovered. A fault without a target is `NoEffect`, and so is one without an effect.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from gleaner.chaos.faults import (
    BadLink,
    CorruptChunk,
    DiskFull,
    Freeze,
    Hang,
    KillHost,
    KillInCommit,
    KillProcess,
    Notice,
    Partition,
    Reset,
    Zombie,
)
from gleaner.chaos.netns import Host
from gleaner.chaos.real.active_fault import ActiveFault, Evidence, NoEffect
from gleaner.chaos.real.cluster import RESERVED, Cluster, Node
from gleaner.chaos.real.faults import AnyRealFault, DamagedImage, KillInWeights, MemoryFull, Unplug
from gleaner.chaos.real.paths import of_log
from gleaner.chaos.real.storage_faults import fill_disk, fill_memory, newest_image, spoil, unfinished_images
from gleaner.chaos.real.torn_writes import tear
from gleaner.chaos.real.wire_injector import WireInjector
from gleaner.chaos.run_processes import AGENT, Proc, end_now

COMMAND_S = 60.0
WRITTEN_S = 20.0  # until some process writes an image; every step has one
WATCH_S = 0.0005  # an image of a small model is written within a few milliseconds


class FaultInjector:
    """See the module.

    Args:
        cluster: the target.
        steps: how many steps the jobs have done so far.
        seed: of the draws during a fault (which packets, which byte).
    """

    def __init__(self, cluster: Cluster, steps: Callable[[], int], seed: int) -> None:
        self._cluster = cluster
        self._wires = WireInjector(cluster, steps)
        self._seed = seed
        self._struck = 0

    def strike(self, fault: AnyRealFault) -> ActiveFault:
        """Inject the fault. Raises Missed, NoNamespaces, NoBadWire, OSError."""
        self._struck += 1
        match fault:
            case KillProcess():
                return self._kill(self._proc(fault.host, fault.process))
            case KillHost():
                node = self._node(fault.host)
                return self._power_off(node, fault.back_s) if fault.back_s else self._kill_agent(node)
            case KillInCommit():
                return self._kill_in_commit(fault)
            case Freeze() | Zombie():
                return self._freeze(self._proc(fault.host, fault.process), fault.for_s)
            case Hang():
                return self._hang(self._proc(fault.host, fault.process))
            case Partition():
                return self._wires.partition(self._host(fault.a), self._host(fault.b), fault)
            case Unplug():
                return self._wires.unplug(self._host(fault.host), fault)
            case BadLink():
                return self._wires.bad_link(self._host(fault.a), self._host(fault.b), fault, self._drawn())
            case Reset():
                return self._wires.reset(self._host(fault.a), self._host(fault.b), fault)
            case Notice():
                return self._notice(self._node(fault.host), fault.notice_s)
            case DiskFull():
                return fill_disk(self._cluster.seen_state(fault.host), fault)
            case CorruptChunk():
                return self._wires.flip(self._host(RESERVED), self._host(fault.host), fault, self._drawn())
            case DamagedImage():
                return self._damage_image(fault)
            case MemoryFull():
                return fill_memory(self._node(fault.host).host, fault)
            case KillInWeights():
                return self._kill_in_weights(self._node(fault.host))

    # -- processes --

    def _kill(self, proc: Proc) -> ActiveFault:
        gone = (proc.pid, *(child.pid for child in proc.descendants()))
        proc.kill()
        return ActiveFault(0.0, lambda: {"killed": 1}, gone=gone)

    def _kill_agent(self, node: Node) -> ActiveFault:
        """All of its processes die with it, and the kernel notifies its neighbours; it is started again as an
        init system would."""
        gone = tuple(node.host.processes())
        if node.process is None:
            raise NoEffect(f"{node.name} has no node agent now")
        node.process.kill()
        return ActiveFault(0.0, lambda: {"killed": len(gone)}, gone=gone)

    def _power_off(self, node: Node, back_s: float) -> ActiveFault:
        wires, name = self._cluster.switch.wires, node.name
        gone = tuple(node.host.processes())
        if not gone:
            raise NoEffect(f"nothing runs on {name}")
        wires.unplug(node.host)  # first, so that no neighbour sees a closed connection
        self._cluster.kill_host(node)
        self._cluster.forget_memory(name)

        def mend() -> Evidence:
            wires.plug(node.host)
            node.start()
            return {"killed": len(gone)}

        return ActiveFault(back_s, mend, gone=gone)

    def _kill_in_commit(self, fault: KillInCommit) -> ActiveFault:
        node, victim = self._node(fault.host), self._proc(fault.host, fault.process)
        journals = self._cluster.seen_state(node.name) / "journal"
        if fault.process == AGENT:
            gone = tuple(node.host.processes())
            self._cluster.kill_host(node)
            torn = tear(journals) if fault.torn else 0
            node.start()
        else:
            gone = (victim.pid, *(child.pid for child in victim.descendants()))
            with self._held(node):
                end_now([victim.pid])
                torn = tear(journals, fault.process) if fault.torn else 0
        if fault.torn and not torn:
            raise NoEffect(f"no journal of {fault.host}/{fault.process} had an end to tear")
        return ActiveFault(0.0, lambda: {"killed": 1, "torn": torn}, gone=gone)

    def _freeze(self, proc: Proc, for_s: float) -> ActiveFault:
        proc.signal(signal.SIGSTOP)

        def mend() -> Evidence:
            survived = proc.alive()
            with contextlib.suppress(psutil.NoSuchProcess):
                proc.signal(signal.SIGCONT)
            return {"frozen": 1, "came_back": int(survived)}

        return ActiveFault(for_s, mend)

    def _hang(self, proc: Proc) -> ActiveFault:
        """No process wakes it: the cluster is well again when another one has its place."""
        node = self._node(proc.node)
        gone = (proc.pid, *(child.pid for child in proc.descendants() if proc.kind == AGENT))
        before = self._named_ends(node, proc.kind)
        proc.signal(signal.SIGSTOP)

        def wrong() -> str:
            named = self._named_ends(node, proc.kind) > before
            return "" if named else f"{proc} was replaced, without a record that it hung"

        return ActiveFault(0.0, lambda: {"stopped": 1}, gone=gone, wrong=wrong)

    def _named_ends(self, node: Node, kind: str) -> int:
        """Number of processes of this host that were killed for being frozen; of agents by their watchdog."""
        if kind == AGENT:
            return node.hung
        logs = (self._cluster.seen_state(node.name) / "logs").glob("*")
        return sum(of_log(log.read_text(errors="replace").splitlines())["health check"] for log in logs)

    def _notice(self, node: Node, notice_s: float) -> ActiveFault:
        if node.process is None:
            raise NoEffect(f"{node.name} has no node agent now")
        process = node.process
        gone = tuple(node.host.processes())
        node.wanted = False
        argv = [sys.executable, "-m", "gleaner.rlctl", "preempt", node.name, "--notice", str(notice_s)]
        reply = self._cluster.driver.run([*argv, *self._cluster.access()], COMMAND_S)
        if reply.returncode != 0:
            node.wanted = True
            raise NoEffect(f"{node.name} could not be notified: {reply.stderr.strip()}")

        def mend() -> Evidence:
            in_order = process.poll() == 0
            killed = self._cluster.kill_host(node)
            self._cluster.forget_memory(node.name)
            node.start()
            return {"left_in_order": int(in_order), "killed": killed}

        return ActiveFault(notice_s, mend, over=lambda: process.poll() is not None, gone=gone)

    # -- files --

    def _damage_image(self, fault: DamagedImage) -> ActiveFault:
        node = self._node(fault.host)
        holders = [proc for kind in ("transfer", "engine") if (proc := self._cluster.find(node.name, kind))]
        image = newest_image(self._cluster.memory(node.name))
        if image is None or not holders:
            raise NoEffect(f"{fault.host} has no weights now")
        with self._held(node):
            end_now(proc.pid for proc in holders)
            spoil(image)
        return ActiveFault(0.0, lambda: {"bytes": 1}, gone=tuple(proc.pid for proc in holders))

    def _kill_in_weights(self, node: Node) -> ActiveFault:
        """The writer of the image is stopped when the image appears, so that it is still there at the
        kill."""
        writer = self._proc(node.name, "trainer" if node.name == RESERVED else "transfer")
        memory, until_s = self._cluster.memory(node.name), time.monotonic() + WRITTEN_S
        while not (left := _stopped_in_weights(writer, memory)):
            if time.monotonic() > until_s:
                raise NoEffect(f"no weights were on their way to {node.name} within {WRITTEN_S:.0f} s")
            time.sleep(WATCH_S)
        strike = self._kill_agent(node) if node.name == RESERVED else self._kill(writer)
        return replace(strike, mend=lambda: {**strike.mend(), "unfinished": left})

    # -- places --

    def _drawn(self) -> str:
        """Seed of the draws during this fault."""
        return f"{self._seed}/{self._struck}"

    def _node(self, name: str) -> Node:
        node = self._cluster.nodes.get(name)
        if node is None:
            raise NoEffect(f"there is no host {name}")
        return node

    def _host(self, name: str) -> Host:
        return self._node(name).host

    def _proc(self, host: str, kind: str) -> Proc:
        proc = self._cluster.find(self._node(host).name, kind)
        if proc is None:
            raise NoEffect(f"{host}/{kind} does not run now")
        return proc

    @contextmanager
    def _held(self, node: Node) -> Iterator[None]:
        """No process is started again meanwhile: the agent is stopped."""
        agent = node.process
        if agent is None:
            raise NoEffect(f"{node.name} has no node agent now")
        agent.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            agent.send_signal(signal.SIGCONT)


def _stopped_in_weights(writer: Proc, memory: Path) -> int:
    """Stop the writer of an image; return the number of unfinished images, 0 where it was let go on."""
    if not unfinished_images(memory):
        return 0
    writer.signal(signal.SIGSTOP)
    if not (left := unfinished_images(memory)):
        writer.signal(signal.SIGCONT)
    return left
