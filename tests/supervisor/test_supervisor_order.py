"""Start and stop order of real supervisors, and the effects of failures."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gleaner.supervisor import (
    BRUTAL_KILL,
    Actor,
    Counts,
    Intensity,
    Message,
    ProcessSpec,
    Restarted,
    RestartIntensityReached,
    StartFailed,
    Status,
    Supervisor,
    TreeSpec,
    child,
    handles,
    one_for_all,
    one_for_one,
    rest_for_one,
    simple_one_for_one,
)
from gleaner.supervisor.testing import TestSystem

QUICK = Intensity(restarts=3, within_s=30.0, backoff_s=0.01)


class FailNoted(Message, frozen=True):
    pass


class Diary(list[str]):
    """The events in order; names the actors that do not start, and those that hang when stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: set[str] = set()
        self.hangs_in_stop: set[str] = set()

    def actor(self) -> "Noted":
        return Noted(self)


class Noted(Actor):
    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    async def on_start(self) -> None:
        if self.ctx.name in self._diary.refuses:
            self._diary.append(f"{self.ctx.name} refuses")
            raise OSError(f"{self.ctx.name} cannot")
        self._diary.append(f"+{self.ctx.name}")

    async def on_stop(self) -> None:
        if self.ctx.name in self._diary.hangs_in_stop:
            await asyncio.sleep(600.0)
        self._diary.append(f"-{self.ctx.name}")

    @handles(FailNoted)
    async def fail(self, message: FailNoted) -> None:
        raise RuntimeError("told to")


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


def tree_of(test: TestSystem, spec: TreeSpec, failures: list[Exception] | None = None) -> Supervisor:
    on_failure = failures.append if failures is not None else pytest.fail
    return Supervisor(test.system, spec, on_failure=on_failure)  # type: ignore[arg-type]


async def test_nested_supervisors_start_and_stop_in_order(tmp_path: Path) -> None:
    diary = Diary()
    inner = one_for_one(child("b", diary.actor), child("c", diary.actor), name="inner")
    async with TestSystem(tmp_path) as test:
        tree = tree_of(
            test, one_for_one(child("a", diary.actor), child("in", inner), child("d", diary.actor))
        )
        await tree.start()
        assert tree.count_children() == Counts(specs=3, active=3, supervisors=1, workers=2)
        await tree.stop()
    assert diary == ["+a", "+b", "+c", "+d", "-d", "-c", "-b", "-a"]


async def test_failed_child_start_stops_earlier_ones_and_fails(tmp_path: Path) -> None:
    diary = Diary()
    diary.refuses = {"c"}
    async with TestSystem(tmp_path) as test:
        tree = tree_of(
            test, one_for_one(*(child(name, diary.actor) for name in "abcd"), intensity=QUICK, name="top")
        )
        with pytest.raises(StartFailed) as failure:
            await tree.start()
        assert tree.count_children().active == 0
        assert {test.system.cell(name) for name in "abcd"} == {None}
    assert diary == ["+a", "+b", "c refuses", "-b", "-a"]
    assert str(failure.value) == (
        "supervisor top: c did not start; because c (actor on test/test, child of top): OSError: c cannot"
    )
    assert isinstance(failure.value.first, OSError)


async def test_rest_for_one_restarts_later_children_in_order(tmp_path: Path) -> None:
    diary = Diary()
    async with TestSystem(tmp_path) as test:
        tree = tree_of(test, rest_for_one(*(child(name, diary.actor) for name in "abcd"), intensity=QUICK))
        await tree.start()
        await test.tell("b", FailNoted())
        await until(lambda: diary.count("+d") == 2)
        await test.tell("b", FailNoted())  # the second in a row backs off; the order holds
        await until(lambda: diary.count("+d") == 3)
        await tree.stop()
    again = ["-d", "-c", "+b", "+c", "+d"]
    assert diary[4:] == [*again, *again, "-d", "-c", "-b", "-a"]


