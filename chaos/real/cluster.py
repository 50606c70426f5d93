"""A cluster of node agents on hosts of their own, kept up as an init system would keep them.

Owns the namespaces, keys, disks and node agents, and what is seen of their processes from outside. A node
agent that ends without having been told so is started again at the same address. Whatever happens, `close`
ends every process of every host and takes the hosts away; so does the end of this process, however it comes.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from chaos.netns import SHARED_MEMORY, Host, Switch
from chaos.procs import AGENT, Proc, identify, is_alive
from chaos.real.bad_wires import BadWires
from nodeagent.exit_codes import CannotRun
from nodeagent.files import find_agent
from supervisor.process import PARENT_VARIABLE

HEAD, RESERVED = "head", "reserved-1"
DRIVER = "laptop"
"""The host from which jobs are driven; nothing is broken there."""
PORT = 7700
"""Of every node agent: who is started again is started at the same address."""
AGAIN_S = 1.0  # until an agent that ended is started again, as a unit with RestartSec=1 would be
KEYGEN_S = 60.0
STOP_S = 60.0  # an agent gives itself 30 s for an ordered end, and is reached late on a busy machine
GONE_S = 5.0  # for killed processes to be gone
POLL_S = 0.02
KINDS: Mapping[str, tuple[str, ...]] = {
    HEAD: (AGENT, "rollout", "reward"),
    RESERVED: (AGENT, "transfer", "trainer"),
    "preemptible": (AGENT, "transfer", "engine"),
}
"""The processes of a host while a job runs."""


class ClusterFailed(RuntimeError):
    """It could not be set up or taken down; says which part and why."""


@dataclass(slots=True)
class Node:
    """A host with its node agent. `wanted`: it is to be started again when it ends."""

    name: str
    host: Host
    options: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    wanted: bool = True
    ended_at: float | None = None
    exits: list[int] = field(default_factory=list)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Its processes while a job runs."""
        return KINDS.get(self.name, KINDS["preemptible"])


