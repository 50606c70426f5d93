"""Two jobs that share a reward service with hosts of its own, which are killed and stopped meanwhile."""

import contextlib
import json
import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from real_runs import RealRun, rlctl

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.reward import RewardState
from gleaner.actors.reward.local_services import WORKERS
from gleaner.actors.rollout.state.events import Scored
from gleaner.chaos.run_processes import identify
from gleaner.rlctl.audit.run_files import gather
from gleaner.rlctl.errors import NOTHING, OK
from gleaner.supervisor.journal.file import contents_of
from gleaner.supervisor.journal.store_choice import view
from tests.rlctl.served_hosts import Served, agent_pid, until

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(900)]

STEPS, PROMPTS, SAMPLES, HELDOUT = 5, 16, 4, 8
SCORER = """
import time


def score(response, answer):
    time.sleep(0.2)
    return float(len(response) % 2)
"""
JOB = f"""
[job]
steps = {STEPS}

[[task]]
name = "words"
data = "words.jsonl"
heldout_problems = {HELDOUT}

[rollout]
prompts = {PROMPTS}
samples = {SAMPLES}
max_new_tokens = 64

[engine]
slots = 8                   # several waves a step: responses reach the service all the time

[fleet]
n_prem_max = 0

[reward]
workers = 1
host_workers = 2

[reward.function]
call = "shared_reward:score"
deadline_s = 5.0

[liveness]
dead_s = 4.0
"""
JOBS = ("math", "code")
SCORER_MODULE = "gleaner.actors.reward.worker"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings, problems and the function that scores them."""
    (tmp_path / "shared_reward.py").write_text(SCORER)
    (tmp_path / "job.toml").write_text(JOB)
    rows = [{"prompt": f"spell word {number}", "answer": str(number)} for number in range(128)]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLEANER_API_KEYS", raising=False)
    return tmp_path


@contextlib.contextmanager
def both_running(folder: Path, model_dir: Path, url: str) -> Iterator[list[RealRun]]:
    """A run of each job; their verdicts come from the service."""
    runs = []
    for job in JOBS:
        root = folder / job
        root.mkdir()
        settings = [f"model.path={model_dir}", f"job.name={job}", f"reward.share.with={url}"]
        runs.append(RealRun(root, folder / "job.toml", settings))
    try:
        for run in runs:
            run.start()
        yield runs
    finally:
        for run in runs:
            run.close()


def accounts(url: str) -> dict[str, dict[str, Any]]:
    """What the service has counted of each job."""
    shown = rlctl("reward", "ps", "--url", url, "--json")
    assert shown.returncode == OK, shown.stderr
    return {job["name"]: job for job in json.loads(shown.stdout)["jobs"]}


def state(url: str) -> RewardState:
    """The service's state; sooner than by a process of its own."""
    with urllib.request.urlopen(f"{url}/state", timeout=60.0) as answer:
        return msgspec.json.decode(answer.read(), type=RewardState)


def until_both_wait_for(url: str, host: str) -> None:
    """Wait until this host has items, and each job has open ones."""

    def holds() -> bool:
        found = state(url)
        open_ = {job.name: job.queued + job.running for job in found.jobs}
        return all(open_.get(job) for job in JOBS) and any(
            one.name == host and one.items for one in found.hosts
        )

    until(holds, f"items of both jobs, some on {host}")


def is_left_out(url: str, host: str) -> bool:
    """Whether a host is gone, or gets no new items."""
    return all(one.barred for one in state(url).hosts if one.name == host)


def verdicts(run: RealRun) -> Counter[str]:
    """How many verdicts the rollout manager has journaled of each request."""
    found: Counter[str] = Counter()
    for journal in run.run.nodes.glob(f"*/journal/{run.run.id}/*.sqlite"):
        with view(journal) as opened:
            if MANAGER in opened.names():
                content = contents_of(opened, [MANAGER])[MANAGER]
                found.update(one.request for one in content.messages if isinstance(one, Scored))
    return found


