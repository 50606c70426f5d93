"""Attempts to leave the sandbox: programs that return what they got, or raise OSError if refused.

The same functions run without a sandbox as negative controls, so each needs only the standard library. `{}`
in a payload is a value from the test: a path, a process id, a port.
"""

import ctypes
import errno
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class Facts:
    """Targets that the test prepared outside, with their places."""

    def __init__(self, payload: bytes) -> None:
        given = json.loads(payload)
        self.secret: str = given["secret"]
        self.folder: str = given["folder"]
        self.own: str = given["own"]
        self.victim: int = given["victim"]
        self.port: int = given["port"]
        self.unix: str = given["unix"]
        self.abstract: str = given["abstract"]
        self.shm: int = given["shm"]


def syscall(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# -- network --


def tcp(facts: Facts) -> str:
    with socket.create_connection(("127.0.0.1", facts.port), timeout=5) as peer:
        return peer.recv(20).decode()


def udp(facts: Facts) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        return str(peer.sendto(b"x", ("127.0.0.1", facts.port)))


def ipv6(facts: Facts) -> str:
    return str(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))


def netlink(facts: Facts) -> str:
    return str(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))


def abstract_socket(facts: Facts) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(5)
        peer.connect("\0" + facts.abstract)
        return peer.recv(20).decode()


def file_socket(facts: Facts) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(5)
        peer.connect(facts.unix)
        return peer.recv(20).decode()


# -- files --


def host_file(facts: Facts) -> str:
    return Path(facts.secret).read_text()


def include_in_source(facts: Facts) -> str:
    """A compiler that embeds a file of the host in a program."""
    embed = f'__asm__(".incbin \\"{facts.secret}\\"");\nint main(void) {{ return 0; }}\n'
    Path("main.c").write_text(embed)
    done = subprocess.run(["gcc", "-c", "-o", "main.o", "main.c"], capture_output=True, check=False)
    if done.returncode:
        raise PermissionError(errno.EACCES, done.stderr.decode()[-200:])
    return Path("main.o").read_bytes().partition(b"the secret")[1].decode() or os.strerror(errno.ENOENT)


def linked_script(facts: Facts) -> str:
    """A linker that reads a file of the host as its script: its message quotes the file."""
    Path("main.c").write_text("int main(void) { return 0; }\n")
    words = ["gcc", "-o", "main", "main.c", facts.secret]
    done = subprocess.run(words, capture_output=True, check=False)
    if b"No such file" in done.stderr or b"ermission denied" in done.stderr:
        raise PermissionError(errno.EACCES, done.stderr.decode()[-200:])
    return done.stderr.decode()[-200:]


def host_folder(facts: Facts) -> str:
    return str(os.listdir(facts.folder))


def passwords(facts: Facts) -> str:
    return Path("/etc/passwd").read_text()


def write_outside(facts: Facts) -> str:
    Path(facts.folder, "written").write_text("x")
    return "written"


def write_interpreter(facts: Facts) -> str:
    Path(os.__file__).with_name("sitecustomize_gleaner.py").write_text("")
    return "written"


def symlink_out(facts: Facts) -> str:
    os.symlink(facts.secret, "link")
    return Path("link").read_text()


def hardlink_out(facts: Facts) -> str:
    os.link(facts.secret, "hard")
    return Path("hard").read_text()


def dots(facts: Facts) -> str:
    return Path("../" * 20 + facts.secret).read_text()


def proc_root(facts: Facts) -> str:
    return Path(f"/proc/self/root{facts.secret}").read_text()


def proc_folder(facts: Facts) -> str:
    return str(os.listdir("/proc"))


def unnamed_file(facts: Facts) -> str:
    return str(os.open(facts.folder, os.O_TMPFILE | os.O_RDWR))


def rename_out(facts: Facts) -> str:
    Path("mine").write_text("x")
    os.rename("mine", f"{facts.folder}/moved")
    return "moved"


def mode_outside(facts: Facts) -> str:
    os.chmod(facts.own, 0o600)
    return "changed"


