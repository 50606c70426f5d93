"""What a process gives up, for good, before it runs a program: files, network, rights, and more than its
share.

Runs inside the sandbox, in the child that becomes the program. The order matters: each step needs rights that
a later one gives up.
"""

import os
import resource
from dataclasses import dataclass, field

from actors.reward.sandbox import landlock, seccomp, syscalls
from actors.reward.sandbox.port import Limits

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")
STACK_BYTES = 64 * 2**20
RESULT = 3
"""The descriptor that the result is written to; 0 to 2 are as usual, no other is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """How programs of one sandbox are confined.

    uid: they run as; 0: as the sandbox itself, which is then no root. searches: that user cannot reach the
    interpreter's files by their modes, so programs keep the right to read and search whatever Landlock
    leaves. landlock: version to use, 0 for none. others: processes and threads of the same user elsewhere,
    which the kernel counts as the program's. own_signals: nothing else keeps signals off other processes.
    """

    readable: list[str] = field(default_factory=list)
    uid: int = 0
    searches: bool = False
    landlock: int = 0
    others: int = 0
    own_signals: bool = False


def confine(how: Confinement, limits: Limits, tmp: str, mapped: int) -> None:
    """Confine this process. mapped: bytes that it has mapped already, which are not its program's. Raises
    OSError; then it must not go on."""
    os.setsid()
    os.umask(0o077)
    _limit(limits, how.others, mapped)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if how.landlock:
        landlock.restrict(how.readable, [tmp], DEVICES, how.landlock)
    _drop_rights(how.uid, 1 << syscalls.CAP_DAC_READ_SEARCH if how.searches else 0)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
    os.chdir(tmp)
    os.environ.clear()
    os.environ.update(PATH="/usr/local/bin:/usr/bin:/bin", HOME=tmp, TMPDIR=tmp, LANG="C.UTF-8")
    _filter(seccomp.filter_bytes(syscalls.MACHINE, os.getpid() if how.own_signals else 0))


def mapped_bytes() -> int:
    """What this process has mapped."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def _limit(limits: Limits, others: int, mapped: int) -> None:
    cpu_s = -(-limits.cpu_s // 1) + 1  # the zygote looks before; the kernel counts too much when it is busy
    for kind, most in (
        (resource.RLIMIT_CPU, int(cpu_s)),
        (resource.RLIMIT_AS, mapped + limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, limits.processes + others),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, STACK_BYTES),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        soft = min(least, 8 * 2**20) if kind == resource.RLIMIT_STACK else least
        resource.setrlimit(kind, (soft, least + (kind == resource.RLIMIT_CPU)))


def _drop_rights(uid: int, kept: int) -> None:
    if os.geteuid() == 0:
        for capability in range(syscalls.CAP_LAST + 1):
            if kept >> capability & 1 == 0:
                try:
                    syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
                except OSError:  # beyond the newest that this kernel has
                    break
    if uid:
        syscalls.prctl(syscalls.PR_SET_KEEPCAPS, 1 if kept else 0)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    syscalls.set_capabilities(kept)
    if kept:
        syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_RAISE, syscalls.CAP_DAC_READ_SEARCH)


def _filter(instructions: bytes) -> None:
    import ctypes

    class _FilterProgram(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    program = _FilterProgram(len(instructions) // 8, instructions)
    syscalls.prctl(syscalls.PR_SET_SECCOMP, syscalls.SECCOMP_MODE_FILTER, ctypes.addressof(program))
