"""System call filter of a program, in the bytes of seccomp(2). Pure.

Denied calls return EPERM, so that a library that only probes goes on. Another machine's calls (32 bits, x32)
end the process. Calls newer than the known ones return ENOSYS, as on an older kernel.
"""

import errno
import functools
import struct
from collections.abc import Sequence

from gleaner.actors.reward.sandbox.syscall_numbers import ARCHITECTURES, NEWEST, NUMBERS

KILL_PROCESS, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
X32_BIT = 0x40000000
_DENY, _ABSENT = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS

DENIED = {
    "network": (
        "socket", "connect", "accept", "sendto", "sendmsg", "bind", "listen", "accept4", "sendmmsg",
    ),
    "other processes": (
        "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "pidfd_open",
        "pidfd_send_signal", "kcmp", "process_madvise", "process_mrelease", "migrate_pages", "move_pages",
    ),
    "namespaces and mounts": (
        "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "open_tree", "move_mount",
        "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "statmount", "listmount",
        "name_to_handle_at", "open_by_handle_at", "fanotify_init", "fanotify_mark", "quotactl",
        "quotactl_fd",
    ),
    "the kernel": (
        "memfd_create", "memfd_secret", "bpf", "perf_event_open", "userfaultfd", "add_key", "request_key",
        "keyctl", "io_uring_setup", "io_uring_enter", "io_uring_register", "kexec_load", "kexec_file_load",
        "init_module", "finit_module", "delete_module", "iopl", "ioperm", "modify_ldt", "personality",
        "swapon", "swapoff", "reboot", "sethostname", "setdomainname", "acct", "syslog", "uselib",
        "_sysctl", "nfsservctl", "vhangup", "lookup_dcookie", "vmsplice", "seccomp", "lsm_set_self_attr",
    ),
    "files by their paths, which Landlock leaves to their owner": (
        "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime",
        "utimes", "utimensat", "futimesat", "setxattr", "lsetxattr", "fsetxattr", "removexattr",
        "lremovexattr", "fremovexattr", "inotify_init", "inotify_init1", "inotify_add_watch",
    ),
    "clocks": (
        "clock_settime", "settimeofday", "adjtimex", "clock_adjtime",
    ),
    "shared memory and queues": (
        "shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget",
        "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive",
        "mq_notify", "mq_getsetattr",
    ),
    "other users": (
        "setuid", "setgid", "setreuid", "setregid", "setgroups", "setresuid", "setresgid", "setfsuid",
        "setfsgid", "capset", "mknod", "mknodat", "sched_setattr", "sched_setscheduler", "sched_setparam",
        "ioprio_set", "setpriority",
    ),
}  # fmt: skip
"""What no program may call, by the reason."""

ABSENT = ("clone3",)
"""Its flags are in memory, which a filter cannot read; the C library falls back to clone."""

NEW_NAMESPACES = 0x7E020080
"""Flags of clone that make namespaces: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME."""
SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
OF_ANY_PROCESS = ("prlimit64", "sched_setaffinity")
"""Calls whose first argument is a process, with 0 for the caller: only that is allowed."""
REQUESTS = (0x5401, 0x5413, 0x540F, 0x541B, 0x5421, 0x5450, 0x5451)
"""ioctl: TCGETS, TIOCGWINSZ, TIOCGPGRP, FIONREAD, FIONBIO, FIONCLEX and FIOCLEX, and no other: others type
into a terminal, have processes signalled, or change the attributes of files that can only be read."""
HARMFUL_REQUESTS = (
    0x5412, 0x541C, 0x5410, 0x5423, 0x540E, 0x8901, 0x8902, 0x5452,
    0x40086602, 0x401C5820, 0x40046602, 0xC0185879, 0x40049409, 0x4020940D, 0xC0189436,
)  # fmt: skip
"""ioctl: TIOCSTI, TIOCLINUX, TIOCSPGRP, TIOCSETD, TIOCSCTTY; FIOSETOWN, SIOCSPGRP, FIOASYNC;
FS_IOC_SETFLAGS (64 and 32 bits), FS_IOC_FSSETXATTR, FITRIM; FICLONE, FICLONERANGE, FIDEDUPERANGE."""
OF_DEVICES = ("socket", "bind", "listen")
"""A GPU's driver library makes a local socket, to which nothing can connect: that call stays denied."""
AF_UNIX = 1
F_SETOWN, F_SETOWN_EX = 8, 15  # a signal to another process when the descriptor is ready
PR_SET_SECCOMP, PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER = 22, 1, 36, 0x59616D61


