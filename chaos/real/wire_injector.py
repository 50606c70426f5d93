"""WireInjector: cuts, cables, resets, bad links and links that corrupt data.

Owns the injection and mending, one method for each kind. The caller has resolved the hosts. A fault that
turns out to have had no effect raises `NoEffect` when it is mended.
"""

from collections.abc import Callable

from gleaner.chaos.faults import BadLink, CorruptChunk, Partition, Reset
from gleaner.chaos.netns import Host
from gleaner.chaos.real.active_fault import ActiveFault, Evidence, NoEffect
from gleaner.chaos.real.cluster import Cluster
from gleaner.chaos.real.faults import Unplug
from gleaner.chaos.real.packets import Quality

FLIP_S = 15.0  # until enough large packets passed; every step pulls new weights
FLIP_STEPS = 2
RESET_S = 8.0  # until there is a connection to reset


class WireInjector:
    """See the module.

    Args:
        cluster: owner of the wires.
        steps: how many steps the jobs have done so far.
    """

    def __init__(self, cluster: Cluster, steps: Callable[[], int]) -> None:
        self._bad_wires = cluster.bad_wires
        self._wires = cluster.switch.wires
        self._steps = steps

    def partition(self, one: Host, other: Host, fault: Partition) -> ActiveFault:
        """Packets from one to the other are dropped; also the other way, where both are cut."""
        wires = self._wires
        wires.block(one, other)
        if fault.both:
            wires.block(other, one)

        def mend() -> Evidence:
            wires.unblock(one, other)
            wires.unblock(other, one)
            return {"ways": 1 + fault.both}

        return ActiveFault(fault.for_s, mend)

    def unplug(self, host: Host, fault: Unplug) -> ActiveFault:
        """Its link has no carrier."""
        self._wires.unplug(host)

        def mend() -> Evidence:
            self._wires.plug(host)
            return {"cables": 1}

        return ActiveFault(fault.for_s, mend)

    def reset(self, one: Host, other: Host, fault: Reset) -> ActiveFault:
        """Hosts that pull weights from each other are connected only meanwhile, so it is tried again."""
        broken = [self._wires.reset(one, other)]

        def again() -> bool:
            if not broken[-1]:
                broken.append(self._wires.reset(one, other))
            return broken[-1] > 0

        def mend() -> Evidence:
            if not broken[-1]:
                raise NoEffect(f"{fault.a} and {fault.b} had no connection")
            return {"connections": broken[-1]}

        return ActiveFault(RESET_S, mend, over=again)

    def bad_link(self, one: Host, other: Host, fault: BadLink, seed: str) -> ActiveFault:
        """Late, lost and doubled packets between the two; or a rate, on the whole link of the first."""
        if fault.bytes_per_s:
            return self._slow_link(one, fault)
        quality = Quality(fault.loss, fault.duplicate, fault.delay_s, fault.jitter_s)
        wire = self._bad_wires.make(one, other, quality, seed)

        def mend() -> Evidence:
            counts = wire.mend()
            if not counts.get("passed"):
                raise NoEffect(f"nothing went between {fault.a} and {fault.b}")
            return counts

        return ActiveFault(fault.for_s, mend)

    def _slow_link(self, host: Host, fault: BadLink) -> ActiveFault:
        wires = self._wires
        before = host.received_bytes()
        wires.slow(host, fault.bytes_per_s)

        def mend() -> Evidence:
            wires.quicken(host)
            return {"received_bytes": host.received_bytes() - before}

        return ActiveFault(fault.for_s, mend)

    def flip(self, source: Host, host: Host, fault: CorruptChunk, seed: str) -> ActiveFault:
        """Bits of large packets to a host are flipped, until enough were or some steps have passed."""
        wire = self._bad_wires.make(source, host, Quality(flips=fault.count), seed)
        until = self._steps() + FLIP_STEPS

        def mend() -> Evidence:
            counts = wire.mend()
            if not counts.get("flipped"):
                raise NoEffect(f"no large packet went to {fault.host}")
            return counts

        return ActiveFault(FLIP_S, mend, over=lambda: self._steps() >= until)
