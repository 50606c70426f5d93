"""Faults on the wires between hosts of a switch: cuts, cables, rates, resets.

Owns the faults in force, so that everything can be undone, and undone twice. The kernel does all of it
(routes, carrier, `tbf`, socket destruction); faults that the kernel cannot make here (delay, loss,
duplicates, flipped bits) is `gleaner.chaos.real.bad_wires`'.
"""

from collections.abc import Callable
from typing import Protocol

MIN_RATE_BYTES_PER_S = 1_000
BURST_BYTES = 32_768  # one packet as the kernel hands it on, with segmentation left to the wire, and some
LATENCY = "200ms"  # longest wait in the queue; later packets are dropped, and TCP slows down


class Station(Protocol):
    """Network view of a host."""

    @property
    def address(self) -> str:
        """Address on the switch."""

    @property
    def port(self) -> str:
        """Port of the switch to which its cable leads."""

    def ip(self, *args: str) -> str:
        """Run `ip` there."""

    def command(self, *argv: str) -> str:
        """Run a command there."""


class Wires:
    """See the module. `switch`: runs a command in the switch's namespace. Methods raise its errors."""

    def __init__(self, switch: Callable[..., str]) -> None:
        self._switch = switch
        self._blocked: dict[tuple[str, str], Station] = {}
        self._unplugged: dict[str, Station] = {}
        self._slowed: dict[str, Station] = {}

    def block(self, one: Station, other: Station) -> None:
        """Packets from `one` to `other` are dropped silently; the other way stays open."""
        way = (one.address, other.address)
        if way not in self._blocked:
            one.ip("route", "add", "blackhole", f"{other.address}/32")
            self._blocked[way] = one

    def unblock(self, one: Station, other: Station) -> None:
        """Undo `block`, if it is in force."""
        way = (one.address, other.address)
        if way in self._blocked:
            one.ip("route", "del", "blackhole", f"{other.address}/32")
            del self._blocked[way]

    def unblock_all(self) -> None:
        """Undo every `block`."""
        for (_, there), here in list(self._blocked.items()):
            here.ip("route", "del", "blackhole", f"{there}/32")
        self._blocked.clear()

    def unplug(self, host: Station) -> None:
        """Pull the cable: the host loses its carrier, and keeps its address and its connections."""
        self._switch("ip", "link", "set", host.port, "down")
        self._unplugged[host.port] = host

    def plug(self, host: Station) -> None:
        """Undo `unplug`, if it is in force."""
        if self._unplugged.pop(host.port, None) is not None:
            self._switch("ip", "link", "set", host.port, "up")

    def slow(self, host: Station, bytes_per_s: float) -> None:
        """Limit the rate of a host's link, each way. Raises ValueError for a rate at which no connection
        works."""
        if bytes_per_s < MIN_RATE_BYTES_PER_S:
            raise ValueError(
                f"a link of {bytes_per_s:g} bytes/s: at least {MIN_RATE_BYTES_PER_S} are needed for a packet"
            )
        self.quicken(host)
        bucket = ("tbf", "rate", f"{int(bytes_per_s * 8)}bit", "burst", str(BURST_BYTES), "latency", LATENCY)
        self._slowed[host.port] = host
        host.command("tc", "qdisc", "replace", "dev", "eth0", "root", *bucket)
        self._switch("tc", "qdisc", "replace", "dev", host.port, "root", *bucket)

    def quicken(self, host: Station) -> None:
        """Undo `slow`, if it is in force."""
        if self._slowed.pop(host.port, None) is not None:
            host.command("tc", "qdisc", "del", "dev", "eth0", "root")
            self._switch("tc", "qdisc", "del", "dev", host.port, "root")

    def reset(self, one: Station, other: Station) -> int:
        """Break every connection that `one` has with `other`, with a RST; return their number."""
        shown = one.command("ss", "-HKtn", "state", "established", "dst", other.address)
        return len(shown.splitlines())

    def undo(self) -> None:
        """Undo everything that is in force."""
        self.unblock_all()
        for host in list(self._unplugged.values()):
            self.plug(host)
        for host in list(self._slowed.values()):
            self.quicken(host)
