"""Reward hosts below `rlctl reward serve`: a right verdict for each request, over the end of any host."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest
from served_hosts import (
    KILL,
    LIMIT_S,
    STOP,
    Program,
    Served,
    agent_pid,
    host,
    right,
    scores,
    until,
    write_job,
)

from gleaner.chaos.netns import Switch, why_not
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import OK, USAGE

ASKED = 60
CLIENT = """
import sys
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from served_hosts import scores

url, count = sys.argv[1], int(sys.argv[2])
with ThreadPoolExecutor(count) as pool:
    asked = scores(url, count, pool)
    wait(asked, return_when=FIRST_COMPLETED)
    print("begun", flush=True)
    print([one.result() for one in asked])
"""
ANY = ("--listen", "127.0.0.1:0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLEANER_API_KEYS", raising=False)
    return tmp_path


@pytest.mark.long
@pytest.mark.realprocess
def test_killed_host_costs_no_verdict_and_is_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Served(folder, "service", *ANY, "--hosts", "2") as service, ThreadPoolExecutor(ASKED) as pool:
        service.until_hosts("rewards-1", "rewards-2")
        asked = scores(service.url, ASKED, pool)
        until(lambda: min(service.hosts()["rewards-1/reward"], sum(one.done() for one in asked)) > 0, "work")
        first = agent_pid(folder / "service" / "nodes" / "rewards-1")
        os.kill(first, KILL)
        assert [one.result() for one in asked] == right(ASKED)
        service.until_hosts("rewards-1", "rewards-2")
        until(lambda: agent_pid(folder / "service" / "nodes" / "rewards-1") not in (0, first), "another one")
        assert main(["reward", "ps", "--url", service.url]) == OK
        assert "rewards-1/reward" in capsys.readouterr().out
        assert service.ends(STOP) == 0
    log = (folder / "service" / "logs" / "rewards.log").read_text()
    assert "host rewards-1 (reward) killed" in log


def processes(host: Program) -> set[int]:
    """All below a host's agent: its workers too."""
    return {one.pid for one in psutil.Process(host.process.pid).children(recursive=True)}


@pytest.mark.long
@pytest.mark.realprocess
def test_host_joins_each_life_of_a_service_and_drains_on_sigterm(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        join = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    words = (*ANY, "--join-listen", join)
    with host(folder, "far", join) as far:
        with Served(folder, "one", *words) as service:
            assert service.first["join"] == join
            service.until_hosts("far")
            below = processes(far)
        with Served(folder, "two", *words) as service, ThreadPoolExecutor(ASKED) as pool:
            service.until_hosts("far")
            asked = scores(service.url, ASKED, pool)
            until(lambda: service.hosts()["far/reward"] > 0, "work on the host")
            assert below <= processes(far), "it keeps its workers"
            assert far.ends(STOP) == 0
            assert [one.result() for one in asked] == right(ASKED)
            service.until_hosts()
            assert service.ends(STOP) == 0
    assert "host far (reward) left" in (folder / "two" / "logs" / "rewards.log").read_text()


def _access(folder: Path, node: str, address: str, key: str) -> tuple[str, ...]:
    """The words of a host with keys."""
    own = str(folder / "keys" / node)
    return ("--name", node, "--listen", f"tcp://{address}:0", "--keys", own, "--head-key", key)


@pytest.mark.alone
@pytest.mark.realprocess
@pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}")
def test_hosts_of_other_machines_join_with_keys(folder: Path) -> None:
    nodes = [word for node in ("service", "a", "b") for word in ("--node", node)]
    subprocess.run([sys.executable, "-m", "gleaner.rlctl", "keygen", "keys", *nodes], check=True)
    with Switch() as switch:
        home, *others = [switch.host(name) for name in ("service", "a", "b")]
        join = f"tcp://{home.address}:7700"
        keys = ("--keys", str(folder / "keys" / "service"))
        key = (folder / "keys" / "service" / "node.public").read_text().strip()
        served = partial(Served, folder, "service-state", *ANY, "--join-listen", join, *keys)
        with served(run=home.inside) as service:
            started = [
                host(
                    folder,
                    f"{one.name}-state",
                    join,
                    *_access(folder, one.name, one.address, key),
                    run=one.inside,
                )
                for one in others
            ]
            try:
                log = folder / "service-state" / "logs" / "rewards.log"
                until(lambda: log.read_text().count("/reward joined") == 2, "two hosts")
                asked = home.inside([sys.executable, "-c", CLIENT, service.url, str(ASKED)])
                paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
                client = subprocess.Popen(
                    asked, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True
                )
                assert client.stdout is not None
                assert client.stdout.readline() == "begun\n"
                started[0].process.kill()
                out, _ = client.communicate(timeout=LIMIT_S)
                assert out.strip() == str(right(ASKED))
                until(lambda: "host a (reward) killed" in log.read_text(), "the end of a host")
            finally:
                for one in started:
                    one.__exit__()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--hosts", "-1"], "--hosts -1: expected 0 to 64"),
        (["--join-listen", "nonsense"], "--join-listen"),
        (["--keys", "keys"], "give --hosts or --join-listen too"),
    ],
)
def test_unusable_options_of_hosts_are_refused(
    folder: Path, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reward", "serve", "job.toml", *words]) == USAGE
    assert why in capsys.readouterr().err


@pytest.mark.realprocess
def test_hosts_do_not_join_beyond_loopback_without_keys(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gleaner.rlctl", "reward", "serve", "job.toml", *ANY, "--join-listen", "tcp://10.77.1.1:0"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "keys" in done.stderr
