"""The Scheduler shows the figures by which a user judges rounds, and `rlctl describe` prints them."""

import asyncio
import io
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from gleaner.actors.cluster.plan_figures import Figures, length_figures, measured_tail, plan_figures
from gleaner.actors.cluster.scheduler import Scheduler
from gleaner.actors.cluster.seeding import SeedingState
from gleaner.actors.protocol.cluster import (
    JobEnded,
    JobIs,
    JobSpec,
    Plan,
    PlanNext,
    SetFleet,
    StartFleet,
    StopFleet,
    SubmitJob,
)
from gleaner.actors.protocol.step_times import RoundKinds, Seen, StepTimes
from gleaner.actors.protocol.throughput import EnginePace
from gleaner.configs import load
from gleaner.rlctl.commands.describe import render
from gleaner.supervisor import Actor, Address, handles
from gleaner.supervisor.inspection.messages import ActorDescribed, Describe
from gleaner.supervisor.system_messages import SYSTEM
from gleaner.supervisor.testing import TestSystem

PACE = EnginePace(step_s=0.01, context_s=1e-6, row_s=1e-4, slots=8)
LENGTHS = [[90, 100], [100, 110], [100, 1000]]
TAIL: Figures = {"longest_over_median": 10.0, "at_limit": 0.167, "groups_at_limit": 0.333}
SEEN = Seen(
    step_s=20.0,
    seeding_s=6.0,
    update_s=0.5,
    rolled_s=14.0,
    start_s=1.0,
    reserved=PACE,
    preemptible=None,
    requests=6,
    groups=3,
    limit=1000,
    lengths=LENGTHS,
    prompt_tokens=9.0,
)
TIMES = StepTimes(
    train_wait_s=8.0, remote_wait_s=0.0, train_s=4.0, remote_s=0.0, mean_prem=0.0, next_prem=0, seen=SEEN
)
KEYS = (*TAIL, "rollout_share", "tail_gain", "tail_surplus")
WHOLE = RoundKinds(done="plain", ahead="plain", shorts=2.0, surplus=1)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator["World"]:
    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="look", join=head) as look:
        yield World(head, look)


class Provider(Actor):
    """Takes every job."""

    @handles(StartFleet)
    async def start_fleet(self, message: StartFleet) -> None:
        return None

    @handles(SetFleet)
    async def set_fleet(self, message: SetFleet) -> None:
        return None

    @handles(StopFleet)
    async def stop_fleet(self, message: StopFleet) -> None:
        return None


class World:
    """A Scheduler with a job, and a process beside it that looks at it."""

    def __init__(self, head: TestSystem, look: TestSystem) -> None:
        self._head, self._look = head, look
        head.spawn("cluster/provider", Provider)
        self.schedule()

    def schedule(self) -> None:
        self._head.spawn("cluster/scheduler", lambda: Scheduler(1))

    async def submit(self, run_id: str, *settings: str) -> None:
        config = load.dump(load.load("quickstart", list(settings)))
        spec = JobSpec(run_id=run_id, run_dir="/nowhere", model_dir="/nowhere", config=config)
        assert (await self._head.ask("cluster/scheduler", SubmitJob(job=spec), JobIs)).state == "running"

    async def plan(self, step: int, times: StepTimes) -> None:
        await self._head.ask("cluster/scheduler", PlanNext(step=step, times=times), Plan)

    async def described(self) -> ActorDescribed:
        async with asyncio.timeout(60.0):
            cell = self._head.system.cell
            while (scheduler := cell("cluster/scheduler")) is None or not scheduler.ready:
                await asyncio.sleep(0.01)
        process = Address(name=SYSTEM, endpoint=self._head.system.endpoint)
        return await self._look.ask(process, Describe(name="cluster/scheduler"), ActorDescribed)

    async def shown(self) -> Figures:
        return (await self.described()).figures

    async def end(self) -> None:
        await self._head.tell("cluster/scheduler", JobEnded(ok=True))
        async with asyncio.timeout(60.0):
            while (await self.shown())["state"] != "done":
                await asyncio.sleep(0.01)

    def restart(self) -> None:
        self._head.kill("cluster/scheduler")
        self.schedule()


