"""Namespaces of one program (processes, mounts, IPC), with a reaper of ours.

Runs inside a bubblewrap sandbox, as root of its user namespace. The reaper is process 1 of the namespace.
When it ends, the kernel ends every process of the namespace with it, also those that left their session or
lost their parent.
"""

import os
import resource
import struct
from collections.abc import Callable
from typing import NoReturn

from gleaner.actors.reward.sandbox import syscalls
from gleaner.actors.reward.sandbox.port import Limits

ENDED = struct.Struct("<id")
"""The reaper's report after the program's end: its wait status, and processor seconds of all processes."""
REAPERS = 1
TMP = "/tmp"  # a file system of its own


def start(
    program: Callable[[], NoReturn], limits: Limits, ended: int, owner: int, *, own_proc: bool = False
) -> int:
    """Start `program` as process 2 of new namespaces; the process id of process 1. ended: takes `ENDED`;
    where the namespaces could not be made it is closed without. owner: uid of the program's /tmp.
    own_proc: /proc shows the program's own processes; else nothing."""
    flags = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC
    pid = syscalls.clone(flags)
    if pid:
        return pid
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
        first = syscalls.fork()
        if first == 0:
            _mount(limits, owner, own_proc)  # here, as what the reaper writes is copied for both
            program()
        os.closerange(0, ended)
        os.closerange(ended + 1, 2**20)
        while True:
            child, status = os.wait()
            if child == first:
                break
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        os.write(ended, ENDED.pack(status, usage.ru_utime + usage.ru_stime))
    finally:
        os._exit(0)


def _mount(limits: Limits, owner: int, own_proc: bool) -> None:
    """A fresh /tmp; nothing in shared memory, and in /proc at most the processes of this namespace."""
    hidden = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC | syscalls.MS_RDONLY
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    sizes = f"size={limits.tmp_bytes},nr_inodes={limits.tmp_files},mode=0700,uid={owner},gid={owner}"
    syscalls.mount("tmpfs", TMP, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, sizes)
    for path in ("/dev/shm",) if own_proc else ("/proc", "/dev/shm"):
        syscalls.mount("tmpfs", path, "tmpfs", hidden, "size=4k,nr_inodes=2,mode=0555")
    if own_proc:
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        syscalls.mount("proc", "/proc", "proc", flags)
