"""RealRun: a whole run as a user starts it, its processes, history and end.

Everything that a test starts dies with it: at the end every process of the run is killed by pid.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psutil

from gleaner.actors.protocol.rollout import RolloutFigures, RolloutStatus
from gleaner.actors.training.history import AnyRecord, HistoryFollower, Node, Restart, Sample, Step
from gleaner.chaos.invariants import broken
from gleaner.chaos.orphans import left_behind
from gleaner.chaos.run_processes import Proc, find, is_alive
from gleaner.rlctl.audit.invariants import step_of
from gleaner.rlctl.audit.run_files import gather
from gleaner.rlctl.client import connect_to_run
from gleaner.rlctl.errors import INTERRUPTED
from gleaner.rlctl.head import remains
from gleaner.rlctl.report.model import Report
from gleaner.rlctl.runs import RunDir, every
from gleaner.supervisor import AskFailed

WAIT_S = 240.0  # machines that run tests are busy; nothing here takes longer than 20 s on a quiet one
POLL_S = 0.05
PR_SET_PDEATHSIG = 1
OPEN_ENDED = "job.steps=100000"
"""For a run that must not end before its test is done with it; `stops_whole` ends it."""
SHORT = "rollout.max_new_tokens=128"
"""For a run whose test kills only while requests are decoded: half as long steps, still of several waves."""
RELEASED_STEPS = 3
"""After this many steps, a step is in a checkpoint before the newest: its batch is released, and audited."""
CALM = "liveness.dead_s=10"  # where a test sets no other: a process that waits for a core is not dead


class NotYet(AssertionError):
    """A condition did not come true in time, or the run ended before it did."""


class RealRun:
    """One run under `root`; at first not started.

    Args:
        root: an empty folder.
        config: settings file.
        settings: settings over the file's, as `--set` takes them.
    """

    def __init__(self, root: Path, config: Path, settings: Sequence[str]) -> None:
        self.runs_dir = root / "runs"
        self.output = root / "rlctl.out"
        self.records: list[AnyRecord] = []
        self._config = config
        self._settings = [CALM, *settings]
        self._process: subprocess.Popen[bytes] | None = None
        self._run: RunDir | None = None
        self._follower: HistoryFollower | None = None

    # -- rlctl --

    def start(self) -> None:
        """Start `rlctl run`, and wait until its folder is there."""
        sets = [word for setting in self._settings for word in ("--set", setting)]
        self._rlctl("run", str(self._config), *sets)
        self.wait(lambda: every(self.runs_dir), "the run's folder")
        self._run = every(self.runs_dir)[0]
        self._follower = HistoryFollower(self._run.history)

    def resume(self) -> None:
        """Start `rlctl resume` of this run."""
        self._rlctl("resume", self.run.id)

    def interrupt(self) -> int:
        """Ctrl-C to `rlctl`, which stops the run in order; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self.ends()

    def kill_rlctl(self) -> None:
        """SIGKILL to `rlctl` itself."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(WAIT_S)

    def ends(self) -> int:
        """Wait for the end of `rlctl`; returns its exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(2 * WAIT_S)
        except subprocess.TimeoutExpired:
            raise NotYet(f"the run does not end\n{self.story()}") from None
        self.look()
        return code

    def _rlctl(self, *arguments: str) -> None:
        argv = [
            sys.executable,
            "-m",
            "gleaner.rlctl",
            *arguments,
            "--plain",
            "--runs-dir",
            str(self.runs_dir),
        ]
        with self.output.open("ab") as out:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=_die_with_the_tests
            )

    @property
    def run(self) -> RunDir:
        """Its folder."""
        assert self._run is not None
        return self._run

    @property
    def report(self) -> Report:
        """report.json."""
        return msgspec.json.decode((self.run.path / "report.json").read_bytes(), type=Report)

    # -- waiting --

    def wait(self, condition: Callable[[], object], what: str, limit_s: float = WAIT_S) -> None:
        """Wait until `condition` holds. Raises NotYet if it does not, or if `rlctl` ends before."""
        deadline = time.monotonic() + limit_s
        while not condition():
            ended = self._process is None or self._process.poll() is not None
            if ended and not condition():
                raise NotYet(f"{what}: the run ended before\n{self.story()}")
            if time.monotonic() > deadline:
                raise NotYet(f"{what}: not within {limit_s:.0f} s\n{self.story()}")
            time.sleep(POLL_S)

    def look(self) -> list[AnyRecord]:
        """The history so far."""
        if self._follower is not None:
            self.records += self._follower.poll()
        return self.records

    def steps(self) -> list[int]:
        """The finished steps in the history."""
        return [record.step for record in self.look() if isinstance(record, Step)]

    def tokens(self) -> int:
        """Tokens collected so far."""
        return max(
            (record.tokens_collected for record in self.look() if isinstance(record, Sample)), default=0
        )

    def restarts(self, child: str, cause: str = "SIGKILL") -> int:
        """How often this child (`<host>/<kind>`) was restarted for this cause."""
        records = (record for record in self.look() if isinstance(record, Restart))
        return sum(record.actor == child and record.cause == cause for record in records)

    def events(self, event: str, node: str = "") -> int:
        """How often hosts joined, left, were killed, noticed or drained."""
        records = (record for record in self.look() if isinstance(record, Node))
        return sum(record.event == event and node in ("", record.node) for record in records)

    def until_tokens_flow(self, more: int = 1) -> None:
        """Wait until `more` tokens were collected from now on and requests are being decoded."""
        goal = self.tokens() + more
        self.wait(lambda: self.tokens() >= goal, f"{more} more tokens")
        self.wait(lambda: self.figures().executing > 0, "requests in flight")

    def until_step_after(self, step: int, what: str) -> None:
        """Wait for the end of a step after this one."""
        self.wait(lambda: max(self.steps(), default=0) > step, f"a step {what}")

    def figures(self) -> RolloutFigures:
        """The manager's current counts; nothing in flight while it does not answer."""
        with contextlib.suppress(AskFailed):
            return asyncio.run(self._figures())
        return msgspec.convert(
            dict.fromkeys(RolloutFigures.__struct_fields__, 0) | {"refused": {}}, RolloutFigures
        )

    async def _figures(self) -> RolloutFigures:
        async with connect_to_run(self.run) as cluster:
            return await cluster.ask(
                "rollout/manager", RolloutStatus(), expect=RolloutFigures, deadline_s=30.0
            )

    # -- processes --

    def one(self, kind: str, node: str = "") -> Proc:
        """Wait for a process of this kind."""
        self.wait(lambda: find(self.run, kind, node), f"a process {node}/{kind}")
        return find(self.run, kind, node)[0]

    def replaced(self, killed: Proc) -> None:
        """Wait until another process has replaced this one."""
        self.wait(
            lambda: any(proc.pid != killed.pid for proc in find(self.run, killed.kind, killed.node)),
            f"another {killed}",
        )

    def gone(self, processes: Sequence[psutil.Process], what: str) -> None:
        """Wait until none of these runs."""
        self.wait(lambda: not any(map(is_alive, processes)), f"the end of {what}")

    def ends_whole(self) -> None:
        """Check that the run ends by itself with code 0, keeps every promise, and leaves nothing behind."""
        assert self.ends() == 0, self.story()
        assert broken(self.run) == [], self.story()
        assert self.left() == []
        tokens = self.report.tokens
        assert (tokens.lost, tokens.generated_twice) == (0, 0)

    def stops_whole(self) -> None:
        """Stop the run as a user does: it ends in order, kept every promise, and leaves nothing behind."""
        assert self.interrupt() == INTERRUPTED, self.story()
        assert broken(self.run, complete=False) == [], self.story()
        assert self.left() == []

    def incarnations(self, instance: str, since_step: int = 1) -> list[int]:
        """The incarnations of an instance that made tokens of these steps, in order; of a stopped run."""
        evidence = gather(self.run.path, self.run.config(), complete=False)
        return sorted(
            {
                span.incarnation
                for ledger in evidence.ledgers
                if (step_of(ledger.batch) or 0) >= since_step
                for request in ledger.requests
                for span in request.spans
                if span.instance == instance
            }
        )

    def left(self) -> list[str]:
        """The remains of the run a moment after its end."""
        deadline = time.monotonic() + WAIT_S
        while (found := left_behind(self.run)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return found

    def wait_until_all_died(self) -> None:
        """Wait until no process of the run is left, without any help. Memory is kept for a resume."""
        deadline = time.monotonic() + WAIT_S
        while left := remains(self.run):
            assert time.monotonic() < deadline, f"still alive: {left}"
            time.sleep(POLL_S)

    def forget_memory(self) -> None:
        """Do to the host's shared memory what a reboot does."""
        for folder in self.run.memory():
            shutil.rmtree(folder)

    def close(self) -> None:
        """Kill the processes that still run, and free their memory."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(WAIT_S)
        if self._run is None:
            return
        for process in remains(self._run):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for folder in self._run.memory():
            shutil.rmtree(folder, ignore_errors=True)

    def story(self) -> str:
        """For a failure: the last output of rlctl, and the warnings in every log."""
        shown = self.output.read_text(errors="replace").splitlines()[-30:]
        return "\n".join([*shown, *self.warnings()[-60:]])

    def warnings(self) -> list[str]:
        """Every warning and error in the logs of the run, oldest first."""
        if self._run is None:
            return []
        found = []
        for log in self._run.nodes.glob("*/logs/*.log"):
            for line in log.read_text(errors="replace").splitlines():
                if any(f" {level} " in line for level in ("WARNING", "ERROR", "CRITICAL")):
                    day, clock, rest = line.split(" ", 2)
                    found.append(f"{day} {clock} {log.parent.parent.name}/{log.stem} {rest}")
        return sorted(found)


MakeRun = Callable[..., RealRun]
"""Makes a run with settings over those of `small.toml` (the fixture `make_run`)."""


def _die_with_the_tests() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def rlctl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run another `rlctl` command to its end."""
    argv = [sys.executable, "-m", "gleaner.rlctl", *arguments]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=WAIT_S, check=False, env=dict(os.environ)
    )