def owner_outside(facts: Facts) -> str:
    os.chown(facts.own, os.getuid(), os.getgid())
    return "changed"


def times_outside(facts: Facts) -> str:
    os.utime(facts.own, (1, 1))
    return "changed"


def attributes_outside(facts: Facts) -> str:
    os.setxattr(facts.own, "user.gleaner", b"x")
    return "changed"


def flags_by_descriptor(facts: Facts) -> str:
    """Set an attribute of a file of the program's user; a read-only descriptor is enough for that."""
    import fcntl

    Path("mine").write_text("x")
    with open("mine") as mine:
        try:
            flags = fcntl.ioctl(mine, 0x80086601, b"\0" * 8)
            fcntl.ioctl(mine, 0x40086602, flags)
        except OSError as error:
            if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP):
                raise
            return "asked a file system that has none"
    return "changed"


def watch_outside(facts: Facts) -> str:
    descriptor = libc.inotify_init1(0)
    if descriptor < 0 or libc.inotify_add_watch(descriptor, facts.folder.encode(), 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "watched"


def change_root(facts: Facts) -> str:
    os.chroot("/")
    return "changed"


# -- other processes --


def environment_of_parent(facts: Facts) -> str:
    return Path(f"/proc/{os.getppid()}/environ").read_bytes().decode() or "empty"


def memory_of_parent(facts: Facts) -> str:
    return str(os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR))


def signal_victim(facts: Facts) -> str:
    os.kill(facts.victim, 0)
    return "reached"


def signal_parent(facts: Facts) -> str:
    """Process 1 of a namespace takes no signal from inside; without a namespace the parent must be out of
    reach."""
    if os.getppid() == 1:
        raise PermissionError(errno.EPERM, "process 1 of the namespace")
    os.kill(os.getppid(), 0)
    return "reached"


def limits_of_victim(facts: Facts) -> str:
    return str(resource.prlimit(facts.victim, resource.RLIMIT_NOFILE, (64, 64)))


def processors_of_victim(facts: Facts) -> str:
    os.sched_setaffinity(facts.victim, {0})
    return "moved"


def trace(facts: Facts) -> str:
    return str(syscall(101, 0, 0, 0, 0))


def read_memory(facts: Facts) -> str:
    return str(syscall(310, os.getppid(), None, 0, None, 0, 0))


def pidfd(facts: Facts) -> str:
    return str(os.pidfd_open(os.getpid()))


# -- the kernel --


def new_user(facts: Facts) -> str:
    return str(syscall(272, 0x10000000))


