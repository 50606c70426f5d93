"""Faults on real processes, with those that are only possible there.

Owns the list, and the faults that need a real machine. All others are `gleaner.chaos.faults`'; their `at_s`
is their time in the campaign. Hosts are named here, never `@preemptible`: the hosts of this cluster are known
before it begins.
"""

import msgspec

from gleaner.chaos.fault_base import Fault, Length, Where
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


class Unplug(Fault, frozen=True, kw_only=True, tag="unplug"):
    """The cable of a host is pulled, and put back after `for_s`: its link has no carrier meanwhile."""

    host: Where
    for_s: Length

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


class DamagedImage(Fault, frozen=True, kw_only=True, tag="damaged_image"):
    """One byte of the newest image of weights in a host's shared memory is changed, and the processes that
    hold it are killed: their successors must not serve the damaged image."""

    host: Where


class MemoryFull(Fault, frozen=True, kw_only=True, tag="memory_full"):
    """The shared memory of a host has no free space, for `for_s`: no image of weights fits into it."""

    host: Where
    for_s: Length

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


class KillInWeights(Fault, frozen=True, kw_only=True, tag="kill_in_weights"):
    """A host is hit while an image of weights is written in its memory. On the trainer's host, which
    publishes the image, the node agent and all its processes are killed; elsewhere the process that pulls
    it."""

    host: Where


AnyRealFault = (
    KillProcess | KillHost | KillInCommit | Freeze | Zombie | Hang | Partition | Unplug | BadLink | Reset
    | Notice | DiskFull | CorruptChunk | DamagedImage | MemoryFull | KillInWeights
)  # fmt: skip

KINDS: tuple[str, ...] = (
    "kill_process", "kill_host", "kill_in_commit", "freeze", "zombie", "hang", "partition", "unplug",
    "bad_link", "reset", "notice", "disk_full", "corrupt_chunk", "damaged_image", "memory_full",
    "kill_in_weights",
)  # fmt: skip
"""Their names, in the order in which reports show them."""


def broken_s(fault: AnyRealFault) -> float:
    """Its duration, as far as the fault itself determines it."""
    return fault.over_s - fault.at_s


def places(fault: AnyRealFault) -> tuple[str, ...]:
    """The hosts that it touches."""
    if isinstance(fault, Partition | BadLink | Reset):
        return (fault.a, fault.b)
    return (fault.host,)


def words(fault: AnyRealFault) -> str:
    """The fault as a short text."""
    match fault:
        case KillProcess():
            return f"kill {fault.host}/{fault.process}"
        case KillHost():
            if not fault.back_s:
                return f"kill the node agent of {fault.host}, and all with it"
            return f"power off {fault.host} for {fault.back_s:.1f} s"
        case KillInCommit():
            return f"kill {fault.host}/{fault.process} in a commit" + (", torn" if fault.torn else "")
        case Freeze():
            return f"freeze {fault.host}/{fault.process} for {fault.for_s:.1f} s"
        case Zombie():
            return f"freeze {fault.host}/{fault.process} for {fault.for_s:.1f} s: a zombie comes back"
        case Hang():
            return f"freeze {fault.host}/{fault.process} for good"
        case Partition():
            arrow = "<-/->" if fault.both else "-/->"
            return f"cut {fault.a} {arrow} {fault.b} for {fault.for_s:.1f} s"
        case Unplug():
            return f"pull the cable of {fault.host} for {fault.for_s:.1f} s"
        case BadLink():
            return f"bad link {fault.a} ~ {fault.b} for {fault.for_s:.1f} s: {_quality(fault)}"
        case Reset():
            return f"reset all connections {fault.a} ~ {fault.b}"
        case Notice():
            return f"preempt {fault.host} with {fault.notice_s:.0f} s of notice"
        case DiskFull():
            return f"fill the disk of {fault.host} for {fault.for_s:.1f} s"
        case CorruptChunk():
            return f"flip a bit in {fault.count} large packets to {fault.host}"
        case DamagedImage():
            return f"change a byte of the weights in the memory of {fault.host}"
        case MemoryFull():
            return f"fill the shared memory of {fault.host} for {fault.for_s:.1f} s"
        case KillInWeights():
            return f"kill {fault.host} in the middle of a version of the weights"


def _quality(fault: BadLink) -> str:
    parts = []
    if fault.delay_s or fault.jitter_s:
        parts.append(f"{1000 * fault.delay_s:.0f} ms ± {1000 * fault.jitter_s:.0f}")
    if fault.loss:
        parts.append(f"{100 * fault.loss:.0f} % lost")
    if fault.duplicate:
        parts.append(f"{100 * fault.duplicate:.0f} % twice")
    if fault.bytes_per_s:
        parts.append(f"{fault.bytes_per_s / 1e6:.2f} MB/s")
    return ", ".join(parts)


def kind_of(fault: AnyRealFault) -> str:
    """The name of its kind."""
    return str(type(fault).__struct_config__.tag)


def struck_at(fault: AnyRealFault, at_s: float) -> AnyRealFault:
    """The same with the time of its injection."""
    return msgspec.structs.replace(fault, at_s=at_s)
