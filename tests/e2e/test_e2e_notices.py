"""Real hosts that get a notice from a cloud's metadata service, in a real run."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from metadata_servers import AwsServer
from real_runs import OPEN_ENDED, MakeRun, RealRun

from gleaner.chaos.invariants import broken
from gleaner.nodeagent.files import find_agent
from gleaner.supervisor.process import PARENT_VARIABLE

pytestmark = [pytest.mark.long, pytest.mark.realprocess, pytest.mark.timeout(900)]

FLOWING = 200


@contextmanager
def aws() -> Iterator[AwsServer]:
    """A metadata service in a thread, of one host."""
    server, ready, over = AwsServer(), threading.Event(), threading.Event()

    async def serve() -> None:
        async with server:
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    try:
        assert ready.wait(60.0)
        yield server
    finally:
        over.set()
        thread.join(60.0)


@contextmanager
def host(run: RealRun, root: Path, name: str, server: AwsServer) -> Iterator[subprocess.Popen[bytes]]:
    """A preemptible host that joins the run from outside, as a spot instance of AWS."""
    head = find_agent(run.run.nodes / "head").endpoint
    argv = [sys.executable, "-m", "gleaner.nodeagent", "start", "--join", head, "--name", name]
    argv += ["--state-dir", str(root / name), "--notices", "aws", "--notices-url", server.url]
    env = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    with (root / f"{name}.out").open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, env=env)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(60.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60.0)


def status(root: Path, name: str) -> str:
    argv = [sys.executable, "-m", "gleaner.nodeagent", "status", "--state-dir", str(root / name)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60.0, check=False).stdout


def test_noticed_host_drains_and_withdrawn_notice_keeps_serving(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(OPEN_ENDED, "fleet.n_prem_max=0", "rollout.prompts=8")
    run.start()
    run.wait(lambda: run.events("joined", "reserved-1"), "a head to join")
    goes, stays = "cloud-1", "cloud-2"
    with (
        aws() as ends,
        aws() as spared,
        host(run, tmp_path, goes, ends) as process,
        host(run, tmp_path, stays, spared),
    ):
        run.wait(lambda: run.figures().serving_preemptible == 2, "both instances at work")
        run.until_tokens_flow(FLOWING)
        ends.interrupt("terminate", 8.0)
        spared.interrupt("terminate", 120.0)
        run.wait(lambda: run.events("drained", stays), "the drain of the one that stays")
        assert "aws; says notice terminate at" in status(tmp_path, stays)
        spared.take_back()
        run.wait(lambda: run.events("left", goes), "the end of the one that goes")
        assert process.wait(60.0) == 0
        run.wait(lambda: run.events("spared", stays), "the end of the notice")
        back = len(run.steps()) + 2  # the current step still has tokens from before
        run.until_step_after(back, "with the spared host")
        assert "aws; says none, asked" in status(tmp_path, stays)
        assert run.interrupt() == 130
    assert broken(run.run, complete=False) == []
    assert run.incarnations(f"{stays}/engine", back), "it never worked again"
    assert run.incarnations(f"{goes}/engine"), "it should have work to hand over"
    assert run.incarnations(f"{goes}/engine", back) == []
    assert [run.events(event, goes) for event in ("noticed", "drained", "left", "killed")] == [1, 1, 1, 0]
    assert [run.events(event, stays) for event in ("noticed", "drained", "spared")] == [1, 1, 1]