def clone_user(facts: Facts) -> str:
    pid = syscall(56, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "made"


def clone3(facts: Facts) -> str:
    return str(syscall(435, ctypes.create_string_buffer(88), 88))


def mount(facts: Facts) -> str:
    return str(syscall(165, b"none", facts.folder.encode(), b"tmpfs", 0, b""))


def io_uring(facts: Facts) -> str:
    return str(syscall(425, 8, ctypes.create_string_buffer(120)))


def bpf(facts: Facts) -> str:
    return str(syscall(321, 0, ctypes.create_string_buffer(128), 128))


def keyring(facts: Facts) -> str:
    return str(syscall(248, b"user", b"gleaner", b"x", 1, -3))


def userfault(facts: Facts) -> str:
    return str(syscall(323, 1))


def performance(facts: Facts) -> str:
    return str(syscall(298, ctypes.create_string_buffer(128), 0, -1, -1, 0))


def old_calls(facts: Facts) -> str:
    return str(syscall(0x40000000 + 39))  # x32's getpid


def personality(facts: Facts) -> str:
    return str(syscall(135, 0xFFFFFFFF))


def clock(facts: Facts) -> str:
    time.clock_settime(time.CLOCK_REALTIME, time.time())
    return "set"


def shared_memory(facts: Facts) -> str:
    return str(syscall(30, facts.shm, 0, 0))


def memory_file(facts: Facts) -> str:
    return str(os.memfd_create("x"))


def other_user(facts: Facts) -> str:
    os.setuid(12345)
    return str(os.getuid())


def terminal(facts: Facts) -> str:
    import fcntl

    with open("/dev/null") as null:
        fcntl.ioctl(null, 0x5412, b"x")
    return "injected"


def dev_shm(facts: Facts) -> str:
    path = Path("/dev/shm/gleaner-escape")
    path.write_text("x")
    path.unlink()
    return "written"


# -- information --


def environment(facts: Facts) -> str:
    return os.environ["GLEANER_TEST_SECRET"]


def descriptors(facts: Facts) -> str:
    found = []
    for fd in range(4, 256):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.append(fd)
    if not found:
        raise PermissionError(errno.EPERM, "none is open")
    return str(found)


REFUSED: dict[str, Callable[[Facts], str]] = {
    function.__name__: function
    for function in (
        tcp, udp, ipv6, netlink, abstract_socket, file_socket, host_file, host_folder, passwords,
        *((include_in_source, linked_script) if shutil.which("gcc") else ()),
        write_outside, write_interpreter, symlink_out, hardlink_out, dots, proc_root, proc_folder,
        unnamed_file, rename_out, mode_outside, owner_outside, times_outside, attributes_outside,
        flags_by_descriptor, watch_outside, limits_of_victim, processors_of_victim, change_root,
        environment_of_parent,
        memory_of_parent, signal_victim, signal_parent, trace, read_memory, pidfd, new_user, clone_user,
        clone3, mount, io_uring, bpf,
        keyring, userfault, performance, old_calls, personality, clock, shared_memory, memory_file,
        other_user, terminal, dev_shm, environment, descriptors,
    )
}  # fmt: skip
"""Each attempt must raise or end its program."""


def attempt(payload: bytes) -> bytes:
    """Run the attempt that the payload names: what it got, as "got: ..." or "refused: ..."."""
    name, _, facts = payload.partition(b" ")
    try:
        return b"got: " + REFUSED[name.decode()](Facts(facts)).encode()
    except (OSError, KeyError) as error:
        return f"refused: {type(error).__name__}: {error}".encode()


# -- excess use: each ends at a limit --


def endless_loop(_: bytes) -> bytes:
    while True:
        pass


def sleeps(_: bytes) -> bytes:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(60)


def stops_itself(_: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGSTOP)
    return b""


def memory(_: bytes) -> bytes:
    return b"%d" % len([bytearray(b"x" * 2**20) for _ in range(2**20)])


def memory_of_many(_: bytes) -> bytes:
    """Processes below the limit of one process, together above it."""
    for _ in range(8):
        if os.fork() == 0:
            kept = bytearray(os.urandom(2**20) * 100)
            time.sleep(60)
            os._exit(len(kept) and 0)
    time.sleep(60)
    return b""


def forks(_: bytes) -> bytes:
    made = 0
    while True:
        try:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        except OSError:
            return b"%d" % made
        made += 1


def threads(_: bytes) -> bytes:
    made = 0
    while True:
        try:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        except RuntimeError:
            return b"%d" % made
        made += 1


def many_processes_compute(_: bytes) -> bytes:
    for _ in range(7):
        if os.fork() == 0:
            break
    while True:
        pass


def flood(_: bytes) -> bytes:
    while True:
        os.write(1, b"x" * 2**16)


def flood_stderr(_: bytes) -> bytes:
    while True:
        os.write(2, b"x" * 2**16)


def flood_result(_: bytes) -> bytes:
    while True:
        os.write(3, b"x" * 2**16)


def long_result(_: bytes) -> bytes:
    return bytes(2**23)


def large_file(_: bytes) -> bytes:
    with open("large", "wb") as file:
        while True:
            file.write(bytes(2**20))
            file.flush()


def many_files(_: bytes) -> bytes:
    number = 0
    while True:
        with open(f"file-{number}", "wb") as file:
            file.write(bytes(2**20))
        number += 1


def many_empty_files(_: bytes) -> bytes:
    number = 0
    while True:
        open(f"file-{number}", "wb").close()
        number += 1


def descriptors_used_up(_: bytes) -> bytes:
    kept = []
    while True:
        try:
            kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            return b"%d" % len(kept)


def stack(_: bytes) -> bytes:
    sys.setrecursionlimit(2**31 - 1)

    def deeper(value: object) -> object:
        return deeper([value])

    deeper(None)
    return b""


def segfault(_: bytes) -> bytes:
    ctypes.string_at(0)
    return b""


def dumps_core(_: bytes) -> bytes:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.abort()


# -- leaving something behind --


def daemon(_: bytes) -> bytes:
    """Forked twice, with a session of its own, keeping every descriptor."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.wait()
    return b"left one"


def daemon_and_exit(_: bytes) -> bytes:
    daemon(b"")
    os._exit(0)


def leaves_files(_: bytes) -> bytes:
    Path("left").write_text("x")
    os.environ["LEFT"] = "x"
    json.left = True  # type: ignore[attr-defined]
    return b"left"


def leaves_deep_folders(_: bytes) -> bytes:
    """Folders nested deeper than Python's recursion limit."""
    for _ in range(1000):
        os.mkdir("d")
        os.chdir("d")
    return b"left"


def leaves_locked_folders(_: bytes) -> bytes:
    """Folders that not even their owner may list."""
    os.umask(0)
    os.makedirs("write/inner")
    Path("write/file").write_text("x")
    for name, mode in (("none", 0), ("search", 0o300), ("list", 0o500)):
        os.mkdir(name, mode)
        os.mkdir(f"write/{name}", mode)
    Path("search/file").write_text("x")
    os.mkdir("search/inner", 0)
    os.symlink("/usr", "link")
    return b"left"


def guesses(_: bytes) -> bytes:
    return b"%d" % random.getrandbits(64)


def prints(count: int) -> None:
    """Not a program; a sandbox calls it while it prepares."""
    print("x" * count, file=sys.stderr)


def waits_at(places: list[str]) -> None:
    """Not a program; from now on the kernel seems to take half a second there, at the start or the end of
    each program."""
    from gleaner.actors.reward.sandbox.confinement import Confiner

    confine, leave = Confiner.confine, os._exit

    def confine_late(*args: Any) -> None:
        time.sleep(0.5)
        confine(*args)

    def leave_late(code: int) -> NoReturn:
        if os.getpid() == 1:  # our reaper
            time.sleep(0.5)
        leave(code)

    if "start" in places:
        mock.patch.object(Confiner, "confine", confine_late).start()
    if "end" in places:
        mock.patch.object(os, "_exit", leave_late).start()


def finds_files(_: bytes) -> bytes:
    found = [*os.listdir("."), *(["environ"] if "LEFT" in os.environ else [])]
    return repr(found + (["module"] if hasattr(json, "left") else [])).encode()


# -- false results --


def exits_well(_: bytes) -> bytes:
    raise SystemExit(0)


def exits_hard(_: bytes) -> bytes:
    os._exit(0)


def half_a_frame(_: bytes) -> bytes:
    os.write(3, b"\x10\x00\x00\x00abc")
    os._exit(0)


def frame_and_more(_: bytes) -> bytes:
    os.write(3, b"\x01\x00\x00\x00a" + b"\x01\x00\x00\x00b")
    os._exit(0)


def closes_result(_: bytes) -> bytes:
    os.close(3)
    return b"x"


def runs_a_program(payload: bytes) -> bytes:
    return subprocess.run(json.loads(payload), capture_output=True, check=True).stdout


def imports(payload: bytes) -> bytes:
    return repr(__import__(payload.decode())).encode()


# -- one program for many payloads --

_seen: list[bytes] = []


def remembers(payload: bytes) -> bytes:
    _seen.append(payload)
    if payload == b"loop":
        endless_loop(b"")
    if payload == b"exit":
        os._exit(0)
    if payload == b"flood":
        flood(b"")
    return b"%d" % len(_seen)
