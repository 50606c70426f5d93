"""Child processes: their kinds of ends, their stop, and no orphans."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gleaner.supervisor import (
    ProcessExit,
    ProcessSpec,
    Restarted,
    StartFailed,
    Supervisor,
    child,
    one_for_one,
)
from gleaner.supervisor.process import ChildProcess, oom_kills
from gleaner.supervisor.testing import TestSystem

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


async def run(code: str, tmp_path: Path) -> ProcessExit:
    """The end of a child that runs this Python."""
    ended: list[ProcessExit] = []
    process = ChildProcess(ProcessSpec([sys.executable, "-c", code], tmp_path / "out"), ended.append)
    async with asyncio.timeout(60.0):
        exit_ = await process.wait()
    assert ended == [exit_]
    return exit_


async def test_environment_overrides_a_default_but_no_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN", "user")
    monkeypatch.delenv("ABSENT", raising=False)
    code = "import os; print(os.environ['GIVEN'], os.environ['ABSENT'], os.environ['SET'])"
    spec = ProcessSpec(
        [sys.executable, "-c", code],
        tmp_path / "out",
        {"SET": "spec"},
        defaults={"GIVEN": "default", "ABSENT": "default", "SET": "default"},
    )
    async with asyncio.timeout(60.0):
        await ChildProcess(spec, lambda exit_: None).wait()
    assert (tmp_path / "out").read_text() == "user default spec\n"


async def test_killed_process_is_restarted_with_its_signal_reported(tmp_path: Path) -> None:
    restarts: list[Restarted] = []
    async with TestSystem(tmp_path) as test:
        tree = Supervisor(
            test.system,
            one_for_one(child("sleeper", ProcessSpec(SLEEPER, tmp_path / "out"))),
            on_failure=pytest.fail,
            on_restart=restarts.append,
        )
        await tree.start()
        process = tree.process("sleeper")
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: tree.process("sleeper") not in (None, process))
        assert restarts[0].cause == "SIGKILL"
        again = tree.process("sleeper")
        assert again is not None
        await tree.stop()
        assert again.exit is not None
        assert again.exit.signal == signal.SIGTERM


async def test_process_ignoring_the_stop_is_killed_at_deadline(tmp_path: Path) -> None:
    stubborn = (
        "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('up', flush=True); time.sleep(60)"
    )
    async with TestSystem(tmp_path) as test:
        spec = child(
            "stubborn", ProcessSpec([sys.executable, "-c", stubborn], tmp_path / "out"), shutdown_s=0.2
        )
        tree = Supervisor(test.system, one_for_one(spec), on_failure=pytest.fail)
        await tree.start()
        await until(lambda: (tmp_path / "out").read_text() == "up\n")
        process = tree.process("stubborn")
        assert process is not None
        await tree.stop()
        assert process.exit is not None
        assert process.exit.signal == signal.SIGKILL


async def test_child_dies_with_its_parent(tmp_path: Path) -> None:
    """parent -> child; SIGKILL the parent: the child is gone too."""
    child_code = (
        "import os,sys,time; sys.path.insert(0, os.getcwd())\n"
        "from gleaner.supervisor.process import die_with_parent; die_with_parent()\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    parent_code = (
        "import os,subprocess,sys,time\n"
        "env = dict(os.environ, GLEANER_PARENT_PID=str(os.getpid()))\n"
        f"subprocess.Popen([sys.executable, '-c', {child_code!r}], env=env)\n"
        "time.sleep(60)"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", parent_code)
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 0)
    parent.kill()
    await parent.wait()

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    await until(gone)


async def test_exit_codes_and_signals_are_distinguished(tmp_path: Path) -> None:
    done = await run("pass", tmp_path)
    assert (done.code, done.signal, done.abnormal, done.cause) == (0, None, False, "exit 0")
    ended = await run("import sys; sys.exit('no such file')", tmp_path)
    assert (ended.code, ended.signal, ended.cause) == (1, None, "exit 1: no such file")
    killed = await run("import os,signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert (killed.code, killed.signal, killed.cause) == (None, signal.SIGKILL, "SIGKILL")
    aborted = await run("import os; os.abort()", tmp_path)
    assert aborted.signal == signal.SIGABRT
    assert aborted.cause in ("SIGABRT", "SIGABRT (core dumped)")  # as the machine's core limit requires


@pytest.mark.parametrize(
    "record",
    [
        "2026-11-23 03:15:01,123 INFO nodeagent: stopped in order",
        "INFO:     Shutting down",
        "[2026-11-23 03:15:01] INFO server.py:3: bye",
        "2026-11-23T03:15:01Z DEBUG bye",
    ],
)
async def test_normal_log_record_is_no_cause_of_end(tmp_path: Path, record: str) -> None:
    ended = await run(f"print('error: no such file'); print({record!r}); raise SystemExit(3)", tmp_path)
    assert ended.cause == "exit 3: error: no such file"
    only = await run(f"print({record!r}); raise SystemExit(3)", tmp_path)
    assert only.cause == "exit 3"


async def test_kill_at_the_stop_deadline_is_reported(tmp_path: Path) -> None:
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
    spec = ProcessSpec([sys.executable, "-c", f"{code}; time.sleep(60)"], tmp_path / "out")
    process = ChildProcess(spec, lambda exit_: None)
    await until(lambda: (tmp_path / "out").read_text() == "up\n")
    assert (await process.stop(0.1)).cause == "SIGKILL (it did not stop within its time)"


async def test_stopped_process_is_killed_at_its_deadline(tmp_path: Path) -> None:
    process = ChildProcess(ProcessSpec(SLEEPER, tmp_path / "out"), lambda exit_: None)
    process.send_signal(signal.SIGSTOP)
    await until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    assert (await process.stop(0.1)).signal == signal.SIGKILL


async def test_brutal_kill_does_not_ask_first(tmp_path: Path) -> None:
    process = ChildProcess(ProcessSpec(SLEEPER, tmp_path / "out"), lambda exit_: None)
    assert (await process.stop(0.0)).signal == signal.SIGKILL


async def test_missing_command_fails_the_start(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        spec = ProcessSpec(["/no/such/command"], tmp_path / "out")
        tree = Supervisor(test.system, one_for_one(child("it", spec)), on_failure=pytest.fail)
        with pytest.raises(StartFailed, match="/no/such/command: .*No such file"):
            await tree.start()


async def test_ctrl_c_in_a_terminal_reaches_only_the_parent(tmp_path: Path) -> None:
    process = ChildProcess(ProcessSpec(SLEEPER, tmp_path / "out"), lambda exit_: None)
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    await process.stop(5.0)


def test_memory_kills_are_read_from_the_control_group(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/user/job\n")
    assert oom_kills(tmp_path, own) == 0
    (tmp_path / "user" / "job").mkdir(parents=True)
    (tmp_path / "user" / "job" / "memory.events").write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert oom_kills(tmp_path, own) == 3
