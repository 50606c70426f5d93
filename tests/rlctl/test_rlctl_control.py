"""The control socket: commands on the head's host ask the head through it.

They use the network where they cannot.
"""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from looked_at import LookedAt

from gleaner.actors.protocol.cluster import KillChild
from gleaner.configs.load import load
from gleaner.nodeagent import control_socket
from gleaner.nodeagent.cluster_view import ClusterView, Processes
from gleaner.nodeagent.control_socket import MAX_CALLERS, MAX_REQUEST_BYTES, ControlSocket, open_control
from gleaner.nodeagent.defaults import CONTROL_GREETING
from gleaner.nodeagent.files import AgentFile, make_private, publish_agent
from gleaner.nodeagent.state_lock import CONTROL_SOCKET, StateLock, short_path
from gleaner.rlctl import control, runs
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.client import Cluster
from gleaner.rlctl.errors import FAILED, NOTHING, OK, CommandError
from gleaner.supervisor import Actor, Address, AskTimeout, Lane, handles

SLOW = {"asyncio", "msgspec", "zmq", "rich", "supervisor", "transport", "configs", "actors"}


PATIENCE_S = 60.0
"""The timeout of a greeting: the machine may be busy."""


class Agent(Actor):
    """Receives the orders for a node agent."""

    def __init__(self, orders: list[KillChild]) -> None:
        self._orders = orders

    @handles(KillChild, lane=Lane.SYSTEM)
    async def kill(self, message: KillChild) -> None:
        self._orders.append(message)


class Host:
    """A run on this machine whose head is the cluster's; `start` opens its control socket."""

    def __init__(self, folder: Path, cluster: LookedAt, stack: ExitStack) -> None:
        self.cluster = cluster
        self.run = runs.create(folder / "runs", load("quickstart"))
        self.state_dir = self.run.head
        umask = os.umask(0)
        make_private(self.state_dir)
        os.umask(umask)
        self.orders: list[KillChild] = []
        self.view = ClusterView(cluster.head, [cluster.head.wire.local])
        self._stack = stack
        stack.enter_context(self.run.lock())
        stack.callback(StateLock(self.state_dir).release)
        self.publish(cluster.endpoint)

    def publish(self, endpoint: str) -> None:
        """Announce this endpoint as the head's."""
        publish_agent(
            self.state_dir,
            AgentFile(node="head", role="head", endpoint=endpoint, public_key="", pid=os.getpid()),
        )

    def start(self) -> ControlSocket:
        """Open the socket, and close it at the end of the test."""
        opened = self.cluster.run(open_control(self.state_dir, self.view))
        assert opened is not None
        self._stack.callback(lambda: self.cluster.run(_call(opened.close)))
        return opened

    def words(self, *command: str) -> list[str]:
        """The arguments of a command about this run."""
        return [*command, "--runs-dir", str(self.run.path.parent)]

    def connect(self) -> socket.socket:
        """A client that has received the greeting."""
        line = socket.socket(socket.AF_UNIX)
        self._stack.callback(line.close)
        line.settimeout(60.0)
        with short_path(self.state_dir) as folder:
            line.connect(str(folder / CONTROL_SOCKET))
        greeting = line.recv(len(CONTROL_GREETING), socket.MSG_WAITALL)
        if greeting != CONTROL_GREETING:
            raise ConnectionError(greeting)
        return line


