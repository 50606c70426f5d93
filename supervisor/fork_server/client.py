"""`ForkServer`: the fork server of this process, and children that it forks.

Owns the server's process. Whatever goes wrong with it, the caller executes the child instead, as without a
server.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping

import msgspec

from gleaner.supervisor.fork_server.protocol import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    Forked,
    ForkRequest,
    Ready,
)
from gleaner.supervisor.parent import PARENT_VARIABLE, adopting

READY_S = 30.0
"""Limit of the wait for the server's imports, 2 s of processor time on a warm disk."""
START_S = 2.0
"""Limit of the wait for one child: milliseconds, unless the server is stopped or starved."""

log = logging.getLogger(__name__)


class ForkServer:
    """A running fork server.

    Args:
        connection: to the server, a SOCK_SEQPACKET socket.
        pid: of the server, a child of this process.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self.pid = pid
        self._is_ready = False

    @classmethod
    def execute(cls, modules: str, env: Mapping[str, str]) -> "ForkServer":
        """Execute a server. modules: a module whose `MODULES` names what the server imports. env: its
        environment; libraries read some of it when they are imported. Raises OSError."""
        from gleaner.supervisor.fork_server.server import PADDING

        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        its.set_inheritable(True)
        argv = [sys.executable, "-m", "gleaner.supervisor.fork_server", str(its.fileno()), modules, PADDING]
        try:
            pid = os.posix_spawn(
                sys.executable,
                argv,
                {**env, PARENT_VARIABLE: str(os.getpid())},
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
                setpgroup=0,
            )
        except OSError:
            ours.close()
            raise
        finally:
            its.close()
        return cls(ours, pid)

    @classmethod
    def inherit(cls) -> "ForkServer | None":
        """Fork a server from this process, where a fork server forked it: both hold the same modules. None
        elsewhere.

        Call it while this process has one thread. In each child of the new server it does not return. Raises
        OSError.
        """
        from gleaner.supervisor.fork_server.server import fork_server, holds_image

        if not holds_image():
            return None
        connection, pid = fork_server(os.getpid())
        if connection is None:
            sys.exit(0)
        return cls(connection, pid)

    async def ready(self) -> None:
        """Wait until the server forks, at most `READY_S`. It is closed where it ends before."""
        loop = asyncio.get_running_loop()
        if self._is_ready or self._closed:
            return
        readable = asyncio.Event()
        loop.add_reader(self._connection.fileno(), readable.set)
        try:
            async with asyncio.timeout(READY_S):
                await readable.wait()
        except TimeoutError:
            log.warning("fork server is not ready after %.0f s: processes are executed until it is", READY_S)
            return
        finally:
            loop.remove_reader(self._connection.fileno())
        self._take_ready()

    def start(self, argv: list[str], env: Mapping[str, str], output: int) -> int | None:
        """Fork a child of this process that runs `argv`, in a process group of its own, with standard output
        and error to the file descriptor `output`: its pid.

        None where the caller has to execute it: another program, or a server that is not ready or failed.
        """
        if argv[:2] != [sys.executable, "-m"] or self._closed:
            return None
        if not self._is_ready and not self._take_ready():
            return None
        request = msgspec.msgpack.encode(ForkRequest(argv, dict(env), os.getpid()))
        if len(request) > MAX_REQUEST_BYTES:
            return None
        try:
            with adopting():
                self._connection.settimeout(START_S)
                socket.send_fds(self._connection, [request], [output])
                reply = msgspec.msgpack.decode(self._connection.recv(MAX_REPLY_BYTES), type=Forked)
        except (OSError, msgspec.MsgspecError) as problem:
            self._fail(str(problem) or type(problem).__name__)
            return None
        if reply.pid == 0:
            log.warning("fork server could not fork, so a process is executed: %s", reply.error)
            return None
        if not _is_own_child(reply.pid):  # it ends by itself: its parent is another process
            self._fail("the kernel gave a child to another process")
            return None
        return reply.pid

    def close(self) -> None:
        """End the server; its children live on."""
        if self._closed:
            return
        self._connection.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    @property
    def _closed(self) -> bool:
        return self._connection.fileno() < 0

    def _take_ready(self) -> bool:
        """Whether the server reported that it is ready."""
        try:
            self._connection.settimeout(0)
            data = self._connection.recv(MAX_REPLY_BYTES)
            ready = msgspec.msgpack.decode(data, type=Ready)
        except BlockingIOError:
            return False
        except (OSError, msgspec.MsgspecError) as problem:
            self._fail(str(problem) or type(problem).__name__)
            return False
        if ready.threads != 1:
            self._fail(f"it has {ready.threads} threads")
            return False
        self._is_ready = True
        return True

    def _fail(self, why: str) -> None:
        log.warning("fork server failed, so processes are executed from now on: %s", why)
        self.close()


def _is_own_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