async def test_failed_restart_is_retried_until_intensity_is_spent(tmp_path: Path) -> None:
    diary = Diary()
    failures: list[Exception] = []
    async with TestSystem(tmp_path) as test:
        tree = tree_of(
            test, one_for_all(*(child(name, diary.actor) for name in "ab"), intensity=QUICK), failures
        )
        await tree.start()
        diary.refuses = {"b"}
        await test.tell("a", FailNoted())
        await until(lambda: failures)
    assert diary[2:] == ["-b", *["+a", "b refuses", "-a"] * 3]
    assert isinstance(failures[0], RestartIntensityReached)
    assert "b (actor on test/test, child of root): OSError: b cannot" in str(failures[0])


async def test_brutal_kill_skips_on_stop_and_hung_stop_expires(tmp_path: Path) -> None:
    diary = Diary()
    diary.hangs_in_stop = {"deaf"}
    async with TestSystem(tmp_path) as test:
        tree = tree_of(
            test,
            one_for_one(
                child("last", diary.actor),
                child("brutal", diary.actor, shutdown_s=BRUTAL_KILL),
                child("deaf", diary.actor, shutdown_s=0.05),
            ),
        )
        await tree.start()
        async with asyncio.timeout(60.0):
            await tree.stop()
        assert test.system.cell("deaf") is None
    assert diary[3:] == ["-last"]


async def test_subtree_stop_waits_for_children_unless_limited(tmp_path: Path) -> None:
    diary = Diary()
    diary.hangs_in_stop = {"deaf"}
    async with TestSystem(tmp_path) as test:
        inner = one_for_one(child("deaf", diary.actor, shutdown_s=500.0), name="inner")
        assert child("in", inner).shutdown_s == float("inf")
        tree = tree_of(test, one_for_one(child("in", inner, shutdown_s=0.05)))
        await tree.start()
        async with asyncio.timeout(60.0):
            await tree.stop()
        assert test.system.cell("deaf") is None


async def test_stop_interrupts_a_start_and_leaves_nothing(tmp_path: Path) -> None:
    class Slow(Actor):
        async def on_start(self) -> None:
            await asyncio.sleep(600.0)

    diary = Diary()
    async with TestSystem(tmp_path) as test:
        inner = one_for_one(child("slow", Slow), child("never", diary.actor), name="inner")
        tree = tree_of(
            test, one_for_one(child("a", diary.actor), child("in", inner), child("z", diary.actor))
        )
        starting = asyncio.create_task(tree.start())
        await until(lambda: test.system.cell("slow"))
        async with asyncio.timeout(60.0):
            await tree.stop()
            await starting
        assert {test.system.cell(name) for name in ("a", "slow", "never", "z")} == {None}
    assert diary == ["+a", "-a"]


async def test_stop_during_a_back_off_starts_nothing_more(tmp_path: Path) -> None:
    diary = Diary()
    slow = Intensity(restarts=9, within_s=6000.0, backoff_s=600.0)
    async with TestSystem(tmp_path) as test:
        tree = tree_of(test, one_for_one(child("a", diary.actor), intensity=slow))
        await tree.start()
        for life in (1, 2):
            await until(lambda life=life: diary.count("+a") == life)  # type: ignore[misc]
            await test.tell("a", FailNoted())
        await until(lambda: tree.which_children() == {"a": Status.RESTARTING})
        await tree.stop()
        assert tree.which_children() == {"a": Status.DOWN}
    assert diary == ["+a", "+a"]


async def test_work_unit_shuts_down_without_a_restart(tmp_path: Path) -> None:
    diary = Diary()
    done = ProcessSpec([sys.executable, "-c", "pass"], tmp_path / "out")
    unit = one_for_one(
        child("helper", diary.actor),
        child("job", done, restart="transient", significant=True),
        name="unit",
        auto_shutdown="any_significant",
    )
    async with TestSystem(tmp_path) as test:
        tree = tree_of(
            test, one_for_one(child("unit", unit, restart="transient"), child("other", diary.actor))
        )
        await tree.start()
        await until(lambda: tree.which_children()["unit"] is Status.DOWN)
        assert tree.which_children()["other"] is Status.RUNNING
        assert diary == ["+helper", "+other", "-helper"]
        ended: list[str] = []
        root = Supervisor(
            test.system, unit, on_failure=pytest.fail, on_shutdown=lambda: ended.append("in order")
        )
        await root.start()
        await until(lambda: ended)
        await tree.stop()