def in_a_process(*words: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run a command in a process of its own; returns also the packages that it imported."""
    program = (
        "import json, sys\nfrom gleaner.rlctl import control\nfrom gleaner.rlctl.__main__ import main\n"
        f"control.GREETING_S = {PATIENCE_S}\ncode = main({list(words)!r})\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = json.loads(done.stderr.splitlines()[-1])
    packages = {name.removeprefix("gleaner.").partition(".")[0] for name in loaded}
    assert "rlctl" in packages
    return done, packages


async def _call(work: Callable[[], None]) -> None:
    work()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookedAt]:
    with LookedAt(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def host(tmp_path: Path, cluster: LookedAt, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(control, "GREETING_S", PATIENCE_S)
    with ExitStack() as stack:
        yield Host(tmp_path, cluster, stack)


def test_inspection_of_live_head_imports_no_runtime(host: Host) -> None:
    host.start()
    host.cluster.run(_spawn(host))
    for words, answer in (
        (["ps", "--deadline", "0.25"], "asker"),
        (["ps", "--deadline", "0.25", "--json"], '"asker"'),
        (["kill", "spot-1/engine", "--signal", "CONT"], "SIGCONT to spot-1/engine"),
    ):
        done, packages = in_a_process(*host.words(*words))
        assert done.returncode == OK, done.stderr
        assert answer in done.stdout
        assert not SLOW & packages, words
    assert [(it.child, it.signal) for it in host.orders] == [("engine", signal.SIGCONT)]


async def _spawn(host: Host) -> None:
    host.cluster.head.spawn("spot-1/agent", lambda: Agent(host.orders))


def test_ps_shows_the_same_by_socket_and_network(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*words: str) -> dict[str, object]:
        assert main(["ps", "--deadline", "1", "--json", *words]) == OK
        answer: dict[str, object] = json.loads(capsys.readouterr().out)
        return answer

    host.start()
    near, far = shown(*host.words()), shown("--head", host.cluster.endpoint)
    assert near["silent"] == far["silent"] == ["spot-2/agent"]

    def rows(answer: dict[str, object]) -> list[list[object]]:
        states = answer["processes"]
        assert isinstance(states, list)
        return [
            [sorted(state), state["node"], state["process"], state["pid"], sorted(actor), actor["name"]]
            for state in states
            for actor in state["actors"]
        ]

    assert rows(near) == rows(far)
    assert main(host.words("tree", "--deadline", "0.25")) == OK
    tree = capsys.readouterr().out
    assert f"head  pid {os.getpid()}\n" in tree
    assert "head/actors  one_for_one" in tree


def test_malformed_request_is_answered_or_cut_off(host: Host) -> None:
    host.start()
    for nonsense in (b"\xff\x00\n", b"[]\n", b'{"type":"Look"}\n', b'{"type":"Look","deadline_s":-1}\n'):
        line = host.connect()
        line.sendall(nonsense)
        assert "does not understand" in json.loads(control._read(line, _never()))["error"]
    huge = host.connect()
    with suppress(BrokenPipeError, ConnectionResetError):
        huge.sendall(b"x" * (MAX_REQUEST_BYTES * 64))
    assert _end(huge)
    half = host.connect()
    half.sendall(b'{"type":"Lo')
    half.shutdown(socket.SHUT_WR)
    assert _end(half)
    assert "spot-2/agent" in control.look(host.state_dir, 0.25).silent


def test_silent_client_is_cut_off(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "CALLER_S", 0.05)
    host.start()
    assert _end(host.connect())


def test_clients_beyond_limit_are_refused_until_one_leaves(host: Host) -> None:
    host.start()
    lines = [host.connect() for _ in range(MAX_CALLERS)]
    with pytest.raises(control.NoControl):
        control.look(host.state_dir, 0.25)
    for line in lines:
        line.shutdown(socket.SHUT_WR)
        assert _end(line)
    assert control.look(host.state_dir, 0.25).states


def test_socket_is_private_and_removed_with_the_agent(host: Host) -> None:
    opened = host.start()
    place = host.state_dir / CONTROL_SOCKET
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(host.state_dir.stat().st_mode) == 0o700
    host.cluster.run(_call(opened.close))
    assert not place.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_cannot_connect_in_an_open_folder(host: Host) -> None:
    host.start()
    with short_path(host.state_dir) as folder:
        own = int(folder.name)
        os.fchmod(own, 0o755)
        program = (
            "import socket, sys\n"
            f"try:\n    socket.socket(socket.AF_UNIX).connect('/proc/self/fd/{own}/{CONTROL_SOCKET}')\n"
            "except PermissionError:\n    sys.exit(7)"
        )
        done = subprocess.run(["python3", "-S", "-c", program], user=65534, group=65534, pass_fds=[own])
    assert done.returncode == 7


def test_socket_of_another_user_is_not_asked(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.start()
    monkeypatch.setattr("gleaner.rlctl.control.os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(control.NoControl):
        control.look(host.state_dir, 0.25)


def test_inspection_without_an_agent_imports_no_client(tmp_path: Path) -> None:
    run = runs.create(tmp_path / "runs", load("quickstart"))
    with run.lock():
        done, packages = in_a_process("ps", "--runs-dir", str(run.path.parent))
    assert done.returncode == NOTHING
    assert f"no node agent runs on {run.head}" in done.stderr
    assert not SLOW & packages


def test_path_longer_than_a_socket_address_works(
    tmp_path: Path, cluster: LookedAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "GREETING_S", PATIENCE_S)
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    with ExitStack() as stack:
        host = Host(folder, cluster, stack)
        host.start()
        assert len(str(host.state_dir / CONTROL_SOCKET)) > 108
        assert control.look(host.state_dir, 0.25).states


def test_socket_of_a_dead_head_is_skipped_and_replaced(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    with short_path(host.state_dir) as folder, socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / CONTROL_SOCKET))
    with pytest.raises(control.NoControl):
        control.look(host.state_dir, 0.25)
    assert main(host.words("ps", "--deadline", "0.25")) == OK
    assert "asker" in capsys.readouterr().out
    host.start()
    assert control.look(host.state_dir, 0.25).states


def test_hung_head_gives_the_same_error_as_the_network(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel accepts a connection for a stopped process, and no greeting arrives."""
    monkeypatch.setattr(control, "GREETING_S", 0.1)
    monkeypatch.setattr(Cluster.probe, "__defaults__", (0.3,))
    host.publish("tcp://127.0.0.1:1")
    with short_path(host.state_dir) as folder, socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(folder / CONTROL_SOCKET))
        stopped.listen(8)
        for words in (["ps"], ["kill", "spot-1/engine"], ["tree"]):
            assert main(host.words(*words)) == NOTHING
            assert "no head answers at tcp://127.0.0.1:1" in capsys.readouterr().err