def assert_each_verdict_counted_once(run: RealRun) -> None:
    """Every request has a verdict of the shared service, and one only, where the run counts verdicts."""
    trained = STEPS * PROMPTS * SAMPLES
    ledgers = gather(run.run.path, run.run.config(), complete=True).ledgers
    released = [one for ledger in ledgers for one in ledger.requests if not one.dropped]
    assert len(released) >= trained
    assert [one.request for one in released if one.score is None or one.status != "ok"] == []
    counted = run.report.verdicts
    assert counted is not None
    assert counted.counts == {"ok": len(released)}
    assert [request for request, count in verdicts(run).items() if count > 1] == []


def assert_tier_of_the_job_is_shown(run: RealRun) -> None:
    """`rlctl reward` answers for a job that runs, as for the service."""
    chosen = ("--runs-dir", str(run.runs_dir), "--run", run.run.id)
    for words in (("ps",), ("top", "--once")):
        shown = rlctl("reward", *words, *chosen, "--json")
        assert shown.returncode == OK, shown.stderr
        assert [one["name"] for one in json.loads(shown.stdout)["hosts"]] == [WORKERS]
    tapped = rlctl("reward", "tap", "step-1/99/0", *chosen)
    assert (tapped.returncode, tapped.stdout) == (NOTHING, "step-1/99/0 is not here\n")


def command_line(process: psutil.Process) -> list[str]:
    """Empty for a process that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(process.cmdline())
    return []


def reward_host(folder: Path, name: str) -> psutil.Process:
    """The process of a host that has its items."""
    below = psutil.Process(agent_pid(folder / "service" / "nodes" / name)).children(recursive=True)
    known = [identify(each, command_line(each)) for each in below]
    (found,) = [one.process for one in known if one is not None and one.kind == "reward-host"]
    return found


def scorer(service: Served) -> psutil.Process:
    """The worker process of the service itself."""
    below = psutil.Process(service.process.pid).children()
    (found,) = [one for one in below if SCORER_MODULE in command_line(one)]
    return found


def test_jobs_count_each_verdict_once_when_their_shared_hosts_are_killed(
    folder: Path, model_dir: Path
) -> None:
    names = ("rewards-1", "rewards-2")
    with Served(folder, "service", "--listen", "127.0.0.1:0", "--hosts", "2") as service:
        service.until_hosts(*names)
        url = service.url
        with both_running(folder, model_dir, url) as runs:
            until_both_wait_for(url, "rewards-1/reward")
            first = agent_pid(folder / "service" / "nodes" / "rewards-1")
            os.kill(first, signal.SIGKILL)

            until_both_wait_for(url, WORKERS)
            worker = scorer(service)
            worker.kill()

            until_both_wait_for(url, "rewards-2/reward")
            stopped = reward_host(folder, "rewards-2")
            stopped.suspend()
            until(lambda: is_left_out(url, "rewards-2/reward"), "the host that does not answer left out")
            with contextlib.suppress(psutil.NoSuchProcess):  # its agent may have replaced it
                stopped.resume()

            until_both_wait_for(url, WORKERS)
            proxy = runs[0].one("reward")
            proxy.kill()  # this job asks again for what it had asked
            assert_tier_of_the_job_is_shown(runs[1])

            for run in runs:
                run.ends_whole()
                assert_each_verdict_counted_once(run)
            assert runs[0].restarts("head/reward") == 1
            service.until_hosts(*names)
            assert agent_pid(folder / "service" / "nodes" / "rewards-1") not in (0, first)
            assert scorer(service) != worker
            found = accounts(url)
        assert sorted(found) == sorted(JOBS)
        for job, run in zip(JOBS, runs, strict=True):
            counted = run.report.verdicts
            assert counted is not None
            assert found[job]["scored"] >= sum(counted.counts.values())
            assert (found[job]["queued"], found[job]["running"], found[job]["lost"]) == (0, 0, 0)
        assert service.ends(signal.SIGTERM) == OK
    assert "host rewards-1 (reward) killed" in (folder / "service" / "logs" / "rewards.log").read_text()