def test_length_figures_are_of_all_responses_of_the_groups() -> None:
    assert length_figures(LENGTHS, 1000) == TAIL
    assert length_figures(LENGTHS, 2000)["groups_at_limit"] == 0.0
    assert length_figures([[1000, 1000], [500, 500]], 1000) == {
        "longest_over_median": 1.33,
        "at_limit": 0.5,
        "groups_at_limit": 0.5,
    }


@pytest.mark.parametrize("groups", [[], [[]], [[0, 0, 7]]])
def test_length_figures_are_left_out_without_a_median(groups: list[list[int]]) -> None:
    assert length_figures(groups, 1000) == {}


def test_rollout_share_is_seeding_and_waiting_over_the_step() -> None:
    assert measured_tail(TIMES) == {**TAIL, "rollout_share": 0.7}
    assert measured_tail(structs.replace(TIMES, train_wait_s=1000.0))["rollout_share"] == 1.0
    for unknown_s in (0.0, math.inf, math.nan):
        assert measured_tail(structs.replace(TIMES, seen=structs.replace(SEEN, step_s=unknown_s))) == TAIL
    assert measured_tail(structs.replace(TIMES, seen=None)) == {}


def test_prediction_of_rounds_is_shown_only_where_there_is_one() -> None:
    plain = SeedingState(t_seed_s=1.0, n_prem=2)
    assert not {"tail_gain", "tail_surplus"} & plan_figures(plain, None).keys()
    figures = plan_figures(structs.replace(plain, tail_gain=-0.1234, tail_surplus=0), None)
    assert (figures["tail_gain"], figures["tail_surplus"]) == (-0.123, 0)


@pytest.mark.parametrize("controller", ["feedback", "model"])
async def test_scheduler_shows_the_tail_of_the_last_step_when_a_job_has_no_rounds(
    world: World, controller: str
) -> None:
    await world.submit("run", f"seeding.controller={controller}")
    assert not set(KEYS) & (await world.shown()).keys(), "no step was measured"
    await world.plan(1, TIMES)
    shown = await world.shown()
    assert {key: shown[key] for key in KEYS if key in shown} == {**TAIL, "rollout_share": 0.7}
    await world.plan(1, structs.replace(TIMES, train_wait_s=0.0))
    assert (await world.shown())["rollout_share"] == 0.7, "the step was measured already"
    await world.plan(2, structs.replace(TIMES, train_wait_s=0.0))
    assert (await world.shown())["rollout_share"] == 0.3


async def test_scheduler_shows_predicted_gain_when_rounds_are_chosen_by_prediction(world: World) -> None:
    await world.submit("run", "rounds.mode=auto", "rounds.prompts_plan=model")
    await world.plan(1, structs.replace(TIMES, rounds=structs.replace(WHOLE, surpluses=[1, 2])))
    shown = await world.shown()
    assert isinstance(shown["tail_gain"], float)
    assert shown["tail_surplus"] in (1, 2)


async def test_restarted_scheduler_shows_lengths_of_its_journaled_plan(world: World) -> None:
    await world.submit("run")
    await world.plan(1, TIMES)
    world.restart()
    shown = await world.shown()
    assert {key: shown[key] for key in KEYS if key in shown} == TAIL


async def test_next_job_shows_no_figures_of_the_one_before(world: World) -> None:
    await world.submit("run")
    await world.plan(1, TIMES)
    await world.end()
    await world.submit("next")
    assert not set(KEYS) & (await world.shown()).keys()


async def test_describe_prints_figures_of_the_tail(world: World) -> None:
    await world.submit("run")
    await world.plan(1, TIMES)
    out = Console(file=io.StringIO(), width=100)
    out.print(render(await world.described(), 100))
    assert isinstance(out.file, io.StringIO)
    rows = [line.split() for line in out.file.getvalue().splitlines()]
    for row in (["longest_over_median", "10.0"], ["groups_at_limit", "0.333"], ["rollout_share", "0.7"]):
        assert row in rows
