"""Landlock rules for files, connections and signals of a process; by ctypes.

They are permanent, and need no rights.

Source: Documentation/userspace-api/landlock.rst of Linux. Rights that a kernel does not have are left out;
`detection` judges the remaining gaps.
"""

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from gleaner.actors.reward.sandbox import syscalls

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
MAKE_SYM, TRUNCATE = 1 << 12, 1 << 14
READ = EXECUTE | READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | TRUNCATE
IOCTL_DEV = 1 << 15
USE_DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that can be given for a path that is no directory."""

_HANDLED = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Rights on files by the version that brought them: all up to MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV."""
_TCP = 3
_SCOPE = 3
TCP_SINCE, SCOPE_SINCE = 4, 6
_CREATE_VERSION, _RULE_PATH = 1, 1


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "tcp", "scoped")]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """The version of the kernel's Landlock; 0 if it has none."""
    try:
        return syscalls.call(
            "landlock", syscalls.LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_VERSION)
        )
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class Rule:
    """The rights below a path. descriptor: of the path, opened; it stays open as long as rules are made of
    it."""

    descriptor: int
    rights: int


def rules(paths: Iterable[str], rights: int) -> list[Rule]:
    """Rules for the paths that exist; a path below another of them needs none."""
    found: list[Rule] = []
    real = list(dict.fromkeys(map(os.path.realpath, paths)))
    for path in real:
        if any(path.startswith(f"{other.rstrip('/')}/") for other in real):
            continue
        with contextlib.suppress(FileNotFoundError, PermissionError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            found.append(Rule(descriptor, rights if directory else rights & OF_A_FILE))
    return found


def ruleset(allowed: Iterable[Rule], known: int) -> int:
    """The descriptor of a set of rules, as far as version `known` of Landlock goes. Raises OSError."""
    handled = 0
    for since, rights in _HANDLED.items():
        handled |= rights if known >= since else 0
    kinds = _Ruleset(handled, _TCP if known >= TCP_SINCE else 0, _SCOPE if known >= SCOPE_SINCE else 0)
    size = 24 if known >= SCOPE_SINCE else 16 if known >= TCP_SINCE else 8
    made = syscalls.call(
        "landlock_create_ruleset",
        syscalls.LANDLOCK_CREATE,
        ctypes.byref(kinds),
        ctypes.c_size_t(size),
        ctypes.c_uint32(0),
    )
    try:
        for rule in allowed:
            _allow(made, rule.descriptor, rule.rights & handled)
    except OSError:
        os.close(made)
        raise
    return made


def restrict(made: int) -> None:
    """Let this process and its children reach what a set of rules allows and nothing else, connect nowhere,
    and signal only each other. Needs no_new_privs. Raises OSError."""
    number = syscalls.LANDLOCK_RESTRICT
    syscalls.call("landlock_restrict_self", number, ctypes.c_int(made), ctypes.c_uint32(0))


def _allow(made: int, descriptor: int, rights: int) -> None:
    rule = _PathRule(rights, descriptor)
    syscalls.call(
        "landlock_add_rule",
        syscalls.LANDLOCK_ADD,
        ctypes.c_int(made),
        ctypes.c_int(_RULE_PATH),
        ctypes.byref(rule),
        ctypes.c_uint32(0),
    )