async def test_children_are_added_terminated_restarted_and_deleted_manually(tmp_path: Path) -> None:
    diary = Diary()
    async with TestSystem(tmp_path) as test:
        tree = tree_of(test, one_for_one(child("a", diary.actor)))
        await tree.start()
        await tree.add(child("b", diary.actor))
        await tree.terminate_child("b")
        assert tree.which_children() == {"a": Status.RUNNING, "b": Status.DOWN}
        assert [(row.name, row.state) for row in tree.states()] == [("a", "running"), ("b", "down")]
        await tree.restart_child("b")
        with pytest.raises(ValueError, match="'b' is running"):
            await tree.delete_child("b")
        await tree.remove("b")
        assert tree.names() == ["a"]
        diary.refuses = {"c"}
        with pytest.raises(StartFailed, match="c cannot"):
            await tree.add(child("c", diary.actor))
        assert tree.names() == ["a"]
        await tree.stop()
    assert diary == ["+a", "+b", "-b", "+b", "-b", "c refuses", "-a"]


async def test_pool_adds_template_instances_and_stops_all_together(tmp_path: Path) -> None:
    class Pooled(Actor):
        def __init__(self, greeting: str, number: int) -> None:
            self._greeting = f"{greeting} {number}"

        async def on_start(self) -> None:
            greetings.append(self._greeting)

        async def on_stop(self) -> None:
            stopping.append(self.ctx.name)
            await until(lambda: len(stopping) == 3)

        @handles(FailNoted)
        async def fail(self, message: FailNoted) -> None:
            raise RuntimeError("told to")

    greetings: list[str] = []
    stopping: list[str] = []
    async with TestSystem(tmp_path) as test:
        tree = tree_of(test, simple_one_for_one(child("worker", Pooled), name="pool", intensity=QUICK))
        await tree.start()
        assert tree.names() == []
        for number in range(3):
            await tree.add_instance(f"worker-{number}", "hello", number)
        with pytest.raises(ValueError, match="is a pool"):
            await tree.add(child("other", Pooled))
        await test.tell("worker-1", FailNoted())
        await until(lambda: greetings.count("hello 1") == 2)
        await tree.stop()
    assert sorted(stopping) == ["worker-0", "worker-1", "worker-2"]
    assert greetings == ["hello 0", "hello 1", "hello 2", "hello 1"]


async def test_process_pool_appends_arguments_to_the_command(tmp_path: Path) -> None:
    code = "import sys,time; print(sys.argv[1], flush=True); time.sleep(60)"
    template = ProcessSpec([sys.executable, "-c", code], tmp_path / "template")
    async with TestSystem(tmp_path) as test:
        tree = tree_of(test, simple_one_for_one(child("p", template), name="pool"))
        await tree.start()
        await tree.add_instance("p-1", "first")
        await tree.add_instance("p-2", "second")
        await until(lambda: (tmp_path / "p-2.out").read_text() == "second\n")
        await until(lambda: (tmp_path / "p-1.out").read_text() == "first\n")
        await tree.stop()


async def test_added_children_are_lost_when_supervisor_restarts(tmp_path: Path) -> None:
    diary = Diary()
    restarts: list[Restarted] = []
    never = Intensity(restarts=0, within_s=60.0)
    inner = one_for_one(child("b", diary.actor), name="inner", intensity=never)
    async with TestSystem(tmp_path) as test:
        tree = Supervisor(
            test.system,
            one_for_one(child("in", inner), intensity=QUICK),
            on_failure=pytest.fail,
            on_restart=restarts.append,
        )
        await tree.start()
        subtree = tree.subtree("in")
        assert subtree is not None
        await subtree.add(child("c", diary.actor))
        await test.tell("b", FailNoted())
        await until(lambda: diary.count("+b") == 2)
        assert (diary, restarts[0].name) == (["+b", "+c", "-c", "+b"], "in")
        assert restarts[0].cause.startswith("RestartIntensityReached: supervisor inner: b failed, and")
        await tree.stop()
