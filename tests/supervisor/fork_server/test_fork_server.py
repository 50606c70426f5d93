"""Children that a fork server forks, and what becomes of them when it or their parent fails."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gleaner.supervisor.fork_server import client
from gleaner.supervisor.fork_server.client import ForkServer
from gleaner.supervisor.fork_server.protocol import MAX_REQUEST_BYTES
from gleaner.supervisor.process import ChildProcess, ProcessExit, ProcessSpec

HERE = Path(__file__).parent
PRELOADED = "preloaded_under_test"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes import the modules of these tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
async def forks() -> AsyncIterator[ForkServer]:
    """A server that is ready."""
    server = ForkServer.execute(PRELOADED, os.environ)
    await server.ready()
    yield server
    server.close()


def start(forks: ForkServer | None, output: Path, *words: str, **env: str) -> ChildProcess:
    spec = ProcessSpec([sys.executable, "-m", "child_under_test", *words], output, env)
    return ChildProcess(spec, lambda _: None, forks)


async def end_of(child: ChildProcess) -> ProcessExit:
    async with asyncio.timeout(60.0):
        return await child.wait()


async def reported(forks: ForkServer | None, output: Path, **env: str) -> dict[str, Any]:
    """The report of a child that ended in order."""
    assert (await end_of(start(forks, output, "report", **env))).code == 0, output.read_text()
    found: dict[str, Any] = json.loads(output.read_text().splitlines()[-1])
    return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60.0):
        while not condition():
            await asyncio.sleep(0.01)


def server_of(forks: ForkServer) -> psutil.Process:
    return psutil.Process(forks.pid)


async def test_a_forked_child_differs_from_an_executed_one_in_its_imports_alone(
    forks: ForkServer, tmp_path: Path
) -> None:
    forked = await reported(forks, tmp_path / "forked", GIVEN_WORD="one")
    executed = await reported(None, tmp_path / "executed", GIVEN_WORD="one")
    assert forked["forked"]
    assert not executed["forked"]
    assert forked["loaded_by"] == server_of(forks).pid
    assert executed["loaded_by"] == 0
    for seen in (forked, executed):
        assert seen["parent"] == os.getpid()
        assert seen["group"] == seen["pid"]
        assert seen["argv"][1:] == ["report"]
        assert seen["variables"] == {"GIVEN_WORD": "one"}
    assert forked["sockets"] == executed["sockets"], "the connection of the server stays with the server"


async def test_a_forked_child_shows_its_own_command_line(forks: ForkServer, tmp_path: Path) -> None:
    child = start(forks, tmp_path / "out", "wait", "for-long")
    argv = [sys.executable, "-m", "child_under_test", "wait", "for-long"]
    await until(lambda: [word for word in psutil.Process(child.pid).cmdline() if word] == argv)
    await child.stop(0)


async def test_two_forked_children_draw_other_random_numbers(forks: ForkServer, tmp_path: Path) -> None:
    one, other = [await reported(forks, tmp_path / name) for name in ("one", "other")]
    assert one["random"] != other["random"]


async def test_a_forked_child_reports_its_exit_code_and_last_line(forks: ForkServer, tmp_path: Path) -> None:
    ended = await end_of(start(forks, tmp_path / "out", "exit", "3"))
    assert (ended.code, ended.said) == (3, "the reason")
    assert ended.cause == "exit 3: the reason"


async def test_a_forked_child_that_raises_exits_with_1_and_its_traceback(
    forks: ForkServer, tmp_path: Path
) -> None:
    ended = await end_of(start(forks, tmp_path / "out", "fail"))
    assert ended.cause == "exit 1: ValueError: the reason"


async def test_a_forked_child_reports_the_signal_that_ended_it(forks: ForkServer, tmp_path: Path) -> None:
    child = start(forks, tmp_path / "out", "wait")
    child.send_signal(signal.SIGKILL)
    assert (await end_of(child)).cause == "SIGKILL"
    child = start(forks, tmp_path / "out", "wait")
    await until((tmp_path / "out").read_text)
    assert (await child.stop(10.0)).cause == "SIGTERM"


async def test_children_live_on_when_their_fork_server_is_killed(forks: ForkServer, tmp_path: Path) -> None:
    child = start(forks, tmp_path / "out", "wait")
    await until((tmp_path / "out").read_text)
    server = server_of(forks)
    server.kill()
    await until(lambda: server.status() == psutil.STATUS_ZOMBIE)
    assert psutil.Process(child.pid).is_running()
    await child.stop(0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_child_is_executed_when_the_fork_server_is_killed_or_stopped(
    forks: ForkServer,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(client, "START_S", 0.2)
    server = server_of(forks)
    server.send_signal(number)
    await until(lambda: server.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED))
    for name in ("one", "two"):
        assert not (await reported(forks, tmp_path / name))["forked"]
    assert caplog.text.count("processes are executed from now on") == 1
    assert not psutil.pid_exists(server.pid)


async def test_a_child_is_executed_when_the_server_cannot_import_its_modules(tmp_path: Path) -> None:
    forks = ForkServer.execute("absent_under_test", os.environ)
    await forks.ready()
    assert not (await reported(forks, tmp_path / "out"))["forked"]


async def test_a_server_with_more_than_one_thread_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forks = ForkServer.execute("threaded_under_test", os.environ)
    await forks.ready()
    assert not (await reported(forks, tmp_path / "out"))["forked"]
    assert "it has 2 threads" in caplog.text


async def test_a_child_with_too_large_an_environment_is_executed(forks: ForkServer, tmp_path: Path) -> None:
    large = {f"GIVEN_{number}": "x" * 60_000 for number in range(1 + MAX_REQUEST_BYTES // 60_000)}
    assert not (await reported(forks, tmp_path / "one", **large))["forked"]
    assert (await reported(forks, tmp_path / "two"))["forked"]


async def test_another_program_is_executed(forks: ForkServer, tmp_path: Path) -> None:
    spec = ProcessSpec([sys.executable, "-c", "print('executed')"], tmp_path / "out")
    assert (await end_of(ChildProcess(spec, lambda _: None, forks))).code == 0
    assert (tmp_path / "out").read_text() == "executed\n"


async def test_a_child_that_another_process_adopts_ends_and_is_executed_again(
    forks: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(client, "adopting", contextlib.nullcontext)
    seen = await reported(forks, tmp_path / "out")
    assert not seen["forked"]
    assert len((tmp_path / "out").read_text().splitlines()) == 1
    assert "the kernel gave a child to another process" in caplog.text


@pytest.mark.parametrize("what", ["execute", "inherit"])
async def test_a_server_and_its_children_die_with_the_process_that_owns_them(
    what: str, forks: ForkServer, tmp_path: Path
) -> None:
    child = start(forks, tmp_path / "child", what, str(tmp_path / "grandchild"))
    await until(lambda: (tmp_path / "grandchild").exists() and (tmp_path / "grandchild").read_text())
    seen = json.loads((tmp_path / "grandchild").read_text())
    assert seen["parent"] == child.pid
    assert seen["forked"]
    below = psutil.Process(child.pid).children(recursive=True)
    assert len(below) == 2
    child.kill()
    await end_of(child)
    await until(lambda: not any(process.is_running() for process in below))


BETWEEN = """
import os
from gleaner.supervisor.fork_server import server
from gleaner.supervisor.fork_server.protocol import ForkRequest

def write(descriptor, data):
    raise BrokenPipeError("the server is dead")

os.write = write  # of the process between
try:
    server._fork_twice(ForkRequest([], {}, os.getpid()))
except OSError as problem:
    print(problem, flush=True)
"""
BECOMES = """
import asyncio, os, sys
from gleaner.supervisor.fork_server import server
from gleaner.supervisor.fork_server.client import ForkServer

def become(request, output):
    raise OSError("no room")

server._become, server._Image.held = become, True
try:
    forks = ForkServer.inherit()
except OSError:
    print("goes on as its caller", flush=True)
    sys.exit()
asyncio.run(forks.ready())
pid = forks.start([sys.executable, "-m", "none"], {}, 2)
print("exit", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
forks.close()
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [(BETWEEN, ["the process between ended without an answer"]), (BECOMES, ["exit 1"])],
    ids=["between", "child"],
)
def test_a_forked_process_that_fails_never_goes_on_as_its_caller(program: str, printed: list[str]) -> None:
    """A node agent whose fork of a fork lost its server began a second life, which no parent ended."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == printed, done.stderr
