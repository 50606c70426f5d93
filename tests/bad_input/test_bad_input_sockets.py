"""Garbage on every socket of a run: each process survives and counts it; the job continues until Ctrl-C."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from real_runs import OPEN_ENDED, RealRun
from tiny_command import CONFIG, command

from gleaner.actors.training.history import Restart
from gleaner.chaos import socket_attacks
from gleaner.chaos.run_processes import is_alive
from gleaner.nodeagent.cluster_view import Processes
from gleaner.rlctl.client import connect_to_run
from gleaner.rlctl.head import remains

pytestmark = [pytest.mark.realprocess, pytest.mark.timeout(900)]

GROWTH_BYTES = 150 << 20
"""More than a few messages at the limit; far less than the garbage sent."""
EVERY_LISTENER_REFUSED = {
    "handshake",
    "no-identity",
    "not-ours",
    "wrong-parts",
    "unknown-version",
    "bad-field",
    "oversize",
}


@pytest.fixture
def run(tmp_path: Path, checkpoint: Path) -> Iterator[RealRun]:
    made = RealRun(tmp_path, CONFIG, [f"model.path={checkpoint}", OPEN_ENDED, "rollout.prompts=8"])
    made.start()
    made.wait(lambda: len(made.steps()) >= 1, "a step")
    yield made
    made.close()


def listening(process: psutil.Process) -> list[int]:
    return sorted({it.laddr.port for it in process.net_connections("tcp") if it.status == psutil.CONN_LISTEN})


def look(run: RealRun) -> Processes:
    async def ask() -> Processes:
        async with connect_to_run(run.run) as cluster:
            return await cluster.processes(deadline_s=60.0)

    return asyncio.run(ask())


@pytest.mark.long
def test_run_survives_garbage_on_every_port_and_ctrl_c_prints_its_resume(run: RealRun) -> None:
    ports = {process: listening(process) for process in remains(run.run)}
    listeners = [process for process, own in ports.items() if own]
    assert len(listeners) == 9
    every_port = [port for own in ports.values() for port in own]
    assert len(every_port) == 12  # nine control sockets, the token stream, two bulk servers
    before = {process: process.memory_info().rss for process in listeners}

    with socket_attacks.slow(every_port, each=10) as speak:
        for port in every_port:
            socket_attacks.throw(port)
            speak()
        shown = command("rlctl", "ps", "--json", "--runs-dir", str(run.runs_dir))

    assert shown.returncode == 0, shown.stderr
    assert {state["node"] for state in json.loads(shown.stdout)["processes"]} >= {"head", "reserved-1"}
    assert all(is_alive(process) for process in listeners), run.story()
    for process, rss in before.items():
        assert process.memory_info().rss < rss + GROWTH_BYTES, process.cmdline()
    deadline = time.monotonic() + 60.0
    while unaware := [
        f"{state.node}/{state.process}: {state.refused}"
        for state in look(run).states
        if not state.refused.keys() >= EVERY_LISTENER_REFUSED
    ]:
        assert time.monotonic() < deadline, unaware
    assert run.figures().refused.keys() >= {"unknown-version", "truncated", "fenced"}  # on the token stream
    figures = [actor.figures for state in look(run).states for actor in state.actors]
    assert len([it for it in figures if "served_bytes" in it and int(it["refused"]) > 0]) == 2  # bulk servers

    run.until_step_after(run.steps()[-1], "after the attack")
    run.stops_whole()
    assert not [record for record in run.look() if isinstance(record, Restart)]

    printed = run.output.read_text().splitlines()
    assert "error: stopped on request" in printed
    assert printed[-1].startswith(f"rlctl resume {run.run.id}  continues it")
    assert not any("Traceback" in line for line in printed)
