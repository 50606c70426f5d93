"""Faults of wires between namespaces: each really happens and really heals."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gleaner.chaos.netns import TOOLS, Host, Switch, why_not
from gleaner.chaos.real.bad_wires import BadWires
from gleaner.chaos.real.packets import Quality
from gleaner.chaos.real.unsupported_faults import description, impossible

pytestmark = [
    pytest.mark.realprocess,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
]

RECEIVE = """
import socket, sys, threading
heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); heard.bind((sys.argv[1], 9))
print("up", flush=True)
counted = 0
def count():
    global counted
    while True: heard.recv(99); counted += 1
threading.Thread(target=count, daemon=True).start()
for line in sys.stdin:  # all was said: what is still on its way comes in a moment
    before = -1
    while counted != before: before = counted; threading.Event().wait(float(sys.argv[2]) if counted else 0.5)
    print(counted, flush=True)
"""
SEND = """
import socket, sys
said = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); said.bind((sys.argv[1], 0))
for n in range(int(sys.argv[3])):
    try: said.sendto(b"%d" % n, (sys.argv[2], 9))
    except OSError: pass
"""
ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 9)); print("up", flush=True)
while True:
    try:
        with server.accept()[0] as one:
            while data := one.recv(65536): one.sendall(data)
    except ConnectionError: pass
"""
ASK = """
import socket, sys, time
one = socket.create_connection((sys.argv[1], 9), 60); one.settimeout(60)
one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); print("up", flush=True)
for line in sys.stdin:
    began = time.monotonic(); data = b"x" * int(line); got = b""
    try:
        one.sendall(data)
        while len(got) < len(data): got += one.recv(65536) or sys.exit("closed")
        print(got == data, time.monotonic() - began, flush=True)
    except OSError as problem: print(type(problem).__name__, 0, flush=True)
"""


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch() as switch:
        yield switch


class Script:
    """A small program on a host; `next_line` reads its next line."""

    def __init__(self, host: Host, text: str, *args: object) -> None:
        argv = host.inside([sys.executable, "-c", text, *map(str, args)])
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.next_line() == "up"

    def next_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, count: int) -> tuple[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        how, seconds = self.next_line().split()
        return how, float(seconds)

    def reply(self) -> str:
        """The reply of the program to a request."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.next_line()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def received(one: Host, other: Host, count: int) -> int:
    """How many of `count` datagrams from one host reach the other."""
    ear = Script(other, RECEIVE, other.address, 1.5)
    one.run([sys.executable, "-c", SEND, one.address, other.address, str(count)], 60.0)
    got = int(ear.reply())
    ear.end()
    return got


def test_one_way_cut_stops_only_one_direction(switch: Switch) -> None:
    one, other = switch.host("one"), switch.host("other")
    switch.wires.block(one, other)
    assert received(one, other, 20) == 0
    assert received(other, one, 20) == 20
    switch.wires.unblock(one, other)
    switch.wires.unblock(one, other)
    assert received(one, other, 20) == 20


def test_pulled_cable_stops_traffic_but_connections_survive(switch: Switch) -> None:
    one, other = switch.host("one"), switch.host("other")
    echo = Script(other, ECHO, other.address)
    ask = Script(one, ASK, other.address)
    assert ask.ask(10)[0] == "True"
    switch.wires.unplug(other)
    assert received(one, other, 20) == 0
    switch.wires.plug(other)
    assert ask.ask(10)[0] == "True"
    ask.end()
    echo.end()


def test_reset_breaks_all_connections_and_allows_new_ones(switch: Switch) -> None:
    one, other = switch.host("one"), switch.host("other")
    echo = Script(other, ECHO, other.address)
    ask = Script(one, ASK, other.address)
    assert ask.ask(10)[0] == "True"
    assert switch.wires.reset(one, other) == 1
    assert ask.ask(10)[0] in ("ConnectionAbortedError", "ConnectionResetError", "BrokenPipeError")
    ask.end()
    ask = Script(one, ASK, other.address)
    assert ask.ask(10)[0] == "True"
    assert switch.wires.reset(other, switch.host("third")) == 0
    ask.end()
    echo.end()


def test_slow_link_delays_until_it_heals(switch: Switch) -> None:
    one, other = switch.host("one"), switch.host("other")
    echo = Script(other, ECHO, other.address)
    ask = Script(one, ASK, other.address)
    switch.wires.slow(one, 200_000)
    how, seconds = ask.ask(300_000)
    assert how == "True"
    assert seconds > 0.7  # 1.5 s at that rate, less what the bucket holds
    switch.wires.undo()
    with pytest.raises(ValueError, match="bytes/s"):
        switch.wires.slow(one, 10)
    assert ask.ask(1000)[0] == "True"
    ask.end()
    echo.end()


def test_bad_wire_delays_loses_and_duplicates_without_trace(switch: Switch) -> None:
    one, other = switch.host("one"), switch.host("other")
    echo = Script(other, ECHO, other.address)
    ask = Script(one, ASK, other.address)
    wires = BadWires()
    late = wires.make(one, other, Quality(delay_s=0.05), "7")
    assert ask.ask(10)[1] > 0.1
    assert late.mend()["late"] > 0
    assert late.mend() == {}
    ask.end()  # otherwise its last datagrams would be counted too
    echo.end()
    time.sleep(0.3)
    lossy = wires.make(one, other, Quality(loss=0.5, duplicate=0.5), "7")
    got = received(one, other, 200)
    counts = lossy.mend()
    assert counts["lost"] > 50
    assert counts["doubled"] > 20
    assert got == 200 - counts["lost"] + counts["doubled"]
    deadline = time.monotonic() + 60.0
    while "bad" in one.ip("route") + one.ip("link"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert received(one, other, 20) == 20
    wires.undo()


def test_corrupting_wire_gets_past_tcp(switch: Switch) -> None:
    one, other = switch.host("one"), switch.host("other")
    echo = Script(other, ECHO, other.address)
    ask = Script(one, ASK, other.address)
    wires = BadWires()
    wire = wires.make(one, other, Quality(flips=1), "7")
    assert ask.ask(100_000)[0] == "False"
    assert ask.ask(100_000)[0] == "True"
    assert wire.mend()["flipped"] == 1
    wires.undo()
    ask.end()
    echo.end()


def test_faults_impossible_here_are_listed_with_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in (*TOOLS, "sh", "cat"):  # but neither `tc` nor `ss`
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    lacking = impossible()
    assert "execute tc" in lacking["bad_link"]
    assert "'ss'" in lacking["reset"]
    assert "no reset: " in description(lacking)


def test_host_sees_the_disks_of_its_switch_only(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("disk")
    with Switch({folder: 1 << 20}) as switch:
        one, other = switch.host("one"), switch.host("other")
        assert one.run(["sh", "-c", f"echo hello >{folder}/file"], 10.0).returncode == 0
        assert other.run(["cat", str(folder / "file")], 10.0).stdout == "hello\n"
        assert not (folder / "file").exists()
        assert switch.path(folder / "file").read_text() == "hello\n"
        full = one.run(["sh", "-c", f"head -c 2000000 /dev/zero >{folder}/big"], 10.0)
        assert "No space" in full.stderr
