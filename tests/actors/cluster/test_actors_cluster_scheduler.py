"""Scheduler with a fake provider, controller and node agents.

One job runs at a time, each host is reported once, and plans are durable.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs
from patient_loop import PatientLoop

from gleaner.actors.cluster.membership_journal import MembersAre
from gleaner.actors.cluster.scheduler import Scheduler
from gleaner.actors.protocol.cluster import (
    Inventory,
    JobEnded,
    JobIs,
    JobSpec,
    JobStatus,
    NodeHello,
    NodeSeen,
    NodeWork,
    Plan,
    PlanNext,
    SayHello,
    SetFleet,
    StartFleet,
    StopFleet,
    SubmitJob,
)
from gleaner.actors.protocol.step_times import Seen, StepTimes
from gleaner.configs import load
from gleaner.configs.schema import Config
from gleaner.supervisor import Actor, Address, Lane, Message, Refused, handles
from gleaner.supervisor.journal.port import Journal
from gleaner.supervisor.testing import TestSystem

INVENTORY = Inventory(hostname="h", cores=1, memory_bytes=1)
TIMES = StepTimes(train_wait_s=4.0, remote_wait_s=0.0, train_s=2.0, remote_s=5.0, mean_prem=1.0, next_prem=2)


class Provider(Actor):
    """Records the messages that it receives; refuses jobs named `bad`."""

    def __init__(self, received: list[Message]) -> None:
        self._received = received

    @handles(StartFleet)
    async def start_fleet(self, message: StartFleet) -> None:
        if message.job.run_id == "bad":
            raise Refused("trace.csv:3: unknown event")
        self._received.append(message)

    @handles(SetFleet)
    async def set_fleet(self, message: SetFleet) -> None:
        self._received.append(message)

    @handles(StopFleet)
    async def stop_fleet(self, message: StopFleet) -> None:
        self._received.append(message)


class Controller(Actor):
    """Records the hosts that were reported to it."""

    def __init__(self, seen: list[tuple[str, str]]) -> None:
        self._seen = seen

    @handles(NodeSeen)
    async def node_seen(self, message: NodeSeen) -> None:
        self._seen.append((message.node, message.event))


class Idle(Actor):
    """A node agent's address."""


class World:
    """A head in one process."""

    def __init__(self, test: TestSystem) -> None:
        self.test = test
        self.received: list[Message] = []
        self.seen: list[tuple[str, str]] = []
        test.spawn("cluster/provider", lambda: Provider(self.received))
        self.schedule()

    def schedule(self, boot: int = 1, standing: JobSpec | None = None) -> None:
        self.test.spawn("cluster/scheduler", lambda: Scheduler(boot, standing))

    def control(self) -> None:
        self.test.spawn("training/controller", lambda: Controller(self.seen))

    async def submit(self, run_id: str = "run") -> JobIs:
        return await self.test.ask("cluster/scheduler", SubmitJob(job=job(run_id)), JobIs)

    async def hello(
        self, node: str, agent: Address, state: str = "up", run_id: str = "", width: int = 0
    ) -> NodeWork:
        message = NodeHello(
            node=node,
            role="preemptible",
            agent=agent,
            inventory=INVENTORY,
            state=state,
            run_id=run_id,
            width=width,
        )
        return await self.test.ask("cluster/scheduler", message, NodeWork)

    async def plan(self, step: int, times: StepTimes | None) -> Plan:
        return await self.test.ask("cluster/scheduler", PlanNext(step=step, times=times), Plan)

    async def state(self) -> str:
        return (await self.test.ask("cluster/scheduler", JobStatus(), JobIs)).state


