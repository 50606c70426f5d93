"""Breaks and mends: one method a kind of fault, on a cluster of real processes.

Owns how a fault is done here. When one is due and whether the cluster recovered is the nemesis'. What cannot
be broken because it is not there is `Missed`, and so is what turns out to have broken nothing.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from chaos.faults import (
    BadLink,
    CorruptChunk,
    DiskFull,
    Freeze,
    KillHost,
    KillInCommit,
    KillProcess,
    Notice,
    Partition,
    Reset,
    Zombie,
)
from chaos.netns import Host
from chaos.procs import AGENT, Proc
from chaos.real.cluster import RESERVED, Cluster, Node
from chaos.real.faults import AnyRealFault, DamagedImage, Unplug
from chaos.real.packets import Quality
from chaos.real.spoils import fill_disk, newest_image, spoil
from chaos.real.strike import Evidence, Missed, Strike
from chaos.real.torn import tear

COMMAND_S = 60.0
FLIP_S = 15.0  # until enough large packets came by; every step pulls new weights
FLIP_STEPS = 2
RESET_S = 8.0  # until there is a connection to reset
GONE_S = 5.0
POLL_S = 0.01


class Breaker:
    """See the module.

    Args:
        cluster: what is broken.
        steps: how many steps the jobs have done so far.
        seed: of what is drawn while a fault lasts (which packets, which byte).
    """

    def __init__(self, cluster: Cluster, steps: Callable[[], int], seed: int) -> None:
        self._cluster = cluster
        self._steps = steps
        self._seed = seed
        self._struck = 0

    def strike(self, fault: AnyRealFault) -> Strike:
        """Break it. Raises Missed, NoNamespaces, NoBadWire, OSError."""
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
            case Partition():
                return self._partition(fault)
            case Unplug():
                return self._unplug(fault)
            case BadLink():
                return self._bad_link(fault)
            case Reset():
                return self._reset(fault)
            case Notice():
                return self._notice(self._node(fault.host), fault.notice_s)
            case DiskFull():
                return fill_disk(self._cluster.seen_state(fault.host), fault)
            case CorruptChunk():
                return self._flip(fault)
            case DamagedImage():
                return self._damage_image(fault)

    # -- processes --

    def _kill(self, proc: Proc) -> Strike:
        gone = (proc.pid, *(child.pid for child in proc.descendants()))
        proc.kill()
        return Strike(0.0, lambda: {"killed": 1}, gone=gone)

    def _kill_agent(self, node: Node) -> Strike:
        """All of its processes die with it, and its neighbours are told so by the kernel; it is started again
        as an init system would."""
        gone = tuple(node.host.processes())
        if node.process is None:
            raise Missed(f"{node.name} has no node agent now")
        node.process.kill()
        return Strike(0.0, lambda: {"killed": len(gone)}, gone=gone)

    def _power_off(self, node: Node, back_s: float) -> Strike:
        wires, name = self._cluster.switch.wires, node.name
        gone = tuple(node.host.processes())
        if not gone:
            raise Missed(f"nothing runs on {name}")
        wires.unplug(node.host)  # first: nobody is told by a connection that closes
        self._cluster.kill_host(node)
        self._cluster.forget_memory(name)

        def mend() -> Evidence:
            wires.plug(node.host)
            self._cluster.start(node)
            return {"killed": len(gone)}

        return Strike(back_s, mend, gone=gone)

    def _kill_in_commit(self, fault: KillInCommit) -> Strike:
        node, victim = self._node(fault.host), self._proc(fault.host, fault.process)
        journals = self._cluster.seen_state(node.name) / "journal"
        if fault.process == AGENT:
            gone = tuple(node.host.processes())
            self._cluster.kill_host(node)
            torn = tear(journals) if fault.torn else 0
            self._cluster.start(node)
        else:
            gone = (victim.pid, *(child.pid for child in victim.descendants()))
            with self._held(node):
                _kill_now([victim])
                torn = tear(journals, fault.process) if fault.torn else 0
        if fault.torn and not torn:
            raise Missed(f"no journal of {fault.host}/{fault.process} had an end to tear")
        return Strike(0.0, lambda: {"killed": 1, "torn": torn}, gone=gone)

    def _freeze(self, proc: Proc, for_s: float) -> Strike:
        proc.signal(signal.SIGSTOP)

        def mend() -> Evidence:
            survived = proc.alive()
            with contextlib.suppress(psutil.NoSuchProcess):
                proc.signal(signal.SIGCONT)
            return {"frozen": 1, "came_back": int(survived)}

        return Strike(for_s, mend)

    def _notice(self, node: Node, notice_s: float) -> Strike:
        if node.process is None:
            raise Missed(f"{node.name} has no node agent now")
        process = node.process
        gone = tuple(node.host.processes())
        node.wanted = False
        argv = [sys.executable, "-m", "rlctl", "preempt", node.name, "--notice", str(notice_s)]
        told = self._cluster.driver.run([*argv, *self._cluster.access()], COMMAND_S)
        if told.returncode != 0:
            node.wanted = True
            raise Missed(f"{node.name} could not be told: {told.stderr.strip()}")

        def mend() -> Evidence:
            in_order = process.poll() == 0
            killed = self._cluster.kill_host(node)
            self._cluster.forget_memory(node.name)
            self._cluster.start(node)
            return {"left_in_order": int(in_order), "killed": killed}

        return Strike(notice_s, mend, over=lambda: process.poll() is not None, gone=gone)

    # -- wires --

    def _partition(self, fault: Partition) -> Strike:
        wires, one, other = self._cluster.switch.wires, self._host(fault.a), self._host(fault.b)
        wires.block(one, other)
        if fault.both:
            wires.block(other, one)

        def mend() -> Evidence:
            wires.unblock(one, other)
            wires.unblock(other, one)
            return {"ways": 1 + fault.both}

        return Strike(fault.for_s, mend)

    def _unplug(self, fault: Unplug) -> Strike:
        wires, host = self._cluster.switch.wires, self._host(fault.host)
        wires.unplug(host)

        def mend() -> Evidence:
            wires.plug(host)
            return {"cables": 1}

        return Strike(fault.for_s, mend)

    def _reset(self, fault: Reset) -> Strike:
        """Hosts that pull weights from each other are connected only while they do."""
        wires, one, other = self._cluster.switch.wires, self._host(fault.a), self._host(fault.b)
        broken = [wires.reset(one, other)]

        def again() -> bool:
            if not broken[-1]:
                broken.append(wires.reset(one, other))
            return broken[-1] > 0

        def mend() -> Evidence:
            if not broken[-1]:
                raise Missed(f"{fault.a} and {fault.b} had no connection")
            return {"connections": broken[-1]}

        return Strike(RESET_S, mend, over=again)

    def _bad_link(self, fault: BadLink) -> Strike:
        one, other = self._host(fault.a), self._host(fault.b)
        if fault.bytes_per_s:
            return self._slow_link(fault)
        quality = Quality(fault.loss, fault.duplicate, fault.delay_s, fault.jitter_s)
        wire = self._cluster.bad_wires.make(one, other, quality, f"{self._seed}/{self._struck}")

        def mend() -> Evidence:
            counts = wire.mend()
            if not counts.get("passed"):
                raise Missed(f"nothing went between {fault.a} and {fault.b}")
            return counts

        return Strike(fault.for_s, mend)

    def _slow_link(self, fault: BadLink) -> Strike:
        wires, host = self._cluster.switch.wires, self._host(fault.a)
        before = host.received_bytes()
        wires.slow(host, fault.bytes_per_s)

        def mend() -> Evidence:
            wires.quicken(host)
            return {"received_bytes": host.received_bytes() - before}

        return Strike(fault.for_s, mend)

    def _flip(self, fault: CorruptChunk) -> Strike:
        quality = Quality(flips=fault.count)
        seed = f"{self._seed}/{self._struck}"
        wire = self._cluster.bad_wires.make(self._host(RESERVED), self._host(fault.host), quality, seed)
        until = self._steps() + FLIP_STEPS

        def mend() -> Evidence:
            counts = wire.mend()
            if not counts.get("flipped"):
                raise Missed(f"no large packet went to {fault.host}")
            return counts

        return Strike(FLIP_S, mend, over=lambda: self._steps() >= until)

    # -- files --

    def _damage_image(self, fault: DamagedImage) -> Strike:
        node = self._node(fault.host)
        holders = [proc for kind in ("transfer", "engine") if (proc := self._cluster.find(node.name, kind))]
        image = newest_image(self._cluster.memory(node.name))
        if image is None or not holders:
            raise Missed(f"{fault.host} has no weights now")
        with self._held(node):
            _kill_now(holders)
            spoil(image)
        return Strike(0.0, lambda: {"bytes": 1}, gone=tuple(proc.pid for proc in holders))

    # -- places --

    def _node(self, name: str) -> Node:
        node = self._cluster.nodes.get(name)
        if node is None:
            raise Missed(f"there is no host {name}")
        return node

    def _host(self, name: str) -> Host:
        return self._node(name).host

    def _proc(self, host: str, kind: str) -> Proc:
        proc = self._cluster.find(self._node(host).name, kind)
        if proc is None:
            raise Missed(f"{host}/{kind} does not run now")
        return proc

    @contextmanager
    def _held(self, node: Node) -> Iterator[None]:
        """Nothing is started again meanwhile: the agent is stopped."""
        agent = node.process
        if agent is None:
            raise Missed(f"{node.name} has no node agent now")
        agent.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            agent.send_signal(signal.SIGCONT)


def _kill_now(procs: list[Proc]) -> None:
    """SIGKILL, and wait for the end; a zombie has let its files go."""
    for proc in procs:
        with contextlib.suppress(psutil.NoSuchProcess):
            proc.kill()
    until_s = time.monotonic() + GONE_S
    while any(proc.alive() for proc in procs) and time.monotonic() < until_s:
        time.sleep(POLL_S)
