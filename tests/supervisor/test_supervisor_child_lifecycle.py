"""`ChildLifecycle`: begins, ends and messages of children, without a supervisor and without actors."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest

from gleaner.supervisor import Actor, ChildSpec, Refused, Restarted, child
from gleaner.supervisor.cell import Cell
from gleaner.supervisor.child_lifecycle import START_LATE_S, ChildExit, ChildLifecycle
from gleaner.supervisor.child_spec import INFINITY
from gleaner.supervisor.managed_child import KILLED_S, ChildEnd, OnEnd, RunningChild
from gleaner.supervisor.system_messages import ActorState, WaitState
from gleaner.supervisor.tree import Start, Status
from gleaner.supervisor.waits import Waits

CRASH = ChildEnd("Crash: no memory", "actor on n/p")
REASON_TO_FAIL = ChildEnd("ValueError: no such model", "actor on n/p")


@dataclass
class Heir:
    """Waiting messages of an ended life, in their newest holder."""

    discarded: int = 0

    def latest(self) -> "Heir":
        return self

    def discard(self) -> None:
        self.discarded += 1


@dataclass
class Life:
    """One life of a child: `start` returns `fails`."""

    family: "Family"
    spec: ChildSpec
    on_end: OnEnd
    given: Heir | None
    fails: ChildEnd | None
    left: Heir = field(default_factory=Heir)
    halted: asyncio.Future[None] | None = None
    incarnation: int = 7
    pid: int = 41

    async def start(self, halted: asyncio.Future[None]) -> ChildEnd | None:
        self.halted = halted
        self.family.note("start", self)
        return self.fails

    async def stop(self, within_s: float, *, again: bool = False) -> None:
        self.family.note(f"stop {within_s:g} {again}", self)

    def kill(self) -> None:
        self.family.events.append(f"kill {self.spec.name}")

    def heir(self) -> Cell | None:
        return cast("Cell", self.left)


class Family:
    """Children `a`, `b` and `c` of the supervisor `root`, and all that their lifecycle reports."""

    def __init__(self, *, reports_restarts: bool = True) -> None:
        self.specs = {name: child(name, Actor) for name in ("a", "b", "c")}
        self.waits = Waits()
        self.events: list[str] = []
        self.seen: list[WaitState] = []
        """The wait that was listed during each event with one."""
        self.lives: list[Life] = []
        self.fails: ChildEnd | None = None
        self.refuses: Refused | None = None
        self.exits: list[ChildExit] = []
        self.restarts: list[Restarted] = []
        self.halted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        on_restart = self.restarts.append if reports_restarts else None
        self.lifecycle = ChildLifecycle("root", self.begin, self.exits.append, on_restart, self.waits)

    def begin(self, spec: ChildSpec, on_end: OnEnd, heir: Cell | None) -> RunningChild:
        if self.refuses is not None:
            raise self.refuses
        life = Life(self, spec, on_end, cast("Heir | None", heir), self.fails)
        self.lives.append(life)
        return life

    def note(self, event: str, life: Life) -> None:
        self.events.append(f"{event} {life.spec.name}")
        self.seen += self.waits.snapshot()

    async def start(self, name: str, because: str = "") -> ChildEnd | None:
        return await self.lifecycle.start(Start(name, because), self.specs[name], self.halted)

    async def crash(self, name: str, because: ChildEnd = CRASH) -> None:
        """A life of the child ends by itself; its supervisor takes note of that."""
        life = next(life for life in reversed(self.lives) if life.spec.name == name)
        life.on_end(because)
        assert self.lifecycle.ended(self.exits[-1])

    def state(self, name: str, status: Status) -> ActorState:
        return self.lifecycle.state(name, status, "one_for_all")


async def test_child_runs_from_its_start_until_it_is_stopped() -> None:
    family = Family()
    assert family.lifecycle.begun() == []
    assert family.lifecycle.running("a") is None
    for name in ("b", "a"):
        assert await family.start(name) is None
    assert [life.spec.name for life in family.lives] == ["b", "a"]
    assert [life.halted for life in family.lives] == [family.halted] * 2
    assert family.lifecycle.begun() == ["b", "a"], "in the order of the starts"
    assert family.lifecycle.running("a") is family.lives[1]
    await family.lifecycle.stop("b", 2.0, again=True)
    await family.lifecycle.stop("b", 2.0)
    await family.lifecycle.stop("unknown", 2.0)
    assert family.events == ["start b", "start a", "stop 2 True b"], "one stop of each life"
    assert family.lifecycle.begun() == ["a"]
    assert family.lifecycle.running("b") is None


@pytest.mark.parametrize(("within_s", "late_s"), [(5.0, 5.0), (INFINITY, START_LATE_S)])
async def test_start_and_stop_are_waits_of_the_supervisor_on_the_child(
    within_s: float, late_s: float
) -> None:
    family = Family()
    await family.start("a")
    await family.lifecycle.stop("a", within_s)
    assert [(wait.who, wait.what, wait.on) for wait in family.seen] == [
        ("root", "a child to start", "a"),
        ("root", "a child to stop", "a"),
    ]
    assert [wait.left_s for wait in family.seen] == pytest.approx([START_LATE_S, late_s + KILLED_S], abs=0.5)
    assert len(family.waits) == 0


async def test_failed_start_leaves_nothing_that_runs() -> None:
    family = Family()
    family.fails = REASON_TO_FAIL
    assert await family.start("a") == REASON_TO_FAIL
    assert family.lifecycle.running("a") is None
    assert family.lifecycle.last("a") == REASON_TO_FAIL


async def test_child_that_cannot_be_begun_has_failed_to_start() -> None:
    family = Family()
    family.refuses = Refused("the name is taken")
    ended = await family.start("a")
    assert ended == ChildEnd("Refused: the name is taken", "never begun", problem=family.refuses)
    assert family.lifecycle.last("a") is ended
    assert family.lifecycle.begun() == []


async def test_end_of_a_life_names_the_child_and_the_life_that_ended() -> None:
    family = Family()
    await family.start("a")
    await family.start("b")
    family.lives[0].on_end(CRASH)
    (exited,) = family.exits
    assert (exited.name, exited.ended) == ("a", CRASH)
    assert family.lifecycle.begun() == ["a", "b"], "until the supervisor takes note"
    assert family.lifecycle.ended(exited)
    assert family.lifecycle.begun() == ["b"]
    assert family.lifecycle.last("a") == CRASH
    assert not family.lifecycle.ended(ChildExit("unknown", 1, CRASH))


async def test_late_report_of_a_stopped_life_does_not_end_the_next_one() -> None:
    family = Family()
    await family.start("a")
    first = family.lives[0]
    first.on_end(CRASH)
    await family.lifecycle.stop("a", 2.0)
    assert not family.lifecycle.ended(family.exits[0]), "it was stopped on purpose meanwhile"
    await family.start("a")
    first.on_end(CRASH)
    assert [family.lifecycle.ended(exited) for exited in family.exits] == [False, False]
    assert family.lifecycle.begun() == ["a"]


async def test_late_report_of_a_life_that_was_replaced_does_not_end_the_next_one() -> None:
    family = Family()
    await family.start("a")
    await family.crash("a")
    await family.start("a", because="a")
    assert not family.lifecycle.ended(family.exits[0])
    assert family.lifecycle.running("a") is family.lives[1]


async def test_restart_is_reported_with_the_cause_and_the_child_that_caused_it() -> None:
    family = Family()
    await family.start("a")
    await family.start("b")
    assert family.restarts == [], "a first start is none"
    await family.crash("a")
    await family.lifecycle.stop("b", 2.0, again=True)
    await family.start("a", because="a")
    await family.start("b", because="a")
    await family.crash("b", REASON_TO_FAIL)
    await family.start("b", because="b")
    assert family.restarts == [
        Restarted("a", CRASH.how, 1),
        Restarted("b", f"with a: {CRASH.how}", 1),
        Restarted("b", REASON_TO_FAIL.how, 2),
    ]


async def test_restart_without_a_listener_is_counted_all_the_same() -> None:
    family = Family(reports_restarts=False)
    await family.start("a")
    await family.crash("a")
    await family.start("a", because="a")
    assert family.state("a", Status.RUNNING).restarts == 1


@pytest.mark.parametrize("end", ["crash", "stop", "failed start"])
async def test_messages_pass_to_the_next_life_and_stay_there(end: str) -> None:
    family = Family()
    if end == "failed start":
        family.fails = REASON_TO_FAIL
    await family.start("a")
    family.fails = None
    if end == "crash":
        await family.crash("a")
    elif end == "stop":
        await family.lifecycle.stop("a", 2.0, again=True)
    await family.start("a", because="" if end == "stop" else "a")
    first, second = family.lives
    assert first.given is None
    assert second.given is first.left
    family.lifecycle.keep({"a": Status.RUNNING})
    assert first.left.discarded == 0, "the next life has them"


async def test_messages_wait_only_for_a_child_that_is_to_restart() -> None:
    family = Family()
    for name in ("a", "b", "c"):
        await family.start(name)
        await family.crash(name)
    family.lifecycle.keep({"a": Status.RESTARTING, "b": Status.DOWN})
    family.lifecycle.keep({"a": Status.RESTARTING, "b": Status.DOWN})
    assert [life.left.discarded for life in family.lives] == [0, 1, 1], "each at most once"
    await family.start("a", because="a")
    await family.start("b")
    assert [life.given for life in family.lives[3:]] == [family.lives[0].left, None]


async def test_child_that_is_declared_no_more_is_forgotten_and_any_other_kept() -> None:
    family = Family()
    for name in ("a", "b"):
        await family.start(name)
        await family.crash(name)
        await family.start(name, because=name)
    family.lifecycle.keep({"b": Status.RUNNING})
    assert family.lifecycle.begun() == ["b"]
    assert (family.state("a", Status.DOWN).restarts, family.state("b", Status.RUNNING).restarts) == (0, 1)
    with pytest.raises(KeyError):
        family.lifecycle.last("a")


async def test_kill_ends_what_runs_with_the_newest_first() -> None:
    family = Family()
    for name in ("a", "b", "c"):
        await family.start(name)
    await family.lifecycle.stop("b", 2.0)
    family.events.clear()
    family.lifecycle.kill()
    assert family.events == ["kill c", "kill a"]


async def test_state_is_that_of_the_running_life() -> None:
    family = Family()
    unknown = family.state("a", Status.DOWN)
    assert (unknown.state, unknown.incarnation, unknown.pid) == ("down", 0, 0)
    assert (unknown.restarts, unknown.last_failure) == (0, "")
    await family.start("a")
    up = family.state("a", Status.RUNNING)
    assert (up.name, up.parent, up.strategy, up.state) == ("a", "root", "one_for_all", "running")
    assert (up.incarnation, up.pid, up.last_failure) == (7, 41, "")
    assert family.state("a", Status.DOWN).state == "starting", "it runs, and its start is not over"
    assert family.state("a", Status.RESTARTING).state == "starting"
    await family.crash("a")
    waits = family.state("a", Status.RESTARTING)
    assert (waits.state, waits.incarnation, waits.pid) == ("restarting", 0, 0)
    assert waits.last_failure == CRASH.how
    await family.start("a", because="a")
    again = family.state("a", Status.RUNNING)
    assert (again.restarts, again.last_failure) == (1, CRASH.how)
