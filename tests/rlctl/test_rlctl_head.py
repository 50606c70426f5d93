"""The head of a run as a real process: start, cause of its end, cleanup."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from gleaner.actors.cluster.job import SHARED_MEMORY
from gleaner.configs.load import load
from gleaner.configs.schema import Config
from gleaner.nodeagent.defaults import LOOK_S
from gleaner.nodeagent.state_lock import CONTROL_SOCKET
from gleaner.rlctl import control, runs
from gleaner.rlctl.client import connect_to_run
from gleaner.rlctl.errors import FAILED, USAGE, CommandError
from gleaner.rlctl.head import RUN_VARIABLE, remains, running_head, sweep, wait_for_remains
from gleaner.supervisor import Health

pytestmark = pytest.mark.realprocess


@pytest.fixture
def config() -> Config:
    return load("quickstart")


@pytest.fixture
def run(tmp_path: Path, config: Config) -> runs.RunDir:
    return runs.create(tmp_path / "runs", config)


async def test_head_starts_answers_and_ends_with_its_block(run: runs.RunDir, config: Config) -> None:
    async with running_head(run, config) as head:
        agent = await head.found()
        assert agent.pid == head.pid
        assert {process.pid for process in remains(run)} >= {head.pid}
        async with connect_to_run(run) as cluster:
            assert {address.name for address in await cluster.names()} >= {"cluster/scheduler"}
        seen = await asyncio.to_thread(control.look, run.head, LOOK_S)
        assert [(state.node, state.pid) for state in seen.states] == [("head", head.pid)]
    assert remains(run) == []
    assert not (run.head / CONTROL_SOCKET).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(head.pid, 0)


async def test_killed_head_is_reported_without_unrelated_log_lines(run: runs.RunDir, config: Config) -> None:
    async with running_head(run, config) as head:
        await head.found()
        os.kill(head.pid, signal.SIGKILL)
        problem = await asyncio.wait_for(head.ended(), 60)
    assert problem.code == FAILED
    assert "SIGKILL" in problem.lines[0]
    assert "listens at" in (run.head / "logs" / "agent.log").read_text()
    assert not any(" INFO " in line for line in problem.lines)
    assert "have no error" in problem.lines[1]


async def test_head_is_healthy_until_it_is_stopped_and_then_ended_with_cause(
    run: runs.RunDir, config: Config
) -> None:
    """A run asks its head first when the model is made, which may take longer than a head may start."""
    async with running_head(run, config) as head:
        await head.found()
        async with connect_to_run(run) as cluster:
            hung = cluster.head_hung(Health(silent_s=0.4, start_s=0.8), head.cpu_s)
            checking = asyncio.create_task(hung)
            done, _ = await asyncio.wait([checking], timeout=2.0)
            assert not done, "a head that was asked nothing yet is healthy"
            checking.cancel()
            await cluster.probe()
            assert head.cpu_s() > 0.0
            checking = asyncio.create_task(cluster.head_hung(Health(silent_s=1.0), head.cpu_s))
            done, _ = await asyncio.wait([checking], timeout=1.5)
            assert not done, "a head that answers is healthy"
            os.kill(head.pid, signal.SIGSTOP)
            head.kill(await asyncio.wait_for(checking, 60))
        problem = await asyncio.wait_for(head.ended(), 60)
    assert problem.lines[0].startswith(f"the head of {run.id} ended with signal SIGKILL (no heartbeat for 1.")


async def test_head_that_cannot_start_reports_why(run: runs.RunDir, tmp_path: Path) -> None:
    config = load("quickstart", [f"network.keys={tmp_path / 'nowhere'}"])
    async with running_head(run, config) as head:
        with pytest.raises(CommandError, match="nowhere") as problem:
            await head.found()
    assert problem.value.code == USAGE


async def test_leftovers_of_a_run_are_killed_and_freed(
    run: runs.RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.rlctl.head.VANISH_S", 0.2)
    folder = SHARED_MEMORY / f"gleaner-{run.id}-spot-1"
    folder.mkdir()
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = await asyncio.create_subprocess_exec(*sleeper, env={**os.environ, RUN_VARIABLE: str(run.path)})
    other = await asyncio.create_subprocess_exec(*sleeper)
    try:
        with pytest.raises(CommandError, match="still live"):
            await wait_for_remains(run)
        assert await sweep(run) == 1
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
        assert other.returncode is None
        assert not folder.exists()
    finally:
        other.kill()
        await other.wait()
