"""Hosts as network namespaces: connections, cuts, and complete removal."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gleaner.chaos.netns import SHARED_MEMORY, Host, Switch, why_not

pytestmark = [
    pytest.mark.realprocess,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
]

LISTEN = "import socket,sys;s=socket.create_server((sys.argv[1],9));print(s.accept()[0].recv(9),flush=True)"
CALL = "import socket,sys;socket.create_connection((sys.argv[1],9),2).sendall(b'hello')"


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch() as switch:
        yield switch


def reaches(one: Host, other: Host) -> bool:
    argv = [sys.executable, "-c", CALL, other.address]
    return one.run(argv, 30.0).returncode == 0


def listening(host: Host, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        process = host.popen([sys.executable, "-c", LISTEN, host.address], output=file)
    deadline = time.monotonic() + 60.0
    while ":9 " not in host.run(["ss", "-ltn"], 10.0).stdout + " ":
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.05)
    return process


def test_hosts_reach_each_other_until_cut_and_after_healing(switch: Switch, tmp_path: Path) -> None:
    one, other, third = switch.host("one"), switch.host("other"), switch.host("third")
    server = listening(other, tmp_path / "heard")
    try:
        switch.cut(one, other)
        switch.cut(one, other)
        assert not reaches(one, other)
        assert reaches(third, other)
        assert server.wait(60.0) == 0
        server = listening(other, tmp_path / "heard-again")
        switch.heal()
        assert reaches(one, other)
        assert server.wait(60.0) == 0
    finally:
        server.kill()
        server.wait(60.0)
    assert (tmp_path / "heard-again").read_text() == "b'hello'\n"
    assert 0 < other.received_bytes() < 1 << 20  # of its own wire, not of the machine's


def test_host_has_its_own_shared_memory(switch: Switch) -> None:
    one, other = switch.host("one"), switch.host("other")
    mark = SHARED_MEMORY / f"gleaner-netns-{os.getpid()}"
    assert one.run(["touch", str(mark)], 10.0).returncode == 0
    assert one.run(["ls", str(mark)], 10.0).returncode == 0
    assert other.run(["ls", str(mark)], 10.0).returncode != 0
    assert not mark.exists()


def test_nothing_is_left_when_creating_process_is_killed(tmp_path: Path) -> None:
    script = (
        "import time; from gleaner.chaos.netns import Switch; s = Switch(); s.host('one');"
        "print(s._space.pid, flush=True); time.sleep(60)"
    )
    maker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    holder = psutil.Process(int(maker.stdout.readline()))
    maker.kill()
    maker.communicate()
    holder.wait(60.0)
    names = subprocess.run(["ip", "link", "show"], capture_output=True, text=True, check=True).stdout
    assert "port1" not in names
    assert "switch" not in names
