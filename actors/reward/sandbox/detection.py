"""`detect`: isolation that works on a host, and why a better one does not.

It is found by trial, not from the host's version or settings: a sandbox is started and a program is run in
it. If none works, code is not run at all.
"""

import functools
import os
import platform
import shutil
import socket
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gleaner.actors.reward.sandbox import landlock
from gleaner.actors.reward.sandbox.confinement import Confinement
from gleaner.actors.reward.sandbox.port import Isolation, Limits, Status, Work
from gleaner.actors.reward.sandbox.syscall_numbers import NUMBERS

AUTO = "auto"
UIDS = range(64_000, 65_000)
"""User ids of programs if root starts the sandbox: no other process uses them."""
SLACK = 256
"""Processes that the user may start elsewhere meanwhile, where programs run as the same user."""
HIDDEN = 8
"""Processes of a sandbox that are not the program's."""
TRIAL = "gleaner.actors.reward.sandbox.detection:trial"


class NoSandbox(RuntimeError):
    """No requested isolation works here; the text gives the reason, and what to install."""


@dataclass(frozen=True, slots=True)
class Host:
    """The isolation of programs on this host. landlock: its version, 0 for none; better: why a better
    isolation does not work."""

    isolation: Isolation
    landlock: int
    bwrap: str = ""
    better: str = ""
    held: list[socket.socket] = field(default_factory=list, compare=False, repr=False)

    def confinement(self, readable: Sequence[str]) -> Confinement:
        """For one sandbox; if root starts it, with a user of its own as long as this process lives."""
        uid = self._own_user() if os.geteuid() == 0 else 0
        shared = self.isolation is Isolation.LANDLOCK and not uid
        return Confinement(
            readable=list(readable),
            uid=uid,
            searches=self.isolation is Isolation.LANDLOCK
            and bool(uid)
            and not all(map(_reachable, [sys.base_prefix, *readable])),
            landlock=self.landlock,
            others=_processes_of(os.getuid()) + SLACK if shared else HIDDEN,
            own_signals=shared and self.landlock < landlock.SCOPE_SINCE,
        )

    def _own_user(self) -> int:
        """A user of `UIDS` that no other sandbox of this machine uses: its name is held in the kernel."""
        for uid in UIDS:
            held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                held.bind(f"\0gleaner-sandbox-{uid}")
            except OSError:
                held.close()
            else:
                self.held.append(held)
                return uid
        raise NoSandbox(f"{len(UIDS)} sandboxes run on this machine, which is the limit")

    def release(self) -> None:
        """Give the users back."""
        while self.held:
            self.held.pop().close()


def detect(wanted: str = AUTO) -> Host:
    """The best isolation that works here, or the wanted one. Raises NoSandbox."""
    order = list(Isolation) if wanted == AUTO else [Isolation(wanted)]
    reasons: list[str] = []
    for isolation in order:
        host, reason = _tried(isolation)
        if host is not None:
            return Host(host.isolation, host.landlock, host.bwrap, "; ".join(reasons))
        reasons.append(f"{isolation.value}: {reason}")
    raise NoSandbox(
        "no sandbox works on this host, so nothing that a model wrote can be run or checked: "
        + "; ".join(reasons)
    )


@functools.cache
def _tried(isolation: Isolation) -> tuple[Host | None, str]:
    if platform.system() != "Linux" or platform.machine() not in NUMBERS:
        return (
            None,
            f"needs Linux on {' or '.join(NUMBERS)}, this is {platform.system()} on {platform.machine()}",
        )
    version = landlock.version()
    bwrap = ""
    if isolation is Isolation.LANDLOCK and not version:
        return (
            None,
            "the kernel has no Landlock, or does not start it (lsm=landlock,...; Linux 5.13 or newer)",
        )
    if isolation is Isolation.NAMESPACES:
        bwrap = shutil.which("bwrap") or ""
        if not bwrap:
            return None, "bubblewrap is not installed (apt install bubblewrap)"
    host = Host(isolation, version, bwrap)
    return (None, problem) if (problem := _problem(host)) else (host, "")


def _problem(host: Host) -> str:
    """Why a program does not run in a sandbox of this host; "" if it does."""
    from gleaner.actors.reward.sandbox.host_end import HostSandbox  # it knows hosts

    sandbox = HostSandbox(host, [TRIAL.partition(":")[0]])
    try:
        outcome = sandbox.run(Work(function=TRIAL, payload=b"sound", limits=Limits()))
    finally:
        sandbox.close()
        host.release()
    if outcome.status is Status.OK and outcome.result == b"sound":
        return ""
    return outcome.detail or f"a program ended with {outcome.status.value}"


def trial(payload: bytes) -> bytes:
    """The test program: it must not reach anything that is forbidden to programs."""
    for path in ("/proc/1/environ", "/etc/passwd"):
        try:
            Path(path).read_bytes()
        except OSError:
            continue
        raise RuntimeError(f"{path} can be read inside")
    try:
        socket.socket(socket.AF_INET)
    except OSError:
        return payload
    raise RuntimeError("a socket can be made inside")


def _reachable(path: str) -> bool:
    """Whether every user may read `path` and search the folders that lead to it."""
    mode = Path(path).stat().st_mode
    needed = stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    return bool(mode & needed) and all(one.stat().st_mode & stat.S_IXOTH for one in Path(path).parents)


def _processes_of(uid: int) -> int:
    """Processes and threads of a user on this machine, as far as they can be seen."""
    count = 0
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                count += len(os.listdir(f"/proc/{entry.name}/task"))
        except OSError:
            continue
    return count
