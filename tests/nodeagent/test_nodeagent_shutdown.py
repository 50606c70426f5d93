"""Shutdown of signalled node agents: in order, at once at the second signal, with nothing left behind."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from real_nodes import Nodes, is_alive, wait_for
from test_nodeagent_children import submit

from gleaner.actors.cluster.job import memory_dir
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.chaos.orphans import open_ports, stale_files
from gleaner.configs import load
from gleaner.configs.schema import Config, Fleet
from gleaner.nodeagent.exit_codes import CUT_SHORT, OK

pytestmark = pytest.mark.realprocess
HOSTS = ("head", "reserved-1", "spot-1")
SOON_S = 100.0  # for immediate steps: only a hang takes as long


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobSpec]:
    spec = JobSpec(
        run_id=f"down-{os.getpid()}-{tmp_path.name}",
        run_dir=str(tmp_path),
        model_dir=str(tmp_path / "model"),
        config=load.dump(Config(fleet=Fleet(n_prem_max=1, restarts=20))),
    )
    yield spec
    for host in HOSTS:
        if memory_dir(spec, host).is_dir():
            shutil.rmtree(memory_dir(spec, host))


def below(pid: int) -> list[psutil.Process]:
    return list(psutil.Process(pid).children(recursive=True))


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def child(pid: int, kind: str) -> psutil.Process:
    """The process of `kind` somewhere below `pid`, once it handles its own signals."""
    found: list[psutil.Process] = []

    def there() -> bool:
        found[:] = [
            process for process in below(pid) if f"gleaner.nodeagent.process {kind}" in command(process)
        ]
        return bool(found)

    wait_for(there, what=kind)
    return found[0]


def assert_nothing_is_left(root: Path, processes: list[psutil.Process], job: JobSpec | None = None) -> None:
    wait_for(lambda: not any(is_alive(process.pid) for process in processes), what="death of all processes")
    # another test may have got one of the ports meanwhile
    wait_for(lambda: open_ports(root) == [], what="no open port")
    assert stale_files(root) == []
    assert job is None or not any(memory_dir(job, host).exists() for host in HOSTS)


def test_second_sigterm_ends_a_head_at_once(nodes: Nodes, job: JobSpec) -> None:
    head_dir = nodes.root / "nodes" / "head"
    head = nodes.start("head", "--role", "head", "--fleet", "local", state_dir=head_dir)
    submit(head, job)
    wait_for(lambda: memory_dir(job, "spot-1").exists(), what="the weights' folder of spot-1")
    hung = child(head.pid, "reward")
    hung.suspend()
    all_pids = below(head.pid)
    assert len(all_pids) >= 6

    nodes.processes["head"].terminate()
    wait_for(lambda: "SIGTERM: ending in order" in (head_dir / "logs" / "agent.log").read_text())
    nodes.processes["head"].terminate()
    assert nodes.processes["head"].wait(SOON_S) == CUT_SHORT
    assert "left in order" not in (head_dir / "logs" / "agent.log").read_text(), (
        "the head waited for no process"
    )
    assert "SIGTERM again: ended at once, without order" in nodes.output("head")
    assert_nothing_is_left(nodes.root, all_pids, job)


def test_ctrl_c_stops_the_agent_and_children_in_order(nodes: Nodes, job: JobSpec) -> None:
    head = nodes.start("head", "--role", "head", own_group=True)
    submit(head, job)
    rollout = child(head.pid, "rollout")
    log = nodes.root / "head" / "logs" / "rollout.log"
    wait_for(lambda: log.exists() and "listens at" in log.read_text(), what="rollout")
    all_pids = below(head.pid)
    assert os.getpgid(head.pid) == head.pid
    assert os.getpgid(rollout.pid) != head.pid
    os.killpg(head.pid, signal.SIGINT)
    assert nodes.processes["head"].wait(SOON_S) == OK
    assert "SIGTERM: ending in order" in log.read_text()
    assert "SIGINT" not in log.read_text()
    assert "stopped in order" in log.read_text()
    assert "restart" not in nodes.log("head")
    assert_nothing_is_left(nodes.root, all_pids, job)


def test_hung_child_is_killed_and_agent_ends_in_order(nodes: Nodes, job: JobSpec) -> None:
    head = nodes.start("head", "--role", "head")
    submit(head, job)
    spot = nodes.start("spot-1", "--join", head.endpoint)
    hung = child(spot.pid, "transfer")
    hung.suspend()
    all_pids = below(spot.pid)
    nodes.processes["spot-1"].terminate()
    assert nodes.processes["spot-1"].wait(SOON_S) == OK
    log = nodes.log("spot-1")
    assert "notice: this host goes away in 15.0 s" in log  # a signal is a notice: the host hands over first
    assert "drained; 0 requests go on elsewhere" in log
    assert "left in order" in log
    assert_nothing_is_left(nodes.root / "spot-1", all_pids)
    assert not memory_dir(job, "spot-1").exists()


def test_signal_during_start_ends_an_agent_in_order(nodes: Nodes) -> None:
    process = nodes.popen("head", "--role", "head")
    log = nodes.root / "head" / "logs" / "agent.log"
    wait_for(log.exists, what="its log")  # the agent handles signals before that
    process.terminate()
    assert process.wait(SOON_S) == OK
    assert_nothing_is_left(nodes.root, [])


def test_host_without_its_head_leaves_without_handover(nodes: Nodes) -> None:
    process = nodes.popen("spot-1", "--join", "tcp://127.0.0.1:9")
    log = nodes.root / "spot-1" / "logs" / "agent.log"
    wait_for(lambda: log.exists() and "listens at" in log.read_text(), what="spot-1")
    process.send_signal(signal.SIGINT)
    assert process.wait(SOON_S) == OK
    assert "leaving without handing over: the head does not answer" in log.read_text()


HANGS = """
import asyncio, os, sys, time
from gleaner.nodeagent.host import run_process

async def main(stop):
    stop.at_once(lambda: os.write(1, b"undone\\n"))
    print("up", flush=True)
    await stop.wait()
    print("asked", flush=True)
    time.sleep(600)  # a loop that hears nothing any more

sys.exit(run_process(main, "hangs"))
"""


def test_second_signal_ends_a_process_despite_errors() -> None:
    program = HANGS.replace('lambda: os.write(1, b"undone\\n")', "lambda: 1 / 0")
    assert program != HANGS
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for word in ("up\n", "asked\n"):
            assert process.stdout.readline() == word
            process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == CUT_SHORT
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_second_signal_reaches_a_process_with_a_hung_loop(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.stdout.readline() == "asked\n"
        process.send_signal(number)
        assert process.wait(SOON_S) == CUT_SHORT
        assert process.stdout.readline() == "undone\n"
        assert process.stderr.read() == f"hangs: {number.name} again: ended at once, without order\n"
    finally:
        process.kill()
        process.wait()
