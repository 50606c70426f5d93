"""Membership: what an instance serves, by the reports that arrive about it."""

import asyncio
from pathlib import Path

import pytest

from gleaner.actors.protocol.balancer import Place, Placed
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.instances import (
    CannotTake,
    Dispatch,
    InstancesAre,
    ListInstances,
    Registered,
    RegisterInstance,
    Serving,
)
from gleaner.actors.protocol.rollout import PublishVersion, SubmitBatch, Weights
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.dispatch.quarantine import Quarantine
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.rollout.state.events import InstanceGone
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from gleaner.supervisor import Actor, Address, Done, handles
from gleaner.supervisor.testing import TestSystem

SERVED = 3


def begin(system: TestSystem, config: Config | None = None) -> RolloutManager:
    """A balancer and a manager."""
    manager = RolloutManager(ManagerSettings.of(config or Config()))
    system.spawn("rollout/balancer", lambda: LoadBalancer(4))
    system.spawn("rollout/manager", lambda: manager)
    return manager


async def register(system: TestSystem, worker: Address) -> None:
    message = RegisterInstance(instance=worker.name, worker=worker, kind="preemptible", slots=2, received=0)
    await system.ask("rollout/manager", message, Registered)


@pytest.mark.parametrize(("version", "left"), [(SERVED + 1, None), (SERVED, SERVED), (SERVED - 1, SERVED)])
async def test_instance_serves_what_it_reported_unless_it_refused_under_newer_weights(
    version: int, left: int | None, tmp_path: Path
) -> None:
    async with TestSystem(tmp_path) as system:
        begin(system)
        weights = Weights(version=SERVED, root=b"r", sources=())
        await system.ask("rollout/manager", PublishVersion(weights=weights), Done)
        worker = system.spawn("s/engine", Actor)
        name, incarnation = worker.name, worker.incarnation
        await register(system, worker)
        serving = Serving(instance=name, incarnation=incarnation, version=SERVED, root=b"r")
        await system.ask("rollout/manager", serving, Done)
        refused = CannotTake(instance=name, incarnation=incarnation, tickets=[1], why="full", version=version)
        await system.ask("rollout/manager", refused, Done)
        (seen,) = (await system.ask("rollout/manager", ListInstances(), InstancesAre)).instances
        assert seen.version == left


@pytest.mark.parametrize("kept", [True, False])
async def test_report_of_an_instance_that_is_kept_for_a_suspect_brings_it_no_other_request(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def still_kept(quarantine: Quarantine) -> None:
        """There is no suspect here: the instance would be released."""

    monkeypatch.setattr(Quarantine, "look", still_kept)
    async with TestSystem(tmp_path) as system:
        manager = begin(system)
        weights = Weights(version=SERVED, root=b"r", sources=())
        await system.ask("rollout/manager", PublishVersion(weights=weights), Done)
        worker = system.spawn("s/engine", Actor)
        name, incarnation = worker.name, worker.incarnation
        await register(system, worker)
        manager._parts.quarantine._kept = (name, incarnation) if kept else None
        serving = Serving(instance=name, incarnation=incarnation, version=SERVED, root=b"r")
        await system.ask("rollout/manager", serving, Done)
        place = Place(roots={SERVED: b"r"}, count=1)
        assert (await system.ask("rollout/balancer", place, Placed)).instances == ([] if kept else [name])
        seen = (await system.ask("rollout/manager", ListInstances(), InstancesAre)).instances
        assert [one.version for one in seen] == [SERVED], "the manager has what it serves"


async def test_instance_is_gone_when_its_worker_ends(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        begin(system)
        worker = system.spawn("s/engine", Actor)
        await register(system, worker)
        assert await listed(system) == ["s/engine"]
        system.kill("s/engine")
        await none_is_listed(system)


async def test_instance_is_gone_when_its_worker_registered_before_the_end_of_its_predecessor_and_ends(
    tmp_path: Path,
) -> None:
    async with (
        TestSystem(tmp_path) as system,
        TestSystem(tmp_path, node="old", join=system) as old,
        TestSystem(tmp_path, node="new", join=system) as new,
    ):
        begin(system)
        new.system.incarnations.at_least(1)
        for host in (old, new):
            worker = host.system.spawn("s/engine", Actor, register=False).address
            await register(system, worker)
        new.kill("s/engine")
        await none_is_listed(system)


async def test_instance_that_does_not_register_with_a_restarted_manager_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.actors.rollout.fleet.membership.REREGISTER_S", 0.2)
    async with TestSystem(tmp_path) as system:
        begin(system)
        worker = system.spawn("s/engine", Actor)
        await register(system, worker)
        system.kill("rollout/manager")
        system.kill("s/engine")
        system.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(Config())))
        async with asyncio.timeout(60.0):
            while not (gone := await ended_lives(system)):
                await asyncio.sleep(0.02)
    assert gone == [("s/engine", worker.incarnation, "did not come back")]


async def test_instance_that_holds_requests_in_silence_is_given_up(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        begin(system, from_tree({"rollout": {"deadline_s": 0.5}}, "test"))
        weights = Weights(version=SERVED, root=b"r", sources=())
        worker = system.spawn("s/engine", SilentWorker)
        name, incarnation = worker.name, worker.incarnation
        await register(system, worker)
        prompt = Prompt(split="train", index=0, tokens=(2, 5, 7), seeds=(1, 2))
        batch = BatchSubmitted(batch="step-1", version=SERVED, prompts=(prompt,), max_new_tokens=4)
        await system.ask("rollout/manager", SubmitBatch(batch=batch, weights=weights), Done)
        serving = Serving(instance=name, incarnation=incarnation, version=SERVED, root=b"r")
        await system.ask("rollout/manager", serving, Done)
        async with asyncio.timeout(60.0):
            while not (gone := await ended_lives(system)):
                await asyncio.sleep(0.02)
    assert [life[:2] for life in gone] == [("s/engine", incarnation)]
    assert gone[0][2].startswith("held 2 requests in silence for ")


class SilentWorker(Actor):
    """Takes requests, and sends no token of them."""

    @handles(Dispatch)
    async def dispatch(self, message: Dispatch) -> Done:
        return Done()


async def ended_lives(system: TestSystem) -> list[tuple[str, int, str]]:
    """The instances that the manager's journal has as gone, with their incarnations and causes."""
    _, events = await system.system._journals.read("rollout/manager")
    return [
        (event.instance, event.incarnation, event.cause)
        for _, event in events
        if isinstance(event, InstanceGone)
    ]


async def none_is_listed(system: TestSystem) -> None:
    """Wait until the manager has no instance. Raises AssertionError after two seconds."""
    for _ in range(200):
        if not await listed(system):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("expected the manager to drop the instance of a worker that ended")


async def listed(system: TestSystem) -> list[str]:
    """Names of the instances that the manager has."""
    return [
        one.name for one in (await system.ask("rollout/manager", ListInstances(), InstancesAre)).instances
    ]
