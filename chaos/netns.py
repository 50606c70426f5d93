"""Hosts as network namespaces on one machine: own addresses, own routes, own shared memory, one switch.

Owns the namespaces that it makes, and nothing else of the machine: the switch is a bridge in a namespace of
its own, and no namespace has a name. Each lives by one holder process that ends with this one, so the kernel
takes all of it away, whatever kills us. Needs root and Linux's `ip`, `unshare` and `nsenter`.
"""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

TOOLS = ("ip", "unshare", "nsenter", "mount")
SUBNET = "10.77.0"  # exists on the private switch alone, so it collides with nothing
MAX_HOSTS = 250
COMMAND_S = 30.0  # of one `ip`; they take milliseconds on a quiet machine
SHARED_MEMORY = Path("/dev/shm")
_UP = "up"
_HOLDER = 'for dir; do mount -t tmpfs tmpfs "$dir" || exit 1; done; ip link set lo up && echo up && exec cat'


class NoNamespaces(Exception):
    """This machine gives us no namespaces, or a command in one failed; says which and why."""


def why_not() -> str:
    """Why there can be no namespaces here; "" where there can be."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not found here: {', '.join(missing)} (packages iproute2 and util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with _Namespace():
            return ""
    except NoNamespaces as problem:
        return str(problem)


class _Namespace:
    """A network namespace with a mount namespace, kept by a process that waits for the end of its input."""

    def __init__(self, private: Sequence[Path] = ()) -> None:
        argv = ["unshare", "--net", "--mount", "sh", "-c", _HOLDER, "holder", *map(str, private)]
        self._holder = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline().strip() != _UP:
            _, said = self._holder.communicate()
            raise NoNamespaces(f"no namespace of our own: {said.strip() or 'unshare failed'}")

    @property
    def pid(self) -> int:
        """Of the holder."""
        return self._holder.pid

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` in here."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", f"--wd={Path.cwd()}", *argv]

    def ip(self, *args: str) -> str:
        """Run `ip` in here. Raises NoNamespaces."""
        done = subprocess.run(
            self.inside(["ip", *args]), capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        if done.returncode != 0:
            raise NoNamespaces(f"ip {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def close(self) -> None:
        """Let go. The namespace lives on while other processes are in it, then the kernel removes it."""
        self._holder.kill()
        self._holder.communicate()

    def __enter__(self) -> "_Namespace":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Host:
    """A namespace with an address on the switch. Processes in it see its `private` folders empty, as a
    machine of its own would."""

    def __init__(self, name: str, address: str, space: _Namespace) -> None:
        self.name = name
        self.address = address
        self._space = space

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` here."""
        return self._space.inside(argv)

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
        """What came over the wire so far."""
        links = json.loads(self.ip("-json", "-statistics", "link", "show", "dev", "eth0"))
        return int(links[0]["stats64"]["rx"]["bytes"])

    def ip(self, *args: str) -> str:
        """Run `ip` here. Raises NoNamespaces."""
        return self._space.ip(*args)


class Switch:
    """Joins hosts. A context manager: at its end every namespace goes.

    Whoever starts processes in a host ends them; those that are left keep their namespace, unconnected.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._hosts: list[Host] = []
        self._cuts: set[frozenset[str]] = set()
        self._closing = contextlib.ExitStack()
        self._space = self._closing.enter_context(_Namespace())
        try:
            self._space.ip("link", "add", "switch", "type", "bridge")
            self._space.ip("link", "set", "switch", "up")
        except NoNamespaces:
            self.close()
            raise

    def host(self, name: str, private: Sequence[Path] = (SHARED_MEMORY,)) -> Host:
        """Bring a host up. `private`: folders that it shares with no other. Raises NoNamespaces."""
        number = next(self._numbers)
        if number > MAX_HOSTS:
            raise NoNamespaces(f"{MAX_HOSTS} hosts are on this switch already")
        space = self._closing.enter_context(_Namespace(private))
        host = Host(name, f"{SUBNET}.{number}", space)
        port = f"port{number}"
        self._space.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(space.pid))
        self._space.ip("link", "set", port, "master", "switch", "up")
        space.ip("address", "add", f"{host.address}/24", "dev", "eth0")
        space.ip("link", "set", "eth0", "up")
        self._hosts.append(host)
        return host

    def cut(self, one: Host, other: Host) -> None:
        """Part two hosts: whatever one sends to the other is dropped without a word."""
        pair = frozenset((one.address, other.address))
        if pair not in self._cuts:
            self._cuts.add(pair)
            for here, there in ((one, other), (other, one)):
                here.ip("route", "add", "blackhole", f"{there.address}/32")

    def heal(self) -> None:
        """Undo every cut."""
        for here in self._hosts:
            for there in self._hosts:
                if here is not there and frozenset((here.address, there.address)) in self._cuts:
                    here.ip("route", "del", "blackhole", f"{there.address}/32")
        self._cuts.clear()

    def close(self) -> None:
        """Take it all down."""
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
