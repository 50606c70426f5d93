"""Control socket of a head: lets commands on its host look and kill without links.

Owns a Unix socket in the state directory: one request line in, one answer line out, both JSON. The head asks
the other processes over its existing links, with the code of a client (`cluster_view`). Because of the mode
of the socket (0600), only the user of this process may connect.
"""

import asyncio
import logging
import os
import socket
import stat
from pathlib import Path
from typing import Annotated

import msgspec

from gleaner.actors.protocol.cluster import KillChild
from gleaner.nodeagent.cluster_view import ClusterView, no_head
from gleaner.nodeagent.defaults import AGENT, CONTROL_GREETING, DEADLINE_S, MAX_LOOK_S
from gleaner.nodeagent.state_lock import CONTROL_SOCKET, short_path
from gleaner.supervisor import AskFailed, Done, Refused
from gleaner.supervisor.system_messages import SystemState

MAX_CALLERS = 8
"""At once; a further one is turned away, and takes the way over the network."""
MAX_REQUEST_BYTES = 4096
CALLER_S = 5.0
"""Time for a caller to send its request, and again to take the answer."""

log = logging.getLogger("nodeagent")


class Look(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Requests the state of every process; those that do not answer within `deadline_s` are silent."""

    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_LOOK_S)]


class Kill(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Requests a signal to a child process of a node agent."""

    node: str
    process: str
    signal: int


class Looked(msgspec.Struct, frozen=True):
    """The answer to `Look`."""

    states: list[SystemState]
    silent: list[str]


class Killed(msgspec.Struct, frozen=True):
    """The answer to `Kill`: the node agent has sent the signal."""


class Failed(msgspec.Struct, frozen=True):
    """The answer to what could not be done. `head`: whether the head's registry answered."""

    error: str
    head: bool = True


class ControlSocket:
    """Answers from `open_control` until `close`."""

    def __init__(self, state_dir: Path, view: ClusterView) -> None:
        self._state_dir = state_dir
        self._view = view
        self._server: asyncio.Server | None = None
        self._callers: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen. Raises OSError."""
        listener = _bound(self._state_dir)
        try:
            self._server = await asyncio.start_unix_server(
                self._accepted, sock=listener, limit=MAX_REQUEST_BYTES, backlog=MAX_CALLERS
            )
        except BaseException:
            listener.close()
            raise

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()
            (self._state_dir / CONTROL_SOCKET).unlink(missing_ok=True)
        for task in self._callers:
            task.cancel()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._callers) >= MAX_CALLERS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._callers.add(task)
        task.add_done_callback(self._callers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(CONTROL_GREETING)
            async with asyncio.timeout(CALLER_S):
                line = await reader.readline()
            if not line.endswith(b"\n"):
                return  # it has left in the middle of its request
            answer = await self._answer(line)
            writer.write(msgspec.json.encode(answer) + b"\n")
            async with asyncio.timeout(CALLER_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, ValueError) as problem:  # ValueError: its line is too long
            log.info("control socket: a caller was cut off: %s", problem or "it took too long")
        finally:
            writer.transport.abort()

    async def _answer(self, line: bytes) -> Looked | Killed | Failed:
        try:
            request = msgspec.json.decode(line, type=Look | Kill)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
            return Failed(f"the head does not understand the request: {problem}")
        try:
            if isinstance(request, Kill):
                order = KillChild(child=request.process, signal=request.signal)
                await self._view.ask(f"{request.node}/{AGENT}", order, expect=Done)
                return Killed()
            return await self._look(request.deadline_s)
        except Refused as refusal:
            return Failed(str(refusal))
        except AskFailed as problem:
            return Failed(f"the cluster does not answer: {problem}")

    async def _look(self, deadline_s: float) -> Looked | Failed:
        try:
            await self._view.names(deadline_s=DEADLINE_S)  # a registry that restarts is waited for
        except AskFailed as problem:
            return Failed(no_head(self._view.head.endpoint, problem), head=False)
        seen = await self._view.processes(deadline_s)
        return Looked(list(seen.states), list(seen.silent))


async def open_control(state_dir: Path, view: ClusterView) -> ControlSocket | None:
    """The socket in `state_dir`; None if this host cannot have one: commands then use the network."""
    control = ControlSocket(state_dir, view)
    try:
        await control.open()
    except OSError as problem:
        log.warning("no control socket in %s: %s; `rlctl` uses the network", state_dir, problem)
        return None
    return control


def _bound(state_dir: Path) -> socket.socket:
    """Bound, for this user alone; no connection is possible before it listens. Raises OSError."""
    with short_path(state_dir) as folder:
        if folder.stat().st_uid != os.geteuid():
            raise PermissionError("the folder belongs to another user")
        place = folder / CONTROL_SOCKET
        place.unlink(missing_ok=True)  # of an agent that was killed: this process holds the lock
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            made.bind(str(place))
            place.chmod(stat.S_IRUSR | stat.S_IWUSR)
        except BaseException:
            made.close()
            raise
    return made
