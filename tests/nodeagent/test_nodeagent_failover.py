"""Failover: a standby replaces a head that dies, freezes or stops; hosts find it; zombies end."""

import os
import signal
import socket

import pytest
from postgres_server import PostgresServer
from real_nodes import START_S, Nodes, wait_for

from gleaner.nodeagent.__main__ import main
from gleaner.nodeagent.exit_codes import IN_USE, LOST, OK, USAGE

pytestmark = pytest.mark.realprocess

LEASE_S = 8.0  # is waited out once


def address() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{sock.getsockname()[1]}"


def leads(nodes: Nodes, name: str) -> bool:
    log = nodes.root / name / "logs" / "agent.log"
    return log.exists() and "is the head, under term" in log.read_text()


def is_standby(nodes: Nodes, name: str) -> bool:
    shown = nodes.command("status", "--state-dir", str(nodes.root / name))
    return shown.returncode == OK and f"{name} (standby)" in shown.stdout


@pytest.mark.long
def test_frozen_head_is_replaced_and_ends_as_a_zombie(nodes: Nodes, postgres: PostgresServer) -> None:
    url = postgres.new_database()
    where = {name: address() for name in ("head-1", "head-2")}
    lease = ("--role", "head", "--journal", url, "--lease", str(LEASE_S))
    first = nodes.start("head-1", *lease, "--listen", where["head-1"])
    nodes.popen("head-2", *lease, "--listen", where["head-2"], "--standby")
    nodes.start("spot-1", "--join", ",".join(where.values()))
    wait_for(lambda: "host spot-1 (preemptible): joined" in nodes.log("head-1"), what="join")
    wait_for(lambda: is_standby(nodes, "head-2"), what="the standby")
    assert "the lease is held by head-1" in nodes.output("head-2")
    code, printed = nodes.fails("head-3", *lease, "--listen", address())
    assert (code, "start this one with --standby" in printed) == (IN_USE, True), printed

    os.kill(first.pid, signal.SIGSTOP)  # the host is stuck: no connection breaks, nothing answers
    wait_for(lambda: leads(nodes, "head-2"), what="the standby takes over")
    wait_for(lambda: "host spot-1 (preemptible): joined" in nodes.log("head-2"), what="the host finds it")
    os.kill(first.pid, signal.SIGCONT)
    assert nodes.processes["head-1"].wait(START_S) == LOST
    assert "ends at once: " in nodes.log("head-1")

    nodes.popen("head-1", *lease, "--listen", where["head-1"], "--standby")
    wait_for(lambda: is_standby(nodes, "head-1"), what="the other one stands by")
    assert nodes.command("stop", "--state-dir", str(nodes.root / "head-2")).returncode == OK
    assert nodes.processes["head-2"].wait(START_S) == OK
    wait_for(lambda: nodes.log("head-1").count("is the head, under term") >= 2, what="back again")
    wait_for(lambda: "under term 3" in nodes.log("head-1"), what="the third term")
    # The host's own log may have no line: a hello on its way may reach the new head within its deadline.
    joined = "host spot-1 (preemptible): joined"
    wait_for(lambda: nodes.log("head-1").count(joined) >= 2, what="the host comes back")


def test_standby_waits_for_its_database_and_head_fails(
    nodes: Nodes,
) -> None:
    gone = ("--role", "head", "--journal", "postgresql://gleaner:secret@127.0.0.1:1/none")
    code, printed = nodes.fails("head-1", *gone)
    assert code != OK
    assert "start the server, or mend the way to it" in printed
    assert "secret" not in printed
    nodes.popen("head-2", *gone, "--standby")
    wait_for(lambda: is_standby(nodes, "head-2"), what="the standby")
    assert nodes.processes["head-2"].poll() is None
    stopped = nodes.command("stop", "--state-dir", str(nodes.root / "head-2"))
    assert (stopped.returncode, nodes.processes["head-2"].wait(START_S)) == (OK, OK), stopped.stderr


TWO = "tcp://127.0.0.1:1,tcp://127.0.0.1:2"


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--role", "head", "--journal", "journal.sqlite"), "expected postgresql://"),
        (("--join", "tcp://127.0.0.1:1", "--journal", "postgresql://x@y/z"), "only a head"),
        (("--role", "head", "--standby"), "needs --journal"),
        (("--standby", "--journal", "postgresql://x@y/z", "--fleet", "local"), "die with it"),
        (("--role", "head", "--journal", "postgresql://x@y/z", "--lease", "0.5"), "at least 2 s"),
        (("--join", TWO, "--keys", "k", "--head-key", "a" * 40), "one --head-key"),
    ],
)
def test_conflicting_failover_options_are_refused(
    args: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["start", *args]) == USAGE
    assert word in capsys.readouterr().err
