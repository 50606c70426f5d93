"""Start of a sandbox's zygote, under bubblewrap or plain. Trusted; runs outside.

Owns the command lines and the host's paths that are visible inside. The environment is empty from the first
exec on (bubblewrap's own process shows what it was started with), and no descriptor but the socket is passed
on.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from gleaner import actors
from gleaner.actors.reward.sandbox.port import Isolation

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")
ETC = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
ACTORS = Path(next(iter(actors.__path__)))  # in a checkout a link in the folder `gleaner`
START = (
    "import sys; sys.path[:0] = sys.argv[2].split(chr(0)); "
    "from gleaner.actors.reward.sandbox.zygote import main; main(int(sys.argv[1]))"
)


def readable(more: Sequence[str] = ()) -> list[str]:
    """The paths that programs may read and execute: the system's files, the interpreter's, our package
    `gleaner.actors`, the folder that makes it one of `gleaner`, and `more`. In a checkout that folder holds
    links, whose targets stay out of reach. Nothing of these holds a secret: no home, no run."""
    ours = [str(folder.resolve()) for folder in (ACTORS.parent, ACTORS)]
    prefixes = [
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        str(Path(sys.executable).resolve().parent.parent),
    ]
    found = [*SYSTEM, *ETC, *prefixes, *ours, *more]
    return [path for path in dict.fromkeys(found) if path != "/" and os.path.exists(path)]


def start(
    isolation: Isolation,
    bwrap: str,
    paths: Sequence[str],
    inner: socket.socket,
    stderr: IO[bytes],
    devices: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a zygote that listens on `inner` and writes its errors to `stderr`. devices: that are visible
    inside. Raises OSError."""
    fd = inner.fileno()
    package = str(ACTORS.parent.resolve().parent)
    python = [sys.executable, "-I", "-X", "utf8", "-c", START, str(fd), package]
    if isolation is Isolation.LANDLOCK:
        return _popen(python, [fd], stderr)
    with tempfile.TemporaryFile() as arguments:  # a command line can be read from inside
        arguments.write(b"\0".join(word.encode() for word in _bwrap_words(paths, devices)))
        arguments.seek(0)
        return _popen([bwrap, "--args", str(arguments.fileno()), *python], [fd, arguments.fileno()], stderr)


def _popen(words: list[str], fds: list[int], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        cwd="/",
        pass_fds=fds,
        start_new_session=True,
    )


def _bwrap_words(paths: Sequence[str], devices: Sequence[str] = ()) -> list[str]:
    words = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid():
        words += ["--unshare-user", "--uid", "0", "--gid", "0"]
    words += [
        "--cap-add",
        "ALL",
        "--die-with-parent",
        "--new-session",
        "--hostname",
        "sandbox",
        "--chdir",
        "/",
    ]
    words += ["--proc", "/proc", "--dev", "/dev", "--size", str(2**20), "--tmpfs", "/tmp"]
    made: set[str] = {"/"}
    for path in sorted(paths):  # a folder before its contents
        for parent in map(str, reversed(Path(path).parents)):  # else only root may search them
            if parent not in made and not any(parent.startswith(f"{done}/") for done in (*paths, *SYSTEM)):
                words += ["--perms", "0755", "--dir", parent]
                made.add(parent)
        if os.path.islink(path) and path in SYSTEM:
            words += ["--symlink", os.readlink(path), path]
        else:
            words += ["--ro-bind", path, path]
    for device in devices:
        words += ["--dev-bind", device, device]
    return words