class Cluster:
    """See the module. A context manager.

    Args:
        root: an empty folder; logs, keys and the folder of runs are below it.
        preemptible: how many such hosts.
        disk_bytes: size of the disk of each host.
    """

    def __init__(self, root: Path, preemptible: int, disk_bytes: int) -> None:
        self.root = root.absolute()
        self.runs = self.root / "runs"
        self.models = self.root / "models"
        self.spots = [f"spot-{number}" for number in range(1, preemptible + 1)]
        self.nodes: dict[str, Node] = {}
        self.bad_wires = BadWires()
        names = [HEAD, RESERVED, *self.spots]
        for folder in (
            self.runs,
            self.models,
            self.root / "logs",
            self.root / "keys",
            *map(self.state, names),
        ):
            folder.mkdir(parents=True, exist_ok=True)
        self._make_keys(names)
        self.switch = Switch({self.state(name): disk_bytes for name in names})
        try:
            for name in names:
                away = (self.runs, self.models) if name in self.spots else ()
                host = self.switch.host(name, private=(SHARED_MEMORY, *away))
                self.nodes[name] = Node(name, host, self._options(name, host))
            self.driver = self.switch.host(DRIVER)
        except BaseException:
            self.switch.close()
            raise

    # -- places --

    @property
    def head(self) -> str:
        """Where the head listens."""
        return f"tcp://{self.nodes[HEAD].host.address}:{PORT}"

    def state(self, node: str) -> Path:
        """A node's state directory, as its processes see it."""
        return self.root / "state" / node

    def seen_state(self, node: str) -> Path:
        """The same, as this process sees it."""
        return self.switch.path(self.state(node))

    def memory(self, node: str) -> Path:
        """A host's shared memory, as this process sees it."""
        return self.nodes[node].host.path(SHARED_MEMORY)

    def keys(self, node: str) -> Path:
        """A node's key directory."""
        return self.root / "keys" / node

    def access(self) -> list[str]:
        """Options by which the driver's host reaches the head."""
        key = str(self.keys(HEAD) / "node.public")
        return ["--head", self.head, "--head-key", key, "--keys", str(self.keys(DRIVER))]

    # -- up and down --

    def start_all(self) -> None:
        """Start every node agent; does not wait until they are up."""
        for node in self.nodes.values():
            self.start(node)

    def start(self, node: Node) -> None:
        """Start a node agent (again), at its address."""
        argv = [sys.executable, "-m", "nodeagent", "start", "--name", node.name, *node.options]
        with (self.root / "logs" / f"{node.name}.out").open("ab") as out:
            node.process = node.host.popen(argv, output=out, env=self._environment())
        node.wanted, node.ended_at = True, None

    def tend(self) -> list[str]:
        """Start agents again that ended by themselves; what was done, in words."""
        told = []
        for node in self.nodes.values():
            if node.process is not None and (code := node.process.poll()) is not None:
                node.process, node.ended_at = None, time.monotonic()
                node.exits.append(code)
                if node.wanted:
                    told.append(f"the node agent of {node.name} ended ({_how(code)})")
            late = node.ended_at is not None and time.monotonic() - node.ended_at >= AGAIN_S
            if node.process is None and node.wanted and late:
                self.start(node)
        return told

    def listening(self, name: str) -> bool:
        """Whether a node agent can be found, as its neighbours would."""
        with contextlib.suppress(CannotRun):
            return find_agent(self.seen_state(name)).node == name
        return False

    def processes(self) -> list[Proc]:
        """Every process of the nodes that its command line tells apart."""
        found = []
        for name, pids in self.switch.processes().items():
            for pid in pids if name in self.nodes else ():
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(pid)
                    proc = identify(process, process.cmdline())
                    if proc is not None and proc.alive():
                        found.append(proc)
        return found

    def find(self, node: str, kind: str) -> Proc | None:
        """The process of this kind on this host."""
        return next((proc for proc in self.processes() if (proc.node, proc.kind) == (node, kind)), None)

    def kill_host(self, node: Node) -> int:
        """SIGKILL to everything there; how many processes there were. Its agent is not started again."""
        node.wanted = False
        killed = _kill(node.host.processes())
        if node.process is not None:
            node.process.wait(GONE_S)
        return killed

    def forget_memory(self, name: str) -> None:
        """What a power failure does to a host's shared memory."""
        for path in self.memory(name).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def stop_in_order(self) -> list[str]:
        """SIGTERM to every agent, the head's last; whoever did not end in order, in words."""
        wrong = []
        for names in ([name for name in self.nodes if name != HEAD], [HEAD]):
            asked = [self.nodes[name] for name in names]
            for node in asked:
                node.wanted = False
                if node.process is not None:
                    node.process.send_signal(signal.SIGTERM)
            for node in asked:
                if node.process is None:
                    wrong.append(f"{node.name}: its node agent was not up at the end")
                    continue
                try:
                    code = node.process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    wrong.append(f"{node.name}: its node agent did not end within {STOP_S:.0f} s of SIGTERM")
                    continue
                if code != 0:
                    wrong.append(f"{node.name}: its ordered end came with {_how(code)}")
                node.process = None
        return wrong

    def left(self) -> list[str]:
        """What is left on the hosts after an ordered end: processes, shared memory; in words."""
        found = []
        for node in self.nodes.values():
            for pid in node.host.processes():
                with contextlib.suppress(psutil.Error):
                    command = " ".join(psutil.Process(pid).cmdline())[:160]
                    found.append(f"{node.name}: process {pid}: {command}")
            found += [
                f"{node.name}: {path.name} in shared memory" for path in self.memory(node.name).iterdir()
            ]
            for name in ("agent.json", "processes"):
                if (self.seen_state(node.name) / name).exists():
                    found.append(f"{node.name}: {name} in its state directory")
        return found

    def keep_disks(self) -> list[Path]:
        """Copy the state directories to where they outlive the hosts; the copies."""
        kept = []
        for name in self.nodes:
            copy = self.root / "kept" / name
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.seen_state(name), copy, symlinks=True)
            kept.append(copy)
        return kept

    def mend(self) -> None:
        """Undo everything that is in force on the wires."""
        self.bad_wires.undo()
        self.switch.wires.undo()

    def close(self) -> None:
        """End everything, whatever state it is in."""
        self.bad_wires.undo()
        for host in self.switch.hosts:
            _kill(host.processes())
        for node in self.nodes.values():
            if node.process is not None:
                node.process.wait(GONE_S)
        self.switch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- parts --

    def _options(self, name: str, host: Host) -> list[str]:
        options = ["--state-dir", str(self.state(name)), "--keys", str(self.keys(name))]
        options += ["--listen", f"tcp://{host.address}:{PORT}", "--bulk", "clear"]
        if name == HEAD:
            return [*options, "--role", "head"]
        options += ["--join", self.head, "--head-key", str(self.keys(HEAD) / "node.public")]
        return [*options, "--role", "reserved" if name == RESERVED else "preemptible"]

    def _make_keys(self, names: Sequence[str]) -> None:
        argv = [sys.executable, "-m", "rlctl", "keygen", str(self.root / "keys")]
        argv += [word for name in (*names, DRIVER) for word in ("--node", name)]
        made = subprocess.run(argv, capture_output=True, text=True, timeout=KEYGEN_S, check=False)
        if made.returncode != 0:
            raise ClusterFailed(f"no keys: {made.stderr.strip()}")

    def _environment(self) -> dict[str, str]:
        """What is started dies with this process."""
        return {**os.environ, PARENT_VARIABLE: str(os.getpid())}


def _kill(pids: Sequence[int]) -> int:
    """SIGKILL, and wait until they are gone; how many there were."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.kill()
            found.append(process)
    until_s = time.monotonic() + GONE_S
    while any(map(is_alive, found)) and time.monotonic() < until_s:  # `wait` would take exit codes from Popen
        time.sleep(POLL_S)
    return len(found)


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
