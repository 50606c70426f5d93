"""NetMap: hosts of the simulated network by name and address, paths, ports.

Owns the allocation of addresses. `network` has the faults.
"""

from __future__ import annotations

import errno
import math
import random

from gleaner.sim.network_path import WITHIN_HOST, Host, Listener, Path, Profile, Station
from gleaner.transport.endpoint import endpoint as checked_endpoint
from gleaner.transport.sockets import CannotListen

FIRST_PORT = 30_000  # of those allocated when no port is requested


class NetMap:
    """See the module. `seed` of every path; `profile` of those between two hosts, until they are shaped."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.hosts: dict[str, Host] = {}
        self.paths: dict[tuple[str, str], Path] = {}
        self._of_host: dict[str, list[Path]] = {}  # to it and from it, the oldest first
        self._seed = seed
        self._profile = profile
        self._by_address: dict[str, Host] = {}
        self._targets: dict[str, tuple[str, int]] = {}  # endpoints as they were read

    def add_host(self, name: str, egress_bytes_s: float = math.inf, ingress_bytes_s: float = math.inf) -> str:
        """A new host, which is up: its address."""
        number = len(self.hosts) + 1
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        host = Host(name, address, FIRST_PORT, egress_bytes_s, ingress_bytes_s)
        self.hosts[name] = self._by_address[address] = host
        self._of_host[name] = []
        return address

    def path(self, source: str, target: str) -> Path:
        """The direction from one host to another."""
        path = self.paths.get((source, target))
        if path is None:
            profile = WITHIN_HOST if source == target else self._profile
            rng = random.Random(f"{self._seed}/{source}/{target}")
            path = Path(self.hosts[source], self.hosts[target], profile, rng)
            self.paths[source, target] = path
            for name in dict.fromkeys((source, target)):
                self._of_host[name].append(path)
        return path

    def of_host(self, host: Host) -> list[Path]:
        """Every path to it and from it that was used so far."""
        return list(self._of_host[host.name])

    def paths_to(self, station: Station, endpoint: str) -> tuple[Path, Path] | None:
        """There and back; None when no host has that address."""
        address, _ = self._target(endpoint)
        host = station.host if address.startswith("127.") else self._by_address.get(address)
        if host is None:
            return None
        return self.path(station.host.name, host.name), self.path(host.name, station.host.name)

    def listener(self, host: Host, endpoint: str) -> Listener | None:
        """The listener at that port of the host."""
        return host.listeners.get(self._target(endpoint)[1])

    def bind(self, station: Station, bind: str, listener: Listener) -> tuple[str, int]:
        """Give a port away: the endpoint under which it is reached, and the port. Raises `CannotListen`."""
        address, wanted = self._target(bind)
        if address != station.host.address and not address.startswith("127."):
            raise CannotListen(errno.EADDRNOTAVAIL, f"{bind}: host {station.host.name} has another address")
        port = station.host.take_port(wanted, listener)
        if port is None:
            raise CannotListen(errno.EADDRINUSE, f"{bind}: another simulated process listens there")
        return f"tcp://{address}:{port}", port

    def _target(self, endpoint: str) -> tuple[str, int]:
        target = self._targets.get(endpoint)
        if target is None:
            address, _, port = checked_endpoint(endpoint).removeprefix("tcp://").rpartition(":")
            target = self._targets[endpoint] = (address, int(port))
        return target