def test_order_is_sent_once_when_head_stops_after_greeting(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SLACK_S", 0.1 - control.DEADLINE_S)
    with short_path(host.state_dir) as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / CONTROL_SOCKET))
        listener.listen(8)
        greeted: list[socket.socket] = []

        def greet() -> None:
            line, _ = listener.accept()
            line.sendall(CONTROL_GREETING)
            greeted.append(line)

        greeting = threading.Thread(target=greet)
        greeting.start()
        with pytest.raises(CommandError, match="does not answer: the head was silent") as problem:
            control.kill(host.state_dir, "spot-1", "engine", signal.SIGKILL)
        greeting.join(PATIENCE_S)
        [line] = greeted
        assert line.recv(4096).count(b"\n") == 1, "the order is sent once"
        line.close()
    assert problem.value.code == FAILED


class NoRegistry(ClusterView):
    async def names(self, prefix: str = "", deadline_s: float = 0.0) -> list[Address]:
        raise AskTimeout("registry was silent")

    async def processes(self, deadline_s: float = 0.0) -> Processes:
        raise AssertionError("nobody is asked")


def test_silent_registry_gives_the_same_error_as_network(host: Host) -> None:
    host.view = NoRegistry(host.cluster.head, [host.cluster.head.wire.local])
    host.start()
    with pytest.raises(
        CommandError, match="no head answers at .*registry was silent.*check the address"
    ) as answer:
        control.look(host.state_dir, 0.25)
    assert answer.value.code == NOTHING


def test_order_refused_by_node_agent_is_a_failure(host: Host) -> None:
    async def refuses(*_: object, **__: object) -> object:
        raise AskTimeout("spot-9/agent was silent")

    host.view.ask = refuses  # type: ignore[method-assign,assignment]
    host.start()
    with pytest.raises(CommandError, match="the cluster does not answer: spot-9/agent was silent") as answer:
        control.kill(host.state_dir, "spot-9", "engine", 9)
    assert answer.value.code == FAILED


def test_head_continues_when_no_socket_can_be_made(tmp_path: Path, cluster: LookedAt) -> None:
    view = ClusterView(cluster.head, [cluster.head.wire.local])
    assert cluster.run(open_control(tmp_path / "nowhere", view)) is None


def _end(line: socket.socket) -> bool:
    """Whether the other side has closed."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def _never() -> float:
    return time.monotonic() + 60.0
