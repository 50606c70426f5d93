"""Control client: socket to the head of a run on this machine.

The socket is in the head's state directory. Owns the caller's side of `gleaner.nodeagent.control_socket`.
Imports no event loop, no codec and no runtime: that takes longer than a command may take.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

from gleaner.nodeagent.defaults import CONTROL_GREETING, DEADLINE_S
from gleaner.nodeagent.state_lock import CONTROL_SOCKET, short_path
from gleaner.rlctl.errors import failed, nothing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gleaner.supervisor.system_messages import SystemState

GREETING_S = 1.0
"""Until the head greets; a head that is stopped or held up is then asked over the network."""
SLACK_S = 2.0  # beyond the time that the head itself waits for other processes
MAX_ANSWER_BYTES = 256 << 20


class NoControl(Exception):
    """The socket gives no greeting; no request was sent."""


class ProcessSummaries(NamedTuple):
    """Summaries of processes (their fields as JSON has them), and the names of silent processes."""

    states: "Sequence[SystemState]"
    silent: "Sequence[str]"


def look(state_dir: Path, deadline_s: float) -> ProcessSummaries:
    """The summaries of all processes of the cluster. Raises NoControl, CommandError."""
    answer = _ask(state_dir, {"type": "Look", "deadline_s": deadline_s}, DEADLINE_S + 2 * deadline_s)
    states = [_shown(state) for state in cast("list[dict[str, object]]", answer["states"])]
    return ProcessSummaries(states, cast("list[str]", answer["silent"]))


def kill(state_dir: Path, node: str, process: str, signal: int) -> None:
    """Have a node agent send a signal to its child. Raises NoControl, CommandError."""
    _ask(state_dir, {"type": "Kill", "node": node, "process": process, "signal": signal}, DEADLINE_S)


def _shown(state: Mapping[str, object]) -> "SystemState":
    """Attribute access to a decoded message by its field names."""
    actors = [SimpleNamespace(**actor) for actor in cast("list[dict[str, object]]", state["actors"])]
    return cast("SystemState", SimpleNamespace(**{**state, "actors": actors}))


def _ask(state_dir: Path, request: Mapping[str, object], answer_s: float) -> Mapping[str, object]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as line:
        line.settimeout(GREETING_S)
        try:
            with short_path(state_dir) as folder:
                line.connect(str(folder / CONTROL_SOCKET))
            _need_own(line)
            greeting = line.recv(len(CONTROL_GREETING), socket.MSG_WAITALL)
        except OSError as problem:
            raise NoControl from problem
        if greeting != CONTROL_GREETING:
            raise NoControl
        answer_s += SLACK_S
        try:
            line.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(_read(line, time.monotonic() + answer_s))
        except TimeoutError:
            raise failed(f"the cluster does not answer: the head was silent for {answer_s:g} s") from None
        except (OSError, ValueError) as problem:
            raise failed(f"the cluster does not answer: the head broke off: {problem}") from problem
    if "error" in answer:
        raise failed(answer["error"]) if answer["head"] else nothing(answer["error"])
    return cast("Mapping[str, object]", answer)


def _need_own(line: socket.socket) -> None:
    """Raises OSError where the socket belongs to another user: this process must not act on such data."""
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", credentials)
    if uid != os.geteuid():
        raise PermissionError(f"the control socket belongs to user {uid}")


def _read(line: socket.socket, until_s: float) -> bytes:
    """Read until the end of the stream. Raises OSError (TimeoutError at `until_s`), ValueError."""
    data = bytearray()
    while not data.endswith(b"\n"):
        line.settimeout(max(until_s - time.monotonic(), 0.001))
        more = line.recv(1 << 20)
        if not more:
            raise ConnectionError("it closed the connection")
        data += more
        if len(data) > MAX_ANSWER_BYTES:
            raise ValueError(f"its answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(data)
