"""Versions that no engine can load, on whole simulated clusters.

Generation continues under the previous version. The publisher gets the reason, and so does the job whose own
trainer made the version.
"""

import asyncio
import re
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gleaner.actors.cluster import job as places
from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.engine.servers.port import LoadFailed, ServerDied
from gleaner.actors.engine.worker.port import StepCommands, StepResult
from gleaner.actors.protocol.instances import InstancesAre, ListInstances, RegisterInstance
from gleaner.actors.protocol.requests import Generate, Generated
from gleaner.actors.protocol.weights import FindStore, Publish, Published, StoreIs
from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.file_mapping import FileMapping
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.models.engine_host import SimEngineHost
from gleaner.sim.models.image_memory import SimImages
from gleaner.sim.models.weight_bytes import image_layout, image_of
from gleaner.sim.run_setup import RunSetup
from gleaner.supervisor import ActorSystem, Refused

SMALL = [
    "job.steps=3",
    "task.heldout_problems=4",
    "rollout.prompts=4",
    "rollout.samples=2",
    "engine.slots=4",
    "fleet.trace=",
    "fleet.n_prem_max=3",
]
AGENT, MANAGER = f"{RESERVED}/transfer", "rollout/manager"
BAD, WHY = 2, "norm.weight has 63 columns, the model has 64"


def fail_to_load(monkeypatch: pytest.MonkeyPatch, bad: int, *, dies: bool = False) -> Counter[int]:
    """No engine loads the version `bad`, and some do not survive the attempt. Counts the loads by version."""
    turn, loads = SimEngineHost.turn, Counter[int]()

    def with_loads(host: SimEngineHost, orders: StepCommands) -> StepResult:
        load = orders.load
        if load is not None:
            loads[load.version] += 1
        if load is None or load.version != bad:
            return turn(host, orders)
        if dies or host._version is None:
            raise (ServerDied if dies else LoadFailed)(WHY)
        done = turn(host, replace(orders, load=None))
        return StepResult(done.output, done.refusals, done.version, done.root, done.idle, load_failed=WHY)

    monkeypatch.setattr(SimEngineHost, "turn", with_loads)
    return loads


def images(cluster: SimCluster, host: str) -> list[int]:
    """The versions whose images are in the memory of this host."""
    files = FileMapping(cluster.hosts[host].memory, places.SHARED_MEMORY)
    found = (re.search(r"/v(\d{9})\.image$", str(path)) for path in files)
    return [int(match[1]) for match in found if match]


class Trainer:
    """A publisher of a user's own, beside the reserved host's agent."""

    def __init__(self, cluster: SimCluster, system: ActorSystem) -> None:
        self.cluster, self.system = cluster, system

    async def publish(self, version: int) -> None:
        found = await self.system.ask(AGENT, FindStore(), deadline_s=5.0, expect=StoreIs)
        memory = FileMapping(self.cluster.hosts[RESERVED].memory, places.SHARED_MEMORY)
        job_model = self.cluster.setting.job_model
        with SimImages(memory, Path(found.place).parent).create(version, job_model.image_bytes) as draft:
            draft.view[:] = image_of(bytes([version]) * 32, job_model.image_bytes)
            draft.seal()
        message = Publish(
            version=version,
            tensors=image_layout(job_model.image_bytes),
            model_config=job_model.model_config,
            announce=True,
        )
        await self.system.ask(AGENT, message, deadline_s=60.0, expect=Published)

    async def seen(self) -> InstancesAre:
        return await self.system.ask(MANAGER, ListInstances(), deadline_s=5.0, expect=InstancesAre)

    async def until(self, version: int, instances: int = 3) -> None:
        while [one.version for one in (await self.seen()).instances] != [version] * instances:
            await asyncio.sleep(0.2)

    async def generate(self, name: str) -> Generated:
        prompt = array("I", [5, 6, 7]).tobytes()
        ask = Generate(id=name, prompt=prompt, max_new_tokens=8, seed=1)
        return await self.system.ask(MANAGER, ask, deadline_s=60.0, expect=Generated)


@pytest.mark.parametrize("dies", [False, True], ids=["engines go back", "engines die"])
def test_generation_keeps_previous_version_when_load_fails(
    monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    loads = fail_to_load(monkeypatch, BAD, dies=dies)
    cluster = SimCluster(RunSetup(load("quickstart", [*SMALL, "training.backend=own"]), seed=1))
    registered = Counter[str]()
    under: list[tuple[int | None, int | None]] = []
    over: list[bool] = []

    def watch(seen: ObservedMessage) -> None:
        if isinstance(seen.message, RegisterInstance) and seen.direction == "in":
            registered[seen.message.instance] += 1

    async def train(system: ActorSystem) -> None:
        trainer = Trainer(cluster, system)
        for version in (0, 1):
            await trainer.publish(version)
            await trainer.until(version)
        await trainer.publish(BAD)
        for number in range(40):
            answer = await trainer.generate(f"r{number}")
            under.append((answer.version_start, answer.version_end))
            await asyncio.sleep(0.5)
        seen = await trainer.seen()
        assert seen.published == 1
        assert [(one.version, one.why) for one in seen.failed] == [(BAD, WHY)]
        kept = [version for host in cluster.hosts for version in images(cluster, host)]
        assert BAD not in kept or dies, "the memory of the failed version is free again"
        assert BAD not in images(cluster, RESERVED)
        assert kept.count(1) >= 2, "the served version can still be pulled"
        with pytest.raises(Refused, match=WHY):
            await trainer.publish(BAD)
        await trainer.publish(BAD + 1)
        await trainer.until(BAD + 1)
        assert (await trainer.generate("last")).version_start == BAD + 1
        over.append(True)

    cluster.watch(watch)
    cluster.begin()
    cluster.advance(20.0)
    cluster.call("trainer", train)
    cluster.advance(120.0)
    outcome = cluster.finish()
    assert over == [True]
    assert outcome.findings == []
    assert set(under) == {(1, 1)}
    assert loads[BAD] <= 2 * len(registered), "no storm of repeated loads"
    restarts = sum(registered.values()) - len(registered)
    assert restarts <= (loads[BAD] if dies else 0)


@pytest.mark.parametrize("staleness", [0, 1])
def test_job_ends_with_reason_when_own_version_fails(monkeypatch: pytest.MonkeyPatch, staleness: int) -> None:
    loads = fail_to_load(monkeypatch, BAD)
    config = load("quickstart", [*SMALL, f"rollout.staleness={staleness}", "job.steps=6"])
    outcome = SimCluster(RunSetup(config, seed=1)).run()
    assert (outcome.ended, outcome.reason) == (
        "failed",
        f"version {BAD} of the weights cannot be served: {WHY}",
    )
    assert loads[BAD] <= 8
    assert outcome.virtual_s < 120
    assert audit(evidence(outcome)) == []