def job(run_id: str) -> JobSpec:
    return JobSpec(run_id=run_id, run_dir="/nowhere", model_dir="/nowhere", config=load.dump(Config()))


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_job_is_taken_once_and_given_to_hosts(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        agent = test.spawn("spot/agent", Idle)
        assert (await world.hello("spot", agent)).job is None
        assert (await world.submit()).state == "running"
        assert (await world.submit()).state == "running"
        assert [type(message) for message in world.received] == [StartFleet]
        assert (await world.hello("spot", agent)).job == job("run")
        with pytest.raises(Refused, match="job run is running here"):
            await world.submit("other")


async def test_standing_job_is_given_with_the_first_hello_and_replaces_any_other(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        await world.submit("other")
        agent = test.spawn("spot/agent", Idle)
        for boot in (2, 3):
            test.kill("cluster/scheduler")
            world.schedule(boot, standing=job("service"))
            work = await world.hello("spot", agent)
            assert (work.job, work.done) == (job("service"), "other")
        await until(lambda: StartFleet(job=job("service")) in world.received)


class Called(Actor):
    """A node agent that only counts how often it is called."""

    def __init__(self) -> None:
        self.calls = 0

    @handles(SayHello, lane=Lane.SYSTEM)
    async def called(self, message: SayHello) -> None:
        self.calls += 1


async def test_hosts_get_hello_intervals_and_calls_for_jobs(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world, called = World(test), Called()
        agent = test.spawn("spot/agent", lambda: called)
        assert (await world.hello("spot", agent)).hello_s == Config().liveness.hello_s
        await world.submit()
        await until(lambda: called.calls == 1)
        await world.hello("spot", agent, run_id="run")
        await test.tell("cluster/scheduler", JobEnded(ok=True))
        await until(lambda: called.calls == 2)
        calm = load.dump(load.load("quickstart", ["liveness.dead_s=30"]))
        spec = JobSpec(run_id="calm", run_dir="/nowhere", model_dir="/nowhere", config=calm)
        await test.ask("cluster/scheduler", SubmitJob(job=spec), JobIs)
        waits = await world.hello("spot", agent, run_id="run")
        assert (waits.job, waits.hello_s < 1.0) == (None, True), "hosts ask often until all released the job"
        assert (await world.hello("spot", agent)) == NodeWork(job=spec, hello_s=6.0, done="run")


async def test_next_job_begins_when_hosts_released_the_last(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        slow, quick = test.spawn("slow/agent", Idle), test.spawn("quick/agent", Idle)
        await world.submit()
        for node, agent in (("slow", slow), ("quick", quick)):
            await world.hello(node, agent)
            assert (await world.hello(node, agent, run_id="run")).job == job("run")
        await test.tell("cluster/scheduler", JobEnded(ok=True))
        assert (await world.submit("next")).state == "running"
        assert (await world.hello("quick", quick)).job is None
        assert (await world.hello("slow", slow, run_id="run")).job is None
        assert (await world.hello("slow", slow)).job == job("next")
        assert (await world.hello("quick", quick)).job == job("next")
        stray = test.spawn("stray/agent", Idle)  # this host was cut off while the jobs changed
        assert (await world.hello("stray", stray, run_id="run")).job is None
        assert (await world.hello("slow", slow, run_id="next")).job == job("next")
        assert (await world.hello("stray", stray)).job == job("next")


async def test_job_without_obtainable_hosts_is_refused_and_forgotten(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        with pytest.raises(Refused, match="unknown event"):
            await world.submit("bad")
        assert await world.state() == "none"


async def test_unreadable_settings_are_refused(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        World(test)
        spec = JobSpec(run_id="r", run_dir="/", model_dir="/", config="[rollout]\nprompts = 'abc'\n")
        with pytest.raises(Refused, match=r"rollout\.prompts"):
            await test.ask("cluster/scheduler", SubmitJob(job=spec), JobIs)


async def test_job_and_plan_survive_a_scheduler_crash(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        await world.submit()
        first = await world.plan(0, None)
        planned = await world.plan(1, TIMES)
        assert planned != first
        test.kill("cluster/scheduler")
        world.schedule(boot=2)
        assert await world.state() == "running"
        assert await world.plan(1, TIMES) == planned  # the same step again is not measured twice
        assert await world.plan(2, None) == planned
        await until(lambda: [type(m) for m in world.received].count(StartFleet) == 2)


async def test_every_plan_reaches_the_provider(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        await world.submit()
        plan = await world.plan(1, TIMES)
        await until(lambda: SetFleet(n_prem=plan.n_prem) in world.received)


async def test_restarted_scheduler_sends_its_plan_before_it_asks_for_hosts(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        await world.submit()
        plan = await world.plan(1, TIMES)
        await until(lambda: SetFleet(n_prem=plan.n_prem) in world.received)
        test.kill("cluster/scheduler")
        world.received.clear()
        world.schedule(boot=2)
        await until(lambda: len(world.received) == 2)
        assert world.received == [SetFleet(n_prem=plan.n_prem), StartFleet(job=job("run"))]


async def test_plan_reaches_a_provider_that_restarts(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        await world.submit()
        test.kill("cluster/provider")
        plan = await world.plan(1, TIMES)
        test.spawn("cluster/provider", lambda: Provider(world.received))
        await until(lambda: SetFleet(n_prem=plan.n_prem) in world.received)


async def test_late_controller_receives_every_host_in_order(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        agents = {name: test.spawn(f"{name}/agent", Idle) for name in ("one", "two", "three")}
        await world.hello("one", agents["one"])  # before there is a job
        await world.submit()
        await world.hello("two", agents["two"])
        await world.hello("three", agents["three"])
        await world.hello("two", agents["two"], state="leaving")
        world.control()
        await until(lambda: len(world.seen) == 4)
        assert world.seen == [("one", "joined"), ("two", "joined"), ("three", "joined"), ("two", "left")]


async def test_vanished_host_is_reported_killed_once(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        world.control()
        await world.submit()
        async with TestSystem(tmp_path, node="spot", join=test) as spot:
            await world.hello("spot", spot.spawn("spot/agent", Idle))
            test.network.kill("spot")
            await until(lambda: ("spot", "killed") in world.seen)
            await asyncio.sleep(0.7)  # longer than the silence limit
            assert world.seen == [("spot", "joined"), ("spot", "killed")]


async def test_restarted_scheduler_does_not_report_known_hosts_again(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        world.control()
        agent = test.spawn("spot/agent", Idle)
        await world.submit()
        await world.hello("spot", agent)
        await until(lambda: world.seen)
        test.kill("cluster/scheduler")
        world.schedule(boot=1)
        await world.hello("spot", agent)
        await world.hello("other", agent)
        await until(lambda: ("other", "joined") in world.seen)
        assert world.seen == [("spot", "joined"), ("other", "joined")]


async def test_ended_job_releases_hosts_and_runs_nothing(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        agent = test.spawn("spot/agent", Idle)
        await world.submit()
        await test.tell("cluster/scheduler", JobEnded(ok=True))
        await until(lambda: StopFleet() in world.received)
        await test.tell("cluster/scheduler", JobEnded(ok=False, reason="too late"))
        assert await world.state() == "done"
        assert (await world.hello("spot", agent)).job is None
        assert (await world.submit()).state == "done"


async def test_waiting_events_of_an_ended_job_are_not_reported_to_the_next_one(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        await world.submit()
        for node in ("first", "second"):  # there is no controller: the first event is being sent, one waits
            await world.hello(node, test.spawn(f"{node}/agent", Idle))
        await test.tell("cluster/scheduler", JobEnded(ok=True))
        await until(lambda: StopFleet() in world.received)
        await world.submit("next")
        await world.hello("late", test.spawn("late/agent", Idle))
        world.control()
        await until(lambda: ("late", "joined") in world.seen)
        assert world.seen.count(("second", "joined")) == 1


async def test_failed_job_may_be_submitted_with_its_plan(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        await world.submit()
        planned = await world.plan(3, TIMES)
        await test.tell("cluster/scheduler", JobEnded(ok=False, reason="disk full"))
        status = await test.ask("cluster/scheduler", JobStatus(), JobIs)
        assert (status.state, status.reason) == ("failed", "disk full")
        assert (await world.submit()).state == "running"
        assert await world.plan(4, None) == planned


async def test_simultaneous_joins_share_commits_and_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[MembersAre] = []
    snapshot = Journal.snapshot

    async def counted(journal: Journal, state: Message) -> int:
        if isinstance(state, MembersAre):
            commits.append(state)
        return await snapshot(journal, state)

    monkeypatch.setattr(Journal, "snapshot", counted)
    async with TestSystem(tmp_path) as test:
        world = World(test)
        world.control()
        await world.submit()
        names = [f"spot-{number}" for number in range(100)]
        agents = [test.spawn(f"{name}/agent", Idle) for name in names]
        works = await asyncio.gather(*[world.hello(*pair) for pair in zip(names, agents, strict=True)])
        assert all(work.job == job("run") for work in works)
        assert set(commits[-1].roles) == set(names), "every host with a reply is in the journal"
        assert len(commits) < 20
        await until(lambda: len(world.seen) == len(names))
        assert sorted(world.seen) == sorted((name, "joined") for name in names)


async def test_second_hello_waits_for_the_commit_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[str] = []
    open_disk = asyncio.Event()
    snapshot = Journal.snapshot

    async def slow(journal: Journal, state: Message) -> int:
        if isinstance(state, MembersAre):
            await open_disk.wait()
            committed.extend(state.roles)
        return await snapshot(journal, state)

    monkeypatch.setattr(Journal, "snapshot", slow)
    async with TestSystem(tmp_path) as test:
        world = World(test)
        await world.submit()
        agent = test.spawn("s1/agent", Idle)
        hellos = [asyncio.ensure_future(world.hello("s1", agent)) for _ in range(2)]
        await asyncio.sleep(0.2)
        assert [hello.done() for hello in hellos] == [False, False]
        open_disk.set()
        await asyncio.gather(*hellos)
        assert "s1" in committed


async def test_paused_head_loses_only_hosts_that_are_silent(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PatientLoop)
    async with TestSystem(tmp_path) as test:
        world = World(test)
        world.control()
        await world.submit()
        agent = test.spawn("spot-1/agent", Idle)
        await world.hello("spot-1", agent, run_id="run")
        await until(lambda: world.seen == [("spot-1", "joined")])
        for _ in range(3):
            loop.stand_still(20.0)
            await asyncio.sleep(1.0)  # the Scheduler checks for silence meanwhile
            await world.hello("spot-1", agent, run_id="run")
        assert world.seen == [("spot-1", "joined")]
        await until(lambda: ("spot-1", "killed") in world.seen)


WIDTHS = ["engine.kind=sglang", "engine.widths=[2, 1]", "engine.width_plan=paper"]
SEEN = Seen(
    step_s=9.0,
    seeding_s=1.0,
    update_s=0.1,
    rolled_s=5.0,
    start_s=1.0,
    reserved=None,
    preemptible=None,
    requests=64,
    groups=8,
    limit=64,
    lengths=[[9] * 8],
    prompt_tokens=9.0,
)


async def _until_narrow(world: World) -> Plan:
    """Four steps in which no request loses its cache."""
    for step in range(1, 5):
        plan = await world.plan(step, structs.replace(TIMES, seen=SEEN))
    return plan


async def test_planned_width_reaches_hosts_and_survives_a_scheduler_crash(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world, called = World(test), Called()
        agent = test.spawn("spot/agent", lambda: called)
        spec = structs.replace(job("run"), config=load.dump(load.load("quickstart", WIDTHS)))
        await test.ask("cluster/scheduler", SubmitJob(job=spec), JobIs)
        await world.hello("spot", agent)
        assert (await world.hello("spot", agent)).width == 2
        await world.hello("spot", agent, run_id="run", width=2)
        calls = called.calls
        assert (await _until_narrow(world)).width == 1
        await until(lambda: called.calls > calls)
        assert (await world.hello("spot", agent, run_id="run", width=2)).width == 1
        test.kill("cluster/scheduler")
        world.schedule(boot=1)
        assert (await world.plan(5, None)).width == 1
        late = await world.hello("spot", agent, run_id="run", width=2)
        assert late.width == 2, "a step may be under way: it keeps its width"
        assert (await world.hello("new", test.spawn("new/agent", Idle))).width == 1


async def test_host_keeps_its_width_when_it_is_reached_in_the_middle_of_a_step(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        world = World(test)
        agent = test.spawn("spot/agent", Idle)
        settings = [*WIDTHS, "liveness.dead_s=0.6", "liveness.beat_s=0.1"]
        spec = structs.replace(job("run"), config=load.dump(load.load("quickstart", settings)))
        await test.ask("cluster/scheduler", SubmitJob(job=spec), JobIs)
        await world.hello("spot", agent, run_id="run", width=2)
        await _until_narrow(world)
        await asyncio.sleep(0.8)
        assert (await world.hello("spot", agent, run_id="run", width=2)).width == 2
        await world.plan(5, structs.replace(TIMES, seen=SEEN))
        assert (await world.hello("spot", agent, run_id="run", width=2)).width == 1


async def test_reserved_host_gets_no_width(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        World(test)
        spec = structs.replace(job("run"), config=load.dump(load.load("quickstart", WIDTHS)))
        await test.ask("cluster/scheduler", SubmitJob(job=spec), JobIs)
        hello = NodeHello(
            node="reserved-1",
            role="reserved",
            agent=test.spawn("reserved-1/agent", Idle),
            inventory=INVENTORY,
        )
        assert (await test.ask("cluster/scheduler", hello, NodeWork)).width == 0
