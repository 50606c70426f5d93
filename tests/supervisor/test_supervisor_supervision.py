"""Supervisors that really start, stop and restart actors and processes."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from gleaner.supervisor import (
    Actor,
    CannotGoOn,
    Hopeless,
    Intensity,
    JournalDamaged,
    Message,
    ProcessSpec,
    Restarted,
    RestartIntensityReached,
    Supervisor,
    child,
    handles,
    one_for_one,
    rest_for_one,
)
from gleaner.supervisor.testing import TestSystem


class Boom(Message, frozen=True):
    pass


class Bomb(Actor):
    """Ends on request."""

    @handles(Boom)
    async def boom(self, message: Boom) -> None:
        raise RuntimeError("boom")


SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_crashed_actor_returns_under_a_new_incarnation(tmp_path: Path) -> None:
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


class SlowBomb(Bomb):
    """Starts when its gate opens: messages wait until then."""

    gate: ClassVar[asyncio.Event]

    async def on_start(self) -> None:
        await self.gate.wait()


async def test_actor_that_fails_as_soon_as_it_is_up_is_restarted(tmp_path: Path) -> None:
    """It has ended before its supervisor takes note of its start."""
    restarts: list[Restarted] = []
    async with TestSystem(tmp_path) as test:
        SlowBomb.gate = asyncio.Event()
        tree = Supervisor(
            test.system,
            one_for_one(child("bomb", SlowBomb)),
            on_failure=pytest.fail,
            on_restart=restarts.append,
        )
        starting = asyncio.create_task(tree.start())
        await until(lambda: test.system.cell("bomb"))
        first = test.system.cell("bomb")
        assert first is not None
        await test.tell("bomb", Boom())
        await until(lambda: len(first.mailbox))
        SlowBomb.gate.set()
        await starting
        await until(lambda: restarts)
        await until(lambda: (cell := test.system.cell("bomb")) is not None and cell is not first)
        assert [(r.name, r.cause) for r in restarts] == [("bomb", "crashed: RuntimeError: boom")]
        await tree.stop()


async def test_repeated_failure_escalates_through_the_subtree_to_root(tmp_path: Path) -> None:
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
        await until(lambda: failures)
        failure = failures[0]
        assert isinstance(failure, RestartIntensityReached)
        assert [(cause.who, cause.parent) for cause in failure.causes] == [
            ("inner", "outer"),
            ("never", "inner"),
        ]
        assert "process" in failure.causes[1].what
        assert failure.causes[1].how == "exit 3"
        assert failure.causes[1].code == 3
        assert str(failure).startswith(
            "supervisor outer: inner failed again and the limit of 1 restarts in 30 s is reached; because "
            "inner (supervisor, child of outer): supervisor inner: never failed again and the limit of 1 "
        )


async def test_exit_code_of_a_process_can_forbid_a_restart(tmp_path: Path) -> None:
    program = "print('much before'); print('no such model'); raise SystemExit(6)"
    spec = ProcessSpec([sys.executable, "-c", program], tmp_path / "out", hopeless=frozenset({6}))
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
        await until(lambda: problems)
    assert restarts == []
    assert str(problems[0]).endswith("child of root): exit 6: no such model")


async def test_damaged_journal_is_escalated_without_a_retry(tmp_path: Path) -> None:
    starts: list[int] = []

    class Reader(Actor):
        async def on_start(self) -> None:
            starts.append(self.ctx.incarnation)
            raise JournalDamaged("journal x.sqlite is damaged")

    async with TestSystem(tmp_path) as test:
        inner = one_for_one(child("reader", Reader), name="inner")
        root = Supervisor(test.system, one_for_one(child("inner", inner)), on_failure=pytest.fail)
        with pytest.raises(CannotGoOn, match="inner did not start; .* reader did not start") as failure:
            await root.start()
    assert isinstance(failure.value, Hopeless)
    assert isinstance(failure.value.first, JournalDamaged)
    assert len(starts) == 1
