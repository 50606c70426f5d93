"""The children of real node agents: restarted when they are killed, gone when their agent is."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from real_nodes import Nodes, is_alive, wait_for

from gleaner.actors.cluster.job import memory_dir
from gleaner.actors.protocol.cluster import JobIs, JobSpec, JobStatus, KillChild, SubmitJob
from gleaner.configs import load
from gleaner.configs.schema import Config, Fleet, Gateway
from gleaner.nodeagent.client import calling, inspect, tell_agent
from gleaner.nodeagent.exit_codes import GAVE_UP, USAGE
from gleaner.nodeagent.files import AgentFile, find_agent
from gleaner.supervisor import Address, Done, Message, Refused

pytestmark = pytest.mark.realprocess
HOSTS = ("head", "reserved-1", "spot-1")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobSpec]:
    """A job whose processes start and whose model does not exist."""
    spec = JobSpec(
        run_id=f"test-{os.getpid()}-{tmp_path.name}",
        run_dir=str(tmp_path),
        model_dir=str(tmp_path / "model"),
        config=load.dump(Config(fleet=Fleet(n_prem_max=1, restarts=20))),
    )
    yield spec
    for host in HOSTS:
        if memory_dir(spec, host).is_dir():
            shutil.rmtree(memory_dir(spec, host))


def ask_scheduler(head: AgentFile, message: Message) -> JobIs:
    async def ask() -> JobIs:
        scheduler = Address(name="cluster/scheduler", endpoint=head.endpoint, public_key=head.public_key)
        async with calling(head) as system:
            return await system.ask(scheduler, message, deadline_s=60.0, expect=JobIs)

    return asyncio.run(ask())


def submit(head: AgentFile, job: JobSpec) -> JobIs:
    return ask_scheduler(head, SubmitJob(job=job))


def order(agent: AgentFile, message: Message) -> None:
    asyncio.run(tell_agent(agent, message, Done, 60.0))


def children(agent: AgentFile) -> dict[str, int]:
    """Child processes by name, with their pids."""
    state = asyncio.run(inspect(agent, 60.0))
    return {actor.name: actor.pid for actor in state.actors if actor.pid}


def history(root: Path) -> list[dict[str, object]]:
    file = root / "history.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def recorded(root: Path, **fields: object) -> int:
    """How many records of the history have these fields."""
    return sum(fields.items() <= record.items() for record in history(root))


def test_killed_child_restarts_and_killed_host_leaves_no_process(nodes: Nodes, job: JobSpec) -> None:
    head = nodes.start("head", "--role", "head")
    assert submit(head, job).state == "running"
    spot = nodes.start("spot-1", "--join", head.endpoint)
    wait_for(lambda: set(children(spot)) == {"transfer", "engine"}, what="children of spot-1")
    wait_for(lambda: recorded(nodes.root, kind="node", node="spot-1", event="joined"), what="joined")

    before = children(spot)
    order(spot, KillChild(child="transfer"))
    wait_for(lambda: children(spot).get("transfer", before["transfer"]) != before["transfer"], what="restart")
    assert not is_alive(before["transfer"])
    assert children(spot)["engine"] == before["engine"]
    restarted = {"kind": "restart", "actor": "spot-1/transfer", "cause": "SIGKILL", "incarnation": 2}
    wait_for(lambda: recorded(nodes.root, **restarted) == 1, what="report of the restart")
    with pytest.raises(Refused, match="it has transfer, engine"):
        order(spot, KillChild(child="tranfser"))

    orphans = list(children(spot).values())
    assert all(is_alive(pid) for pid in orphans)
    nodes.processes["spot-1"].kill()
    wait_for(lambda: not any(is_alive(pid) for pid in orphans), what="death of the children")
    wait_for(lambda: recorded(nodes.root, kind="node", node="spot-1", event="killed") == 1, what="killed")


def test_local_fleet_starts_and_dies_with_its_head(nodes: Nodes, job: JobSpec) -> None:
    head_dir = nodes.root / "nodes" / "head"
    head = nodes.start("head", "--role", "head", "--fleet", "local", state_dir=head_dir)
    assert submit(head, job).state == "running"
    for host in ("reserved-1", "spot-1"):
        wait_for(lambda host=host: (nodes.root / "nodes" / host / "agent.json").exists(), what=host)  # type: ignore[misc]
    hosts = [find_agent(nodes.root / "nodes" / host) for host in ("reserved-1", "spot-1")]
    wait_for(lambda: set(children(hosts[0])) == {"transfer", "trainer"}, what="children of reserved-1")
    wait_for(lambda: set(children(hosts[1])) == {"transfer", "engine"}, what="children of spot-1")
    wait_for(lambda: {"rollout", "reward", "reserved-1"} <= set(children(head)), what="children of head")
    all_pids = [pid for agent in (head, *hosts) for pid in (agent.pid, *children(agent).values())]
    assert len(set(all_pids)) == 9

    os.kill(hosts[0].pid, signal.SIGKILL)  # the reserved host is permanent and restarts
    wait_for(lambda: children(head).get("reserved-1", hosts[0].pid) != hosts[0].pid, what="return")
    all_pids += children(head).values()

    nodes.processes["head"].kill()
    wait_for(lambda: not any(is_alive(pid) for pid in all_pids), what="death of all processes")


def test_stopped_head_stops_hosts_in_order_and_frees_memory(nodes: Nodes, job: JobSpec) -> None:
    head_dir = nodes.root / "nodes" / "head"
    head = nodes.start("head", "--role", "head", "--fleet", "local", state_dir=head_dir)
    submit(head, job)
    spot_dir = nodes.root / "nodes" / "spot-1"
    wait_for(lambda: memory_dir(job, "spot-1").exists(), what="the weights' folder of spot-1")
    nodes.processes["head"].terminate()
    assert nodes.processes["head"].wait(60.0) == 0
    log = (spot_dir / "logs" / "agent.log").read_text()
    assert "left in order" in log
    assert "notice" not in log  # an order, not a signal: all hosts stop with the head
    assert not any(memory_dir(job, host).exists() for host in HOSTS)


def test_head_child_that_fails_too_often_fails_the_job(nodes: Nodes, job: JobSpec) -> None:
    once = msgspec.structs.replace(job, config=load.dump(Config(fleet=Fleet(restarts=1))))
    head = nodes.start("head", "--role", "head")
    submit(head, once)
    for life in (1, 2):
        wait_for(lambda: "reward" in children(head), what=f"life {life} of reward")
        order(head, KillChild(child="reward"))
    wait_for(lambda: ask_scheduler(head, JobStatus()).state == "failed", what="end of the job")
    assert "reward failed again" in ask_scheduler(head, JobStatus()).reason
    assert "SIGKILL" in ask_scheduler(head, JobStatus()).reason
    wait_for(lambda: children(head) == {}, what="end of the children")
    assert nodes.processes["head"].poll() is None


def test_process_without_its_job_file_names_it(tmp_path: Path) -> None:
    ended = run_process("transfer", tmp_path, tmp_path / "none.json")
    assert ended.returncode == USAGE
    assert "none.json" in ended.stderr


def test_failed_actor_start_reports_the_chain_of_causes(tmp_path: Path, job: JobSpec) -> None:
    spec = msgspec.structs.replace(job, config=load.dump(Config(fleet=Fleet(restarts=1))))
    job_file = tmp_path / "job.json"
    job_file.write_bytes(msgspec.json.encode(spec))
    blocked = memory_dir(spec, "spot-1")
    blocked.write_text("a file where a folder is needed")
    try:
        ended = run_process("transfer", tmp_path, job_file)
    finally:
        blocked.unlink()
    assert ended.returncode == GAVE_UP
    chain = "supervisor transfer: spot-1/transfer did not start; because spot-1/transfer (actor on spot-1/"
    assert chain in ended.stderr
    assert str(blocked) in ended.stderr
    last = (tmp_path / "logs" / "transfer.log").read_text().splitlines()[-1]
    assert chain in last


def run_process(kind: str, state_dir: Path, job_file: Path) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable,
        "-m",
        "gleaner.nodeagent.process",
        kind,
        "--node",
        "spot-1",
        "--job",
        str(job_file),
    ]
    argv += ["--state-dir", str(state_dir), "--head", "tcp://127.0.0.1:9"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60.0, check=False)


def test_gateway_port_in_use_fails_the_job_at_once(nodes: Nodes, job: JobSpec) -> None:
    head = nodes.start("head", "--role", "head")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        config = Config(fleet=Fleet(n_prem_max=1, restarts=20), gateway=Gateway(listen=listen))
        assert submit(head, msgspec.structs.replace(job, config=load.dump(config))).state == "running"
        wait_for(lambda: ask_scheduler(head, JobStatus()).state == "failed", what="end of the job")
    reason = ask_scheduler(head, JobStatus()).reason
    assert f"gateway.listen {listen}: " in reason
    assert "in use" in reason
    assert not recorded(nodes.root, kind="restart", actor="head/gateway"), (
        "a restart would find it in use again"
    )
