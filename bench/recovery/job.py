"""Job on this machine, started by `rlctl run`; it dies with this process."""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from gleaner.chaos.real.node import tied_to_us
from gleaner.chaos.run_processes import Proc, find
from gleaner.rlctl.head import remains
from gleaner.rlctl.runs import RunDir, every

SETTINGS = Path(__file__).with_name("settings.toml")
START_S = 180.0  # model, head, hosts, first weights; seconds on a quiet machine
STOP_S = 30.0
POLL_S = 0.1
_TIED = (
    "import sys; from gleaner.supervisor.process import die_with_parent; die_with_parent(); "
    "from gleaner.rlctl.__main__ import main; sys.exit(main())"
)


class JobFailed(RuntimeError):
    """The job ended, or an event was late; the text names it, with the last output."""


class RunningJob:
    """One of them."""

    def __init__(self, process: subprocess.Popen[bytes], run: RunDir, output: Path) -> None:
        self._process, self.run, self._output = process, run, output

    @property
    def journal(self) -> Path:
        """Journal of the manager's process."""
        return self.run.head / "journal" / self.run.id / "rollout.sqlite"

    def wait(self, condition: Callable[[], bool], what: str, limit_s: float, poll_s: float = POLL_S) -> None:
        """Wait until it holds. Raises JobFailed."""
        until_s = time.monotonic() + limit_s
        while not condition():
            if self._process.poll() is not None or time.monotonic() > until_s:
                output = self._output.read_text(errors="replace").splitlines()[-10:]
                raise JobFailed(f"{what}: not within {limit_s:.0f} s\n" + "\n".join(output))
            time.sleep(poll_s)

    def engine(self, node: str) -> Proc | None:
        """The process of its engine."""
        return next(iter(find(self.run, "engine", node)), None)


@contextmanager
def running_job(folder: Path, settings: Sequence[str]) -> Iterator[RunningJob]:
    """The job of `settings.toml` with these settings over it, once it has a preemptible host."""
    runs, output = folder / "runs", folder / "rlctl.out"
    sets = [word for setting in settings for word in ("--set", setting)]
    argv = [sys.executable, "-c", _TIED, "run", str(SETTINGS), "--plain", "--runs-dir", str(runs), *sets]
    with output.open("ab") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=tied_to_us(), process_group=0
        )
    run: RunDir | None = None
    try:
        until_s = time.monotonic() + START_S
        while not (found := every(runs)):
            if process.poll() is not None or time.monotonic() > until_s:
                raise JobFailed(f"the run did not begin\n{output.read_text(errors='replace')[-2000:]}")
            time.sleep(POLL_S)
        run = found[0]
        job = RunningJob(process, run, output)
        job.wait(lambda: job.engine("spot-1") is not None, "a preemptible host", START_S)
        yield job
    finally:
        process.kill()
        process.wait(STOP_S)
        if run is not None:
            _remove(run)


def _remove(run: RunDir) -> None:
    for process in remains(run):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for folder in run.memory():
        shutil.rmtree(folder, ignore_errors=True)
