"""Supervisors that really start, stop and restart actors and processes."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor import (
    Actor,
    Intensity,
    JournalDamaged,
    Message,
    ProcessSpec,
    Restarted,
    Supervisor,
    child,
    handles,
    one_for_one,
    rest_for_one,
)
from supervisor.testing import TestSystem


class Boom(Message, frozen=True):
    pass


class Bomb(Actor):
    """Ends when told."""

    @handles(Boom)
    async def boom(self, message: Boom) -> None:
        raise RuntimeError("boom")


SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


async def until(condition: Callable[[], object], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_crashed_actor_is_back_under_a_new_incarnation(tmp_path: Path) -> None:
    restarts: list[Restarted] = []
    async with TestSystem(tmp_path) as test:
        tree = Supervisor(
            test.system,
            rest_for_one(child("first", Bomb), child("second", Bomb)),
            on_failure=pytest.fail,
            on_restart=restarts.append,
        )
        await tree.start()
        before = {name: test.system.cell(name) for name in ("first", "second")}
        await test.tell("first", Boom())
        await until(lambda: len(restarts) == 2)
        await asyncio.sleep(0.05)
        for name, old in before.items():
            new = test.system.cell(name)
            assert old is not None
            assert new is not None
            assert new.address.incarnation > old.address.incarnation
        assert [(r.name, r.cause) for r in restarts] == [
            ("first", "crashed: RuntimeError: boom"),
            ("second", "with first: crashed: RuntimeError: boom"),
        ]
        await tree.stop()


async def test_a_killed_process_is_restarted_and_its_signal_is_told(tmp_path: Path) -> None:
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


async def test_a_process_that_ignores_the_stop_is_killed_at_its_deadline(tmp_path: Path) -> None:
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


async def test_failing_too_often_escalates_through_the_subtree_to_the_root(tmp_path: Path) -> None:
    failures: list[Exception] = []
    async with TestSystem(tmp_path) as test:
        never = ProcessSpec([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "out")
        subtree = one_for_one(
            child("never", never), name="inner", intensity=Intensity(restarts=1, within_s=30, backoff_s=0.01)
        )
        tree = Supervisor(
            test.system,
            one_for_one(
                child("inner", subtree),
                name="outer",
                intensity=Intensity(restarts=1, within_s=30, backoff_s=0.01),
            ),
            on_failure=failures.append,
        )
        await tree.start()
        await until(lambda: failures, 20)
        assert "outer" in str(failures[0])
        assert "exit 3" in str(failures[0])


async def test_a_process_tells_by_its_exit_code_that_a_restart_would_not_help(tmp_path: Path) -> None:
    said = "print('much before'); print('no such model'); raise SystemExit(6)"
    spec = ProcessSpec([sys.executable, "-c", said], tmp_path / "out", hopeless=frozenset({6}))
    problems: list[Exception] = []
    restarts: list[Restarted] = []
    async with TestSystem(tmp_path) as test:
        root = Supervisor(
            test.system,
            one_for_one(child("it", spec)),
            on_failure=problems.append,
            on_restart=restarts.append,
        )
        await root.start()
        await until(lambda: problems, 10.0)
    assert restarts == []
    assert "last cause: exit 6: no such model" in str(problems[0])


async def test_a_damaged_journal_is_passed_upward_and_not_tried_again(tmp_path: Path) -> None:
    starts: list[int] = []

    class Reader(Actor):
        async def on_start(self) -> None:
            starts.append(self.ctx.incarnation)
            raise JournalDamaged("journal x.sqlite is damaged")

    problems: list[Exception] = []
    async with TestSystem(tmp_path) as test:
        inner = one_for_one(child("reader", Reader), name="inner")
        root = Supervisor(test.system, one_for_one(child("inner", inner)), on_failure=problems.append)
        await root.start()
        await until(lambda: problems)
    assert [type(problem) for problem in problems] == [JournalDamaged]
    assert len(starts) == 1


async def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    """parent -> child; SIGKILL the parent: the child is gone too."""
    child_code = (
        "import os,sys,time; sys.path.insert(0, os.getcwd())\n"
        "from supervisor.process import die_with_parent; die_with_parent()\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    parent_code = (
        "import os,subprocess,sys,time\n"
        "env = dict(os.environ, GLEANER_PARENT_PID=str(os.getpid()))\n"
        f"subprocess.Popen([sys.executable, '-c', {child_code!r}], env=env)\n"
        "time.sleep(60)"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", parent_code)
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 10)
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
