"""Hosts as network namespaces on one machine: own addresses, routes and memory.

Each host has its own shared memory. One switch joins them. Owns the namespaces that it makes, and nothing
else of the machine: the switch is a bridge in a namespace of its own, and no namespace has a name. One holder
process keeps each namespace and ends with this process, so the kernel removes all of them, whatever kills us.
`gleaner.chaos.wire_faults` changes the wires (cuts, cables, rates, resets). Needs root and Linux's `ip`,
`unshare` and `nsenter`.
"""

import contextlib
import functools
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from gleaner.chaos.wire_faults import Wires

TOOLS = ("ip", "unshare", "nsenter", "mount")
SUBNET = "10.77.0"  # exists on the private switch alone, so it collides with nothing
MAX_HOSTS = 250
COMMAND_S = 30.0  # of one `ip`; they take milliseconds on a quiet machine
SHARED_MEMORY = Path("/dev/shm")
_UP = "up"
# A reverse path filter would drop packets from a host without a route back: half of a one-way cut.
_HOLDER = """\
for dir; do mount -t tmpfs tmpfs "$dir" || exit 1; done
for filter in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 2>/dev/null >"$filter"; done
ip link set lo up && echo up && exec cat"""


class NoNamespaces(Exception):
    """This machine gives us no namespaces, or a command in one failed; the text names it and the cause."""


