"""A cluster across namespaces: a head with a reserved host, a remote host, a laptop.

The preemptible remote host has shared memory of its own and sees neither the folder of runs nor the model: it
gets all data over its wire. Every process is ended by pid at the end, whatever happened.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from real_runs import OPEN_ENDED

from gleaner.actors.training.history import AnyRecord, HistoryFollower, Node, Step
from gleaner.chaos.netns import SHARED_MEMORY, Host, Switch
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.files import find_agent
from gleaner.rlctl.audit.invariants import Evidence, audit
from gleaner.rlctl.audit.run_files import gather
from gleaner.rlctl.runs import RunDir, every
from gleaner.supervisor.process import PARENT_VARIABLE

CONFIG = Path(__file__).with_name("small.toml")
WAIT_S = 240.0  # machines that run tests are busy; nothing here takes longer than 15 s on a quiet one
POLL_S = 0.1
SETTINGS = ("rollout.prompts=8", "rollout.max_new_tokens=128", "seeding.initial_s=0", "seeding.max_s=0")
REMOTE = "spot-1"


class Job:
    """One `rlctl run --head` on the laptop."""

    def __init__(self, cluster: "Cluster", output: Path, length: str) -> None:
        self._cluster = cluster
        self._output = output
        self._records: list[AnyRecord] = []
        known = every(cluster.runs)
        settings = (f"model.path={cluster.model}", length, *SETTINGS)
        words = [word for setting in settings for word in ("--set", setting)]
        argv = [
            "run",
            str(CONFIG),
            *words,
            *cluster.access(),
            *cluster.books(),
            "--runs-dir",
            str(cluster.runs),
            "--plain",
        ]
        with output.open("wb") as out:
            self.process = cluster.laptop.popen(
                [sys.executable, "-m", "gleaner.rlctl", *argv], output=out, env=cluster.environment()
            )
        cluster.processes.append(self.process)
        self.wait(lambda: len(every(cluster.runs)) > len(known), "the run's folder")
        self.run: RunDir = every(cluster.runs)[-1]
        self._follower = HistoryFollower(self.run.history)

    def records(self) -> list[AnyRecord]:
        """The history so far."""
        self._records += self._follower.poll()
        return self._records

    def step(self) -> int:
        """The newest finished step."""
        return max((record.step for record in self.records() if isinstance(record, Step)), default=0)

    def nodes(self, event: str) -> list[str]:
        """Hosts with this event, in order."""
        return [
            record.node for record in self.records() if isinstance(record, Node) and record.event == event
        ]

    def wait(self, condition: Callable[[], object], what: str, limit_s: float = WAIT_S) -> None:
        """Wait until `condition` holds; fails if the run ends before."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert self.process.poll() is None, f"{what}: the run ended before\n{self.story()}"
            assert time.monotonic() < deadline, f"{what}: not within {limit_s:.0f} s\n{self.story()}"
            time.sleep(POLL_S)

    def ends(self) -> int:
        """Wait for the end; returns the exit code."""
        return self.process.wait(2 * WAIT_S)

    def stops(self) -> int:
        """Ctrl-C to `rlctl`, which cancels the job; returns its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.ends()

    def evidence(self, *, complete: bool = False) -> Evidence:
        """The journals of the head and the reserved host about it. complete: it ended by itself."""
        return self._cluster.evidence(self.run, complete=complete)

    def broken(self, *, complete: bool = False) -> list[str]:
        """Invariants that do not hold."""
        return [str(violation) for violation in audit(self.evidence(complete=complete))]

    def remote_tokens(self) -> dict[tuple[int, int], int]:
        """Tokens that the remote host decoded, by its engine's incarnation and the version of the weights."""
        counts: dict[tuple[int, int], int] = {}
        for ledger in self.evidence().ledgers:
            for span in (span for request in ledger.requests for span in request.spans):
                if span.instance == f"{REMOTE}/engine":
                    key = (span.incarnation, span.version)
                    counts[key] = counts.get(key, 0) + span.count
        return counts

    def story(self) -> str:
        """For a failure: the output of rlctl, and the warnings in every log."""
        texts = [self._output.read_text(errors="replace")[-3000:]]
        for log in sorted(self._cluster.root.glob("state/*/logs/*.log")):
            lines = log.read_text(errors="replace").splitlines()
            texts += [f"{log.parent.parent.name}/{log.stem} {line}" for line in lines if " WARNING " in line][
                -15:
            ]
        return "\n".join(texts)


