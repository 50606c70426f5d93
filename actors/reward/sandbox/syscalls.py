"""System calls missing from Python's library, by ctypes. Linux.

Owns the numbers and the C calls. Each function raises OSError with the name of the call.
"""

import ctypes
import os
import platform

from gleaner.actors.reward.sandbox.syscall_numbers import NUMBERS

MACHINE = platform.machine()
_NUMBERS = NUMBERS.get(MACHINE, NUMBERS["x86_64"])  # other machines are refused by `detection`

_libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the GIL: `clone` must not return without it
_libc.syscall.restype = ctypes.c_long

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x00020000, 0x08000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 1 << 18

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP = 1, 4, 8, 22
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 24, 36, 38, 47
SECCOMP_MODE_FILTER = 2
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_READ_SEARCH, CAP_LAST = 2, 63


def call(name: str, number: int, *arguments: object) -> int:
    """A raw system call; its result."""
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise failure(name)
    return result


def prctl(option: int, value: int = 0, more: int = 0) -> None:
    """prctl(2)."""
    unsigned = ctypes.c_ulong
    if _libc.prctl(ctypes.c_int(option), unsigned(value), unsigned(more), unsigned(0), unsigned(0)) < 0:
        raise failure(f"prctl {option}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    texts = [text.encode() for text in (source, target, kind, data)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) < 0:
        raise failure(f"mount {target}")


def clone(flags: int) -> int:
    """A fork into new namespaces (`flags`: CLONE_NEW*), without Python's hooks around a fork: 0 in the child,
    its process id in the parent. For a process of one thread."""
    import signal

    word = ctypes.c_ulong
    return call("clone", _NUMBERS["clone"], word(flags | signal.SIGCHLD), word(0), word(0), word(0), word(0))


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


class Capabilities:
    """The capabilities of the mask `kept` and no other; they pass on to nothing that is executed."""

    def __init__(self, kept: int) -> None:
        self._header, self._data = _CapHeader(0x20080522, 0), (_CapData * 2)()
        for word in range(2):
            bits = kept >> 32 * word & 0xFFFFFFFF
            self._data[word] = _CapData(bits, bits, bits)

    def set(self) -> None:
        """Hold them."""
        call("capset", _NUMBERS["capset"], ctypes.byref(self._header), ctypes.byref(self._data))


class Filter(ctypes.Structure):
    """A filter of system calls: struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    def __init__(self, instructions: bytes) -> None:
        super().__init__(len(instructions) // 8, instructions)


def install(program: Filter) -> None:
    """Hold this process and its children to a filter. Needs no_new_privs."""
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))


def fork() -> int:
    """A fork without Python's hooks around one, which cost 140 page faults: 0 in the child, its process id in
    the parent. For a process of one thread; what needs a hook (`random`) is the caller's."""
    pid = int(_libc.fork())
    if pid < 0:
        raise failure("fork")
    return pid


def failure(name: str) -> OSError:
    """The error of the last call."""
    number = ctypes.get_errno()
    return OSError(number, f"{name}: {os.strerror(number)}")