@functools.cache
def why_not() -> str:
    """Why there can be no hosts here; "" where there can be. This is tried: a container may allow namespaces,
    and neither mount a disk nor join two hosts in them."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not found here: {', '.join(missing)} (packages iproute2 and util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with tempfile.TemporaryDirectory() as disk, Switch({Path(disk): 1 << 20}) as switch:
            switch.host("try")
            return ""
    except NoNamespaces as problem:
        return str(problem)


class _Namespace:
    """A network namespace with a mount namespace, kept by a process that waits for the end of its input.
    `within`: another namespace, whose mounts it begins with."""

    def __init__(self, private: Sequence[Path] = (), within: "_Namespace | None" = None) -> None:
        argv = ["unshare", "--net", "--mount", "sh", "-c", _HOLDER, "holder", *map(str, private)]
        self._holder = subprocess.Popen(
            argv if within is None else within.inside(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which stops the holder in order
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline().strip() != _UP:
            _, errors = self._holder.communicate()
            raise NoNamespaces(f"no namespace of our own: {errors.strip() or 'unshare failed'}")

    @property
    def pid(self) -> int:
        """Process id of the holder."""
        return self._holder.pid

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` in here."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", f"--wd={Path.cwd()}", *argv]

    def command(self, *argv: str) -> str:
        """Run a command in here; return its output. Raises NoNamespaces."""
        done = subprocess.run(
            self.inside(argv), capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        if done.returncode != 0:
            raise NoNamespaces(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def path(self, path: Path) -> Path:
        """Path by which `path` of this namespace is seen from outside, for plain reading and writing. SQLite
        and other programs that resolve links themselves would end at the outer file."""
        return Path(f"/proc/{self.pid}/root") / path.absolute().relative_to("/")

    def close(self) -> None:
        """Release it. The namespace lives on while other processes are in it, then the kernel removes it."""
        self._holder.kill()
        self._holder.communicate()

    def __enter__(self) -> "_Namespace":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Host:
    """A namespace with an address on the switch. Processes in it see its `private` folders empty, as on a
    machine of its own."""

    def __init__(self, name: str, address: str, port: str, space: _Namespace) -> None:
        self.name = name
        self.address = address
        self.port = port
        """Interface of the switch to which its cable leads."""
        self._space = space

    @property
    def keeper(self) -> int:
        """The pid of the process that keeps it; the one process here that is not of the host."""
        return self._space.pid

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` here."""
        return self._space.inside(argv)

    def path(self, path: Path) -> Path:
        """Path by which a file of this host is seen from outside; see `_Namespace.path`."""
        return self._space.path(path)

    def popen(
        self, argv: Sequence[str], *, output: IO[bytes], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process here; its pid is that of `argv` itself."""
        return subprocess.Popen(
            self._space.inside(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env
        )

    def run(
        self, argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command here to its end. Raises subprocess.TimeoutExpired."""
        return subprocess.run(
            self._space.inside(argv), capture_output=True, text=True, timeout=timeout_s, check=False, env=env
        )

    def received_bytes(self) -> int:
        """Bytes received over the wire so far."""
        links = json.loads(self.ip("-json", "-statistics", "link", "show", "dev", "eth0"))
        return int(links[0]["stats64"]["rx"]["bytes"])

    def ip(self, *args: str) -> str:
        """Run `ip` here. Raises NoNamespaces."""
        return self._space.command("ip", *args)

    def command(self, *argv: str) -> str:
        """Run a command here; return its output. Raises NoNamespaces where it fails."""
        return self._space.command(*argv)

    def processes(self) -> list[int]:
        """The pids of this host, its keeper's excepted."""
        ours = _network_of(self.keeper)
        found = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        return sorted(pid for pid in found if pid != self.keeper and ours and _network_of(pid) == ours)


def _network_of(pid: int) -> str:
    """Name of the network namespace of a process; "" where it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


class Switch:
    """Joins hosts. A context manager: at its end every namespace goes.

    The component that starts processes in a host ends them; remaining ones keep their namespace, unconnected.

    Args:
        disks: file systems of their own, in memory: folder and size, bytes. All later hosts see them, and no
            process outside does.
    """

    def __init__(self, disks: Mapping[Path, int] | None = None) -> None:
        self._numbers = itertools.count(1)
        self._hosts: list[Host] = []
        self._closing = contextlib.ExitStack()
        self._space = self._closing.enter_context(_Namespace())
        self.wires = Wires(self._space.command)
        """Faults on the connections of its hosts."""
        try:
            for folder, size_bytes in (disks or {}).items():
                self._space.command("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder))
            self._space.command("ip", "link", "add", "switch", "type", "bridge")
            self._space.command("ip", "link", "set", "switch", "up")
        except NoNamespaces:
            self.close()
            raise

    @property
    def hosts(self) -> Sequence[Host]:
        """All of them, in order of creation."""
        return self._hosts

    def host(self, name: str, private: Sequence[Path] = (SHARED_MEMORY,)) -> Host:
        """Bring a host up. `private`: folders that it shares with no other. Raises NoNamespaces."""
        number = next(self._numbers)
        if number > MAX_HOSTS:
            raise NoNamespaces(f"{MAX_HOSTS} hosts are on this switch already")
        space = self._closing.enter_context(_Namespace(private, self._space))
        host = Host(name, f"{SUBNET}.{number}", f"port{number}", space)
        peer = ("peer", "name", "eth0", "netns", str(space.pid))
        self._space.command("ip", "link", "add", host.port, "type", "veth", *peer)
        self._space.command("ip", "link", "set", host.port, "master", "switch", "up")
        host.ip("address", "add", f"{host.address}/24", "dev", "eth0")
        host.ip("link", "set", "eth0", "up")
        self._hosts.append(host)
        return host

    def processes(self) -> dict[str, list[int]]:
        """The pids on every host, by its name, in one poll."""
        hosts = {_network_of(host.keeper): host for host in self._hosts}
        hosts.pop("", None)
        found: dict[str, list[int]] = {host.name: [] for host in self._hosts}
        for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
            host = hosts.get(_network_of(pid))
            if host is not None and pid != host.keeper:
                found[host.name].append(pid)
        return found

    def path(self, path: Path) -> Path:
        """Path by which a file on one of the `disks` is seen from outside; see `_Namespace.path`."""
        return self._space.path(path)

    def cut(self, one: Host, other: Host) -> None:
        """Part two hosts: packets from either to the other are dropped silently."""
        self.wires.block(one, other)
        self.wires.block(other, one)

    def heal(self) -> None:
        """Undo every cut."""
        self.wires.unblock_all()

    def close(self) -> None:
        """Remove everything."""
        self._closing.close()

    def __enter__(self) -> "Switch":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _problem: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()
