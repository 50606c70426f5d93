"""The system call filter of a program, as the bytes that seccomp(2) takes. Pure; Linux on x86-64.

What is denied answers EPERM, so that a library that only probes goes on. Another machine's calls (32 bits,
x32) end the process. Calls that are newer than those that were looked at answer ENOSYS, as on an older
kernel.
"""

import errno
import struct

AUDIT_ARCH_X86_64 = 0xC000003E
KILL_PROCESS, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
X32_BIT = 0x40000000
NEWEST = 462
"""mseal: the newest call that was looked at."""

DENIED = {
    "network": {
        "socket": 41, "connect": 42, "accept": 43, "sendto": 44, "sendmsg": 46, "bind": 49, "listen": 50,
        "accept4": 288, "sendmmsg": 307,
    },
    "other processes": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438,
        "pidfd_open": 434, "pidfd_send_signal": 424, "kcmp": 312, "process_madvise": 440,
        "process_mrelease": 448, "migrate_pages": 256, "move_pages": 279,
    },
    "namespaces and mounts": {
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308,
        "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
        "mount_setattr": 442, "statmount": 457, "listmount": 458, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "fanotify_init": 300, "fanotify_mark": 301, "quotactl": 179,
        "quotactl_fd": 443,
    },
    "the kernel": {
        "memfd_create": 319, "memfd_secret": 447, "bpf": 321,
        "perf_event_open": 298, "userfaultfd": 323, "add_key": 248, "request_key": 249,
        "keyctl": 250, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
        "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313,
        "delete_module": 176, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "personality": 135,
        "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "acct": 163,
        "syslog": 103, "uselib": 134, "_sysctl": 156, "nfsservctl": 180, "vhangup": 153,
        "lookup_dcookie": 212, "vmsplice": 278, "seccomp": 317, "lsm_set_self_attr": 460,
    },
    "clocks": {"clock_settime": 227, "settimeofday": 164, "adjtimex": 159, "clock_adjtime": 305},
    "shared memory and queues": {
        "shmget": 29, "shmat": 30, "shmctl": 31, "shmdt": 67, "semget": 64, "semop": 65, "semctl": 66,
        "semtimedop": 220, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240,
        "mq_unlink": 241, "mq_timedsend": 242, "mq_timedreceive": 243, "mq_notify": 244, "mq_getsetattr": 245,
    },
    "other users": {
        "setuid": 105, "setgid": 106, "setreuid": 113, "setregid": 114, "setgroups": 116, "setresuid": 117,
        "setresgid": 119, "setfsuid": 122, "setfsgid": 123, "capset": 126, "mknod": 133, "mknodat": 259,
        "sched_setattr": 314, "sched_setscheduler": 144, "ioprio_set": 251, "setpriority": 141,
    },
}  # fmt: skip
"""What no program may call, by the reason."""

ENOSYS_CALLS = {"clone3": 435}
"""Its flags lie in memory, where a filter cannot look; the C library falls back to clone."""

NEW_NAMESPACES = 0x7E020080
"""Flags of clone that make namespaces: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME."""
SIGNALS = {"kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297}
_CLONE, _IOCTL, _SOCKETPAIR, _PRCTL, _FCNTL = 56, 16, 53, 157, 72
TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
AF_UNIX = 1
F_SETOWN, F_SETOWN_EX = 8, 15  # a signal to another process when the descriptor is ready
PR_SET_SECCOMP, PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER = 22, 1, 36, 0x59616D61


def filter_bytes(own_pid: int = 0) -> bytes:
    """The filter: 8 bytes an instruction, struct sock_filter.

    own_pid: where signals of other processes are not kept off by a namespace or by Landlock, the process that
    may be signalled and no other; 0: any.
    """
    deny, missing = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
    program = _Program()
    program.load(_ARCH)
    program.returns_unless_equal(AUDIT_ARCH_X86_64, KILL_PROCESS)
    program.load(_NUMBER)
    program.returns_if_at_least(X32_BIT, KILL_PROCESS)
    program.returns_if_at_least(NEWEST + 1, missing)
    for number in ENOSYS_CALLS.values():
        program.returns_if_equal(number, missing)
    for calls in DENIED.values():
        for number in calls.values():
            program.returns_if_equal(number, deny)
    program.checks(_CLONE, 0, [(_ANY_BIT, NEW_NAMESPACES)], deny)
    program.checks(_IOCTL, 1, [(_EQUAL, request) for request in TERMINAL_INJECTION], deny)
    program.checks(_FCNTL, 1, [(_EQUAL, request) for request in (F_SETOWN, F_SETOWN_EX)], deny)
    options = (PR_SET_SECCOMP, PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER)
    program.checks(_PRCTL, 0, [(_EQUAL, option) for option in options], deny)
    program.only(_SOCKETPAIR, 0, AF_UNIX, deny)
    if own_pid:
        for number in SIGNALS.values():
            program.only(number, 0, own_pid, deny)
    program.returns(ALLOW)
    return program.bytes()


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

    def returns_if_equal(self, value: int, result: int) -> None:
        self._lines.append((_EQUAL, 0, 1, value))
        self.returns(result)

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

    def only(self, number: int, argument: int, value: int, result: int) -> None:
        """`result` where the call `number` is made with another value of its argument."""
        self._lines.append((_EQUAL, 0, 4, number))
        self.load(_ARGUMENTS + 8 * argument)
        self.returns_unless_equal(value, result)
        self.load(_NUMBER)
