"""A job with reward hosts of its own whose planner and host are killed and stopped while it scores."""

import contextlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil
import pytest
from real_runs import OPEN_ENDED, RealRun, rlctl
from test_e2e_shared_rewards import JOB, PROMPTS, SAMPLES, SCORER, command_line, verdicts

from gleaner.actors.protocol.reward import RewardState
from gleaner.chaos.run_processes import identify
from gleaner.rlctl.audit.evidence import lineage
from gleaner.rlctl.audit.run_files import gather
from gleaner.rlctl.errors import OK
from tests.rlctl.served_hosts import agent_pid, host

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(900)]

HOSTS = ("rewards-1", "rewards-2")
"""One is killed, the other one stopped and let go on."""


@pytest.fixture
def run(tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealRun]:
    """A job whose verifier, code of its own, takes 0.2 s for a response."""
    (tmp_path / "shared_reward.py").write_text(SCORER)
    (tmp_path / "job.toml").write_text(JOB)
    rows = [{"prompt": f"spell word {number}", "answer": str(number)} for number in range(128)]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    planner = ["reward.planner.kind=distrs", f"reward.planner.min_workers={1 + 2 * len(HOSTS)}"]
    settings = [f"model.path={model_dir}", "reward.journal_above_s=0", *planner, OPEN_ENDED]
    made = RealRun(tmp_path, tmp_path / "job.toml", settings)
    try:
        made.start()
        yield made
    finally:
        made.close()


def state(run: RealRun) -> RewardState:
    """Of the job's own tier."""
    shown = rlctl("reward", "ps", "--runs-dir", str(run.runs_dir), "--run", run.run.id, "--json")
    assert shown.returncode == OK, shown.stderr
    return msgspec.json.decode(shown.stdout, type=RewardState)


def until_host_has_items(run: RealRun, name: str) -> None:
    """Wait until this host scores for the job."""

    def holds() -> bool:
        return any(one.name == f"{name}/reward" and one.items for one in state(run).hosts)

    run.wait(holds, f"items on {name}")


def scoring_process(folder: Path, name: str) -> psutil.Process:
    """The process of a host that has its items."""
    for each in psutil.Process(agent_pid(folder / name)).children(recursive=True):
        known = identify(each, command_line(each))
        if known is not None and known.kind == "reward-host":
            return known.process
    raise AssertionError(f"{name} has no reward-host")


def is_over(process: psutil.Process) -> bool:
    """Whether it ran into its health check, or was replaced."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_each_verdict_counts_once_when_planner_and_hosts_are_killed_and_stopped(
    run: RealRun, tmp_path: Path
) -> None:
    at = run.run.head / "agent.json"
    run.wait(at.exists, "the head's address")
    address = json.loads(at.read_text())["endpoint"]
    with ExitStack() as hosts:
        for name in HOSTS:
            hosts.enter_context(host(tmp_path, name, address, "--listen", "tcp://127.0.0.1:0"))
        until_host_has_items(run, "rewards-1")
        scoring_process(tmp_path, "rewards-1").kill()

        planner = run.one("reward-planner")
        planner.process.kill()
        run.replaced(planner)

        until_host_has_items(run, "rewards-2")
        stopped = scoring_process(tmp_path, "rewards-2")
        stopped.suspend()
        run.wait(
            lambda: is_over(stopped) or any(one.barred for one in state(run).hosts),
            "the stopped host left out",
        )
        with contextlib.suppress(psutil.NoSuchProcess):  # its agent may have replaced it
            stopped.resume()

        planner = run.one("reward-planner")
        planner.process.suspend()
        run.replaced(planner)  # its heartbeats are missing

        run.until_step_after(max(run.steps(), default=0) + 1, "with all verdicts after the last fault")
        run.stops_whole()
    evidence = gather(run.run.path, run.run.config(), complete=False)
    line = {f"step-{step}" for step in lineage(evidence.trained)}
    trained = [one for ledger in evidence.ledgers if ledger.batch in line for one in ledger.requests]
    assert len(trained) >= len(line) * PROMPTS * SAMPLES > 0
    assert [one.request for one in trained if one.score is None or one.status != "ok"] == []
    assert [request for request, count in verdicts(run).items() if count > 1] == []
    assert run.restarts("head/reward-planner") >= 1
