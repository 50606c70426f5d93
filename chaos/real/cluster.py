"""Cluster of node agents on hosts of their own, restarted as by an init system.

Owns the namespaces, keys and disks, and the outside view of the processes. A node agent that ends without an
order is started again at the same address (`node`). In any case `close` ends every process of every host and
removes the hosts; so does the end of this process.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from gleaner.chaos.netns import SHARED_MEMORY, Host, Switch
from gleaner.chaos.real.bad_wires import BadWires
from gleaner.chaos.real.node import HEAD, RESERVED, Node, how
from gleaner.chaos.run_processes import Proc, end_now, identify
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.files import find_agent

__all__ = ["DRIVER", "HEAD", "RESERVED", "Cluster", "ClusterFailed", "Node"]

DRIVER = "laptop"
"""The host from which jobs are driven; nothing is broken there."""
PORT = 7700
"""Port of every node agent: a restarted agent gets the same address."""
KEYGEN_S = 60.0
STOP_S = 60.0  # an agent gives itself 30 s for an ordered end, and is slow to respond on a busy machine
GONE_S = 5.0  # for a killed agent to be collected


class ClusterFailed(RuntimeError):
    """The cluster could not be set up or taken down; the text gives the part and the cause."""


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
                output = self.root / "logs" / f"{name}.out"
                self.nodes[name] = Node(name, host, self._options(name, host), output)
            self.driver = self.switch.host(DRIVER)
        except BaseException:
            self.switch.close()
            raise

    # -- places --

    @property
    def head(self) -> str:
        """Address of the head."""
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
            node.start()

    def tend(self) -> list[str]:
        """Restart agents that ended by themselves; return the actions as text."""
        return [event for node in self.nodes.values() if (event := node.tend())]

    def listening(self, name: str) -> bool:
        """Whether a node agent can be found, as its neighbours would."""
        with contextlib.suppress(CannotRun):
            return find_agent(self.seen_state(name)).node == name
        return False

    def processes(self) -> list[Proc]:
        """Every process of the nodes whose command line gives its kind."""
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
        """SIGKILL to everything there; return the number of processes. Its agent is not started again."""
        node.wanted = False
        killed = end_now(node.host.processes())
        if node.process is not None:
            node.process.wait(GONE_S)
        return killed

    def forget_memory(self, name: str) -> None:
        """Clear a host's shared memory, as a power failure does."""
        for path in self.memory(name).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def stop_in_order(self) -> list[str]:
        """SIGTERM to every agent, the head's last; return those that did not end in order."""
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
                    wrong.append(f"{node.name}: its ordered end came with {how(code)}")
                node.process = None
        return wrong

    def left(self) -> list[str]:
        """Remains on the hosts after an ordered end: processes, shared memory; as texts."""
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

    def kill_all(self) -> None:
        """SIGKILL to everything on every host, the driver's too."""
        for node in self.nodes.values():
            node.wanted = False
        for host in self.switch.hosts:
            end_now(host.processes())

    def keep_disks(self) -> list[Path]:
        """Copy the state directories to a place that outlives the hosts; return the copies. Raises
        OSError."""
        kept = []
        for name in self.nodes:
            copy = self.root / "kept" / name
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.seen_state(name), copy, symlinks=True)
            kept.append(copy)
        return kept

    def mend(self) -> None:
        """Undo all faults on the wires."""
        self.bad_wires.undo()
        self.switch.wires.undo()

    def close(self) -> None:
        """End everything, whatever its state; a failure on the way does not prevent the rest."""
        with contextlib.ExitStack() as closing:
            closing.callback(self.switch.close)
            closing.callback(self._collect)
            closing.callback(self.kill_all)
            closing.callback(self.bad_wires.undo)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- parts --

    def _collect(self) -> None:
        """The exit codes of agents that were killed."""
        for node in self.nodes.values():
            if node.process is not None:
                node.process.wait(GONE_S)

    def _options(self, name: str, host: Host) -> list[str]:
        options = ["--state-dir", str(self.state(name)), "--keys", str(self.keys(name))]
        options += ["--listen", f"tcp://{host.address}:{PORT}", "--bulk", "clear"]
        if name == HEAD:
            return [*options, "--role", "head"]
        options += ["--join", self.head, "--head-key", str(self.keys(HEAD) / "node.public")]
        return [*options, "--role", "reserved" if name == RESERVED else "preemptible"]

    def _make_keys(self, names: Sequence[str]) -> None:
        argv = [sys.executable, "-m", "gleaner.rlctl", "keygen", str(self.root / "keys")]
        argv += [word for name in (*names, DRIVER) for word in ("--node", name)]
        made = subprocess.run(argv, capture_output=True, text=True, timeout=KEYGEN_S, check=False)
        if made.returncode != 0:
            raise ClusterFailed(f"no keys: {made.stderr.strip()}")