def filter_bytes(machine: str, own_pid: int = 0, *, devices: bool = False) -> bytes:
    """The filter for a machine ("x86_64", "aarch64"): 8 bytes an instruction, struct sock_filter.

    own_pid: where signals of other processes are not kept off by a namespace or by Landlock, the process that
    may be signalled and no other; 0: any. devices: of GPUs are there, whose requests (ioctl) no list
    of numbers names: all but the known harmful ones are allowed.
    """
    head, tail = _constant(machine, devices)
    signals = _Program()
    for name in SIGNALS if own_pid else ():
        signals.only(NUMBERS[machine][name], 0, (own_pid,), _DENY)
    return head + signals.bytes() + tail


def _calls(machine: str) -> set[int]:
    """The calls that only programs with devices may make."""
    return {NUMBERS[machine][name] for name in OF_DEVICES}


@functools.cache
def _constant(machine: str, devices: bool) -> tuple[bytes, bytes]:
    """The instructions before and behind the checks of a process id. Neither part jumps into the other."""
    number = NUMBERS[machine]
    head = _Program()
    head.load(_ARCH)
    head.returns_unless_equal(ARCHITECTURES[machine], KILL_PROCESS)
    head.load(_NUMBER)
    if machine == "x86_64":
        head.returns_if_at_least(X32_BIT, KILL_PROCESS)
    head.checks(number["clone"], 0, [(_ANY_BIT, NEW_NAMESPACES)], _DENY)
    if devices:
        head.checks(number["ioctl"], 1, [(_EQUAL, request) for request in HARMFUL_REQUESTS], _DENY)
    else:
        head.only(number["ioctl"], 1, REQUESTS, _DENY)
    head.checks(number["fcntl"], 1, [(_EQUAL, request) for request in (F_SETOWN, F_SETOWN_EX)], _DENY)
    options = (PR_SET_SECCOMP, PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER)
    head.checks(number["prctl"], 0, [(_EQUAL, option) for option in options], _DENY)
    head.only(number["socketpair"], 0, (AF_UNIX,), _DENY)
    if devices:
        head.only(number["socket"], 0, (AF_UNIX,), _DENY)
    for name in OF_ANY_PROCESS:
        head.only(number[name], 0, (0,), _DENY)
    results = {number[name]: _DENY for names in DENIED.values() for name in names if name in number}
    if devices:
        results = {known: result for known, result in results.items() if known not in _calls(machine)}
    results |= {number[name]: _ABSENT for name in ABSENT if name in number}
    tail = _Program()
    tail.search(_ranges(results))
    return head.bytes(), tail.bytes()


def _ranges(results: dict[int, int]) -> list[tuple[int, int]]:
    """Every number's result as (first number, result of it and of those up to the next)."""
    found = [(0, results.get(0, ALLOW))]
    for number in range(1, NEWEST + 2):
        result = _ABSENT if number > NEWEST else results.get(number, ALLOW)
        if result != found[-1][1]:
            found.append((number, result))
    return found


class _Program:
    """Instructions of classic BPF. Each check ends the program or leaves the call's number loaded."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, int, int, int]] = []

    def bytes(self) -> bytes:
        return b"".join(struct.pack("=HBBI", *line) for line in self._lines)

    def load(self, offset: int) -> None:
        self._lines.append((_LOAD, 0, 0, offset))

    def returns(self, value: int) -> None:
        self._lines.append((_RETURN, 0, 0, value))

    def search(self, ranges: list[tuple[int, int]]) -> None:
        """The result of the range that holds the loaded number, by binary search. The kernel tests a new
        filter with every number, so a long chain would cost more than the rest of a program's start."""
        if len(ranges) == 1:
            self.returns(ranges[0][1])
            return
        middle = len(ranges) // 2
        below = _Program()
        below.search(ranges[:middle])
        self._lines.append((_AT_LEAST, len(below._lines), 0, ranges[middle][0]))
        self._lines += below._lines
        self.search(ranges[middle:])

    def returns_unless_equal(self, value: int, result: int) -> None:
        self._lines.append((_EQUAL, 1, 0, value))
        self.returns(result)

    def returns_if_at_least(self, value: int, result: int) -> None:
        self._lines.append((_AT_LEAST, 0, 1, value))
        self.returns(result)

    def checks(self, number: int, argument: int, tests: list[tuple[int, int]], result: int) -> None:
        """`result` where the call `number` is made and one of the tests holds for its argument's low half:
        the kernel itself looks at no more of these."""
        body = 2 * len(tests) + 2
        self._lines.append((_EQUAL, 0, body, number))
        self.load(_ARGUMENTS + 8 * argument)
        for test, value in tests:
            self._lines.append((test, 0, 1, value))
            self.returns(result)
        self.load(_NUMBER)

    def only(self, number: int, argument: int, values: Sequence[int], result: int) -> None:
        """`result` where the call `number` is made with none of these values of its argument."""
        body = len(values) + 3
        self._lines.append((_EQUAL, 0, body, number))
        self.load(_ARGUMENTS + 8 * argument)
        for place, value in enumerate(values):
            self._lines.append((_EQUAL, len(values) - place, 0, value))
        self.returns(result)
        self.load(_NUMBER)
