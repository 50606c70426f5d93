"""`Confinement`: rights that a process drops for good before it runs a program.

It loses files, network, capabilities, and resources beyond its limits.

Runs inside the sandbox, in the child that becomes the program. The order matters: each step needs rights that
a later one gives up.
"""

import os
import resource
from dataclasses import dataclass, field

from gleaner.actors.reward.sandbox import landlock, seccomp, syscalls
from gleaner.actors.reward.sandbox.port import Limits

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")
OVERCOUNT = 1.25
"""The kernel's own limit is so many times higher, as it counts up to a sixth too much on a busy machine."""
STACK_BYTES = 64 * 2**20
RESULT = 3
"""The descriptor that the result is written to; 0 to 2 are as usual, no other is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The confinement of programs in one sandbox.

    uid: the user that they run as; 0: the sandbox's own, which is then no root. searches: that user cannot
    reach the interpreter's files by their modes, so programs keep the right to read and search all that
    Landlock leaves. landlock: version to use, 0 for none. others: processes and threads of the same user
    elsewhere, which the kernel counts as the program's. own_signals: seccomp must restrict signals to own
    processes, as nothing else does. devices: of GPUs, which programs may use.
    """

    readable: list[str] = field(default_factory=list)
    uid: int = 0
    searches: bool = False
    landlock: int = 0
    others: int = 0
    own_signals: bool = False
    devices: list[str] = field(default_factory=list)


class Confiner:
    """Confines the programs of one sandbox. Made once, by the zygote: common work is done here, because each
    page that a new process writes is copied first.

    tmp: the path of every program's folder. stays: it is the same folder for all of them.
    """

    def __init__(self, how: Confinement, tmp: str, *, stays: bool) -> None:
        self._how, self._tmp = how, tmp
        self._kept = 1 << syscalls.CAP_DAC_READ_SEARCH if how.searches else 0
        self._hard = {kind: resource.getrlimit(kind)[1] for kind in _limits(Limits(), 0, 0)}
        self._rules = landlock.rules(how.readable, landlock.READ)
        self._rules += landlock.rules(DEVICES, landlock.READ_FILE | landlock.WRITE_FILE)
        self._rules += landlock.rules(how.devices, landlock.USE_DEVICE)
        self._made = self._ruleset() if how.landlock and stays else -1
        self._filter = syscalls.Filter(self._calls())
        self._capabilities = syscalls.Capabilities(self._kept)
        _drop_bounds(self._kept)

    def ruleset(self) -> int:
        """The descriptor of the rules for a program; -1 where Landlock is not used."""
        return self._made if self._made >= 0 or not self._how.landlock else self._ruleset()

    def limits(self, limits: Limits) -> list[tuple[int, tuple[int, int]]]:
        """The limits of a program in the kernel's form, for a fork of this process, whose own mapped memory
        is not the program's."""
        wanted = _limits(limits, self._how.others, _mapped_bytes())
        return [(kind, _pair(kind, most, self._hard[kind])) for kind, most in wanted.items()]

    def confine(self, limits: list[tuple[int, tuple[int, int]]], ruleset: int) -> None:
        """Confine this process, for good. ruleset: is closed. Raises OSError; then the process must not go
        on."""
        how = self._how
        os.setsid()
        os.umask(0o077)
        for kind, pair in limits:
            resource.setrlimit(kind, pair)
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        if ruleset >= 0:
            landlock.restrict(ruleset)
            os.close(ruleset)
        self._drop_rights()
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
        os.chdir(self._tmp)
        own = how.own_signals
        syscalls.install(syscalls.Filter(self._calls(os.getpid())) if own else self._filter)

    def _calls(self, own_pid: int = 0) -> bytes:
        return seccomp.filter_bytes(syscalls.MACHINE, own_pid, devices=bool(self._how.devices))

    def _drop_rights(self) -> None:
        uid, kept = self._how.uid, self._kept
        if uid:
            syscalls.prctl(syscalls.PR_SET_KEEPCAPS, 1 if kept else 0)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        self._capabilities.set()
        if kept:
            ambient = syscalls.PR_CAP_AMBIENT_RAISE
            syscalls.prctl(syscalls.PR_CAP_AMBIENT, ambient, syscalls.CAP_DAC_READ_SEARCH)

    def _ruleset(self) -> int:
        own = landlock.rules([self._tmp], landlock.WRITE)
        if self._how.devices:
            own += landlock.rules(["/proc"], landlock.READ | landlock.WRITE_FILE | landlock.TRUNCATE)
        try:
            return landlock.ruleset([*self._rules, *own], self._how.landlock)
        finally:
            for rule in own:
                os.close(rule.descriptor)


def set_environment(tmp: str) -> None:
    """Set the environment of programs, with which their forks begin. tmp: their folder."""
    os.environ.clear()
    os.environ.update(PATH="/usr/local/bin:/usr/bin:/bin", HOME=tmp, TMPDIR=tmp, LANG="C.UTF-8")


def _mapped_bytes() -> int:
    """Bytes that this process has mapped."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def _limits(limits: Limits, others: int, mapped: int) -> dict[int, int]:
    cpu_s = -(-OVERCOUNT * limits.cpu_s // 1) + 1  # the zygote looks before
    return {
        resource.RLIMIT_CPU: int(cpu_s),
        resource.RLIMIT_AS: mapped + (limits.address_bytes or limits.memory_bytes),
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: limits.processes + others,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_STACK: STACK_BYTES,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }


def _pair(kind: int, most: int, hard: int) -> tuple[int, int]:
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    soft = min(least, 8 * 2**20) if kind == resource.RLIMIT_STACK else least
    return soft, least + (kind == resource.RLIMIT_CPU)


def _drop_bounds(kept: int) -> None:
    """Keep executed programs from ever having a capability outside the mask `kept`."""
    if os.geteuid():
        return
    for capability in range(syscalls.CAP_LAST + 1):
        if kept >> capability & 1 == 0:
            try:
                syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
            except OSError:  # beyond the newest that this kernel has
                break