class Cluster:
    """Three hosts on a switch; the cluster runs on two of them. A context manager."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model, self.runs = root, model, root / "runs"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._jobs = 0
        for folder in (self.runs, root / "state"):
            folder.mkdir()
        nodes = [word for node in ("head", "reserved-1", REMOTE, "laptop") for word in ("--node", node)]
        made = rlctl("keygen", str(root / "keys"), *nodes)
        assert made.returncode == 0, made.stderr
        self.switch = Switch()
        self.home = self.switch.host("home", private=())  # its processes and the laptop share the runs folder
        self.away = self.switch.host("away", private=(SHARED_MEMORY, self.runs, model))
        self.laptop = self.switch.host("laptop")

    @property
    def head(self) -> str:
        """The head's endpoint."""
        return f"tcp://{self.home.address}:7700"

    def keys(self, node: str) -> Path:
        """A node's key directory."""
        return self.root / "keys" / node

    def state(self, node: str) -> Path:
        """A node's state directory."""
        return self.root / "state" / node

    def access(self) -> list[str]:
        """The options by which the laptop reaches the head."""
        return [
            "--head",
            self.head,
            "--head-key",
            str(self.keys("head") / "node.public"),
            "--keys",
            str(self.keys("laptop")),
        ]

    def books(self) -> list[str]:
        """The options by which the laptop finds the journals."""
        return [word for node in ("head", "reserved-1") for word in ("--state-dir", str(self.state(node)))]

    def evidence(self, run: RunDir, *, complete: bool) -> Evidence:
        """The journals of the head and the reserved host about a run."""
        states = [self.state("head"), self.state("reserved-1")]
        return gather(run.path, run.config(), complete=complete, state_dirs=states)

    def environment(self) -> dict[str, str]:
        """Start a process that dies with the test process."""
        return {**os.environ, PARENT_VARIABLE: str(os.getpid())}

    def up(self) -> None:
        """Start head, reserved and remote host."""
        self.start_head()
        self.join("reserved-1", self.home, "--role", "reserved")
        self.join(REMOTE, self.away)

    def start_head(self) -> None:
        """Start the head, or start it again."""
        self.start("head", self.home, "--role", "head", "--listen", self.head)

    def kill(self, node: str) -> None:
        """SIGKILL to a node agent: its whole host is lost."""
        self._agents[node].kill()
        self._agents[node].wait(WAIT_S)

    def ended(self, node: str) -> int:
        """Wait for the end of a node agent; returns its exit code."""
        return self._agents[node].wait(WAIT_S)

    def join(self, node: str, host: Host, *options: str) -> None:
        """Start a node that joins the head."""
        key = str(self.keys("head") / "node.public")
        join = (
            "--join",
            self.head,
            "--head-key",
            key,
            "--listen",
            f"tcp://{host.address}:0",
            "--bulk",
            "clear",
        )
        self.start(node, host, *join, *options)

    def start(self, node: str, host: Host, *options: str) -> None:
        """Start a node agent and wait until it can be found."""
        process = self.popen(node, host, "--keys", str(self.keys(node)), *options)
        deadline = time.monotonic() + WAIT_S
        while not self._found(node):
            assert process.poll() is None, self.output(node)
            assert time.monotonic() < deadline, f"{node} did not come up: {self.output(node)}"
            time.sleep(POLL_S)

    def popen(self, node: str, host: Host, *options: str) -> subprocess.Popen[bytes]:
        """Start a node agent; it may fail."""
        argv = [
            sys.executable,
            "-m",
            "gleaner.nodeagent",
            "start",
            "--name",
            node,
            "--state-dir",
            str(self.state(node)),
        ]
        with (self.root / f"{node}.out").open("wb") as out:
            process = host.popen([*argv, *options], output=out, env=self.environment())
        self.processes.append(process)
        self._agents[node] = process
        return process

    def output(self, node: str) -> str:
        """The output of a node agent."""
        return (self.root / f"{node}.out").read_text()

    def log(self, node: str, process: str = "agent") -> str:
        """A log of a node."""
        return (self.state(node) / "logs" / f"{process}.log").read_text()

    def rlctl(self, host: Host, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `rlctl` on a host to its end."""
        return host.run([sys.executable, "-m", "gleaner.rlctl", *arguments], WAIT_S)

    def job(self, length: str = OPEN_ENDED) -> Job:
        """Start a job from the laptop. length: a setting of `job.steps`."""
        self._jobs += 1
        return Job(self, self.root / f"job-{self._jobs}.out", length)

    def _found(self, node: str) -> bool:
        try:
            find_agent(self.state(node))
        except CannotRun:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()  # its children die with it
            process.wait(WAIT_S)
        for folder in SHARED_MEMORY.glob("gleaner-*"):
            if any(folder.name.startswith(f"gleaner-{run.id}-") for run in every(self.runs)):
                subprocess.run(["rm", "-r", str(folder)], check=False)
        self.switch.close()


def rlctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv: Sequence[str] = [sys.executable, "-m", "gleaner.rlctl", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S, check=False)
