"""Jobs of a campaign: one `rlctl run` after the other on the driver's host.

Owns the driving process and the reading of histories. Progress is counted over all jobs, so a job may end
while the campaign waits for a recovery.
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gleaner.actors.training.history import AnyRecord, End, HistoryFollower, Sample, Step
from gleaner.chaos.real.cluster import HEAD, RESERVED, Cluster
from gleaner.chaos.real.node import tied_to_us
from gleaner.configs.load import dump
from gleaner.configs.schema import Config
from gleaner.rlctl.report.model import Report
from gleaner.rlctl.runs import RunDir, every

MODEL_S = 180.0  # to make one; seconds on a quiet machine
_TIED = (  # `rlctl` dies with this process, as the node agents do
    "import sys; from gleaner.supervisor.process import die_with_parent; die_with_parent(); "
    "from gleaner.rlctl.__main__ import script; sys.exit(script())"
)


class JobsFailed(RuntimeError):
    """A model could not be made, or a job not driven; the text gives the cause."""


@dataclass(slots=True, eq=False)
class Job:
    """One of them. `code`: the exit code of its `rlctl run`, once it ended."""

    number: int
    process: subprocess.Popen[bytes]
    output: Path
    known: frozenset[str]
    run: RunDir | None = None
    follower: HistoryFollower | None = None
    records: list[AnyRecord] = field(default_factory=list)
    step: int = 0
    tokens: int = 0
    looks: int = 0
    last_look: Sample | None = None
    code: int | None = None

    def take(self, records: Sequence[AnyRecord]) -> None:
        """New records of its history."""
        for record in records:
            match record:
                case Step():
                    self.step = max(self.step, record.step)
                case Sample():
                    self.looks, self.last_look = self.looks + 1, record
                    self.tokens = max(self.tokens, record.tokens_collected)
                case End():
                    self.tokens = record.tokens_collected
        self.records += records

    def report(self) -> Report | None:
        """Its report.json, if it wrote one."""
        if self.run is None or not (self.run.path / "report.json").is_file():
            return None
        return msgspec.json.decode((self.run.path / "report.json").read_bytes(), type=Report)


@dataclass(slots=True)
class Progress:
    """Over all jobs: finished work, and the newest poll of the fleet. `looks`: number of polls, which
    identifies a new one."""

    steps: int = 0
    tokens: int = 0
    looks: int = 0
    serving: int = 0
    reserved: int = 0
    preemptible: int = 0
    steps_left: int = 0


class Jobs:
    """See the module.

    Args:
        cluster: where they run.
        config: settings of each; the seed goes up by one a job.
    """

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self._cluster = cluster
        self._config = config
        self.done: list[Job] = []
        self.now: Job | None = None

    @staticmethod
    def make_model(folder: Path, config: Config) -> Path:
        """A model for all of them, made by `rlctl model new`. Raises JobsFailed."""
        model, settings = folder / "model", folder / "model.toml"
        unmade = msgspec.structs.replace(config.model, path="")
        settings.write_text(dump(msgspec.structs.replace(config, model=unmade)))
        argv = [sys.executable, "-c", _TIED, "model", "new", str(model), "--config", str(settings), "--json"]
        made = subprocess.run(
            argv, capture_output=True, text=True, timeout=MODEL_S, check=False, env=tied_to_us()
        )
        if made.returncode != 0:
            raise JobsFailed(f"no model: {made.stderr.strip()[-500:]}")
        return model

    def begin(self) -> None:
        """Start the next one."""
        number = len(self.done) + 1
        seed = (self._config.job.seed + number - 1) % 2**32
        job = msgspec.structs.replace(self._config.job, seed=seed)
        settings = self._cluster.root / f"job-{number}.toml"
        settings.write_text(dump(msgspec.structs.replace(self._config, job=job)))
        argv = [
            "run",
            str(settings),
            "--plain",
            "--runs-dir",
            str(self._cluster.runs),
            *self._cluster.access(),
        ]
        argv += [
            word for node in (HEAD, RESERVED) for word in ("--state-dir", str(self._cluster.state(node)))
        ]
        output = self._cluster.root / "logs" / f"job-{number}.out"
        known = frozenset(run.id for run in every(self._cluster.runs))
        with output.open("ab") as out:
            process = self._cluster.driver.popen(
                [sys.executable, "-c", _TIED, *argv],
                output=out,
                env=tied_to_us(),
            )
        self.now = Job(number, process, output, known)

    def look(self) -> Progress:
        """Read new records, and note the end of the job."""
        job = self.now
        if job is not None:
            code = job.process.poll()
            self._read(job)
            if code is not None:
                job.code = code
                self.done.append(job)
                self.now = None
        return self._progress()

    def problems(self) -> list[str]:
        """Jobs that did not end as they should have, in words."""
        return [
            f"job {job.number} ended with exit code {job.code}: {' / '.join(last_lines(job.output))}"
            for job in self.done
            if job.code != 0
        ]

    def _read(self, job: Job) -> None:
        if job.run is None:
            new = [run for run in every(self._cluster.runs) if run.id not in job.known]
            if not new:
                return
            job.run, job.follower = new[0], HistoryFollower(new[0].history)
        assert job.follower is not None
        job.take(job.follower.poll())

    def _progress(self) -> Progress:
        every_job = [*self.done, *([self.now] if self.now is not None else [])]
        progress = Progress(
            steps=sum(job.step for job in every_job),
            tokens=sum(job.tokens for job in every_job),
            looks=sum(job.looks for job in every_job),
        )
        if self.now is not None:
            progress.steps_left = self._config.job.steps - self.now.step
            if (look := self.now.last_look) is not None:
                progress.serving = look.serving
                progress.reserved, progress.preemptible = look.reserved, look.preemptible
        return progress


def last_lines(file: Path, count: int = 3) -> list[str]:
    """Last lines of a command's output."""
    lines = [line.strip() for line in file.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-count:]
