"""StateManager: durable checkpoints, one record per step, recorded rewinds."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gleaner.actors.cluster import state_manager
from gleaner.actors.cluster.checkpoint_store import CheckpointStore
from gleaner.actors.cluster.host_copy import HostCopies
from gleaner.actors.cluster.saved_state import SealedState, StateDirFull
from gleaner.actors.cluster.state_manager import Rewound, StateManager
from gleaner.actors.protocol.cluster import (
    LatestState,
    SaveState,
    StateIs,
    StateSaved,
    StepTrained,
    TrainedSample,
)
from gleaner.supervisor import Actor, Done, Refused, handles
from gleaner.supervisor.testing import TestSystem

KEEP = 2
STATE = "training/state"


@dataclass
class Controller(Actor):
    """A controller that records which steps became durable."""

    steps: list[int] = field(default_factory=list)

    @handles(StateSaved)
    async def saved(self, message: StateSaved) -> None:
        self.steps.append(message.step)


@dataclass
class Host:
    system: TestSystem
    directory: Path
    controller: Controller

    def start(self) -> None:
        copies, durable = self.directory / "copies", self.directory / "checkpoints"
        self.system.spawn(
            STATE, lambda: StateManager(HostCopies(copies), CheckpointStore(durable, keep=KEEP))
        )

    async def save(self, step: int) -> None:
        HostCopies(self.directory / "copies").write(step, {"state": b"%d" % step})
        sample = TrainedSample(request=f"step-{step}/0/0", count=3, crc=step)
        trained = StepTrained(step=step, samples=(sample,), root=b"root")
        await self.system.ask(STATE, SaveState(step=step, trained=trained), Done)

    async def latest(self) -> StateIs:
        return await self.system.ask(STATE, LatestState(), StateIs)

    async def until_durable(self, step: int) -> None:
        async with asyncio.timeout(60):
            while (await self.latest()).durable_step < step:
                await asyncio.sleep(0.01)

    async def record(self) -> list[tuple[str, int]]:
        _, events = await self.system.system._journals.read(STATE)
        assert all(isinstance(event, StepTrained | Rewound) for _, event in events)
        return [(type(event).__name__, event.step) for _, event in events]  # type: ignore[attr-defined]


@asynccontextmanager
async def host(directory: Path) -> AsyncIterator[Host]:
    async with TestSystem(directory) as system:
        controller = Controller()
        system.spawn("training/controller", lambda: controller)
        found = Host(system, directory, controller)
        found.start()
        yield found


async def test_saved_state_becomes_durable_and_is_reported(tmp_path: Path) -> None:
    async with host(tmp_path) as here:
        assert await here.latest() == StateIs(step=0, path="", durable_step=-1, kept_step=-1)
        for step in (1, 2, 3):
            await here.save(step)
            await here.until_durable(step)
        state = await here.latest()
        assert (state.step, state.durable_step, state.kept_step) == (3, 3, 2)
        assert (tmp_path / "checkpoints" / "step-000003" / "state").read_bytes() == b"3"
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
            "step-000002",
            "step-000003",
        ]
        async with asyncio.timeout(60):
            while here.controller.steps[-1:] != [3]:
                await asyncio.sleep(0.01)


async def test_step_is_recorded_once_however_often_saved(tmp_path: Path) -> None:
    async with host(tmp_path) as here:
        await here.save(1)
        await here.save(1)
        here.system.kill(STATE)
        here.start()
        await here.save(1)
        await here.save(2)
        assert await here.record() == [("StepTrained", 1), ("StepTrained", 2)]
        with pytest.raises(Refused, match="step 4 cannot follow step 2"):
            await here.save(4)


async def test_steps_go_on_from_the_checkpoint_when_their_records_are_lost(tmp_path: Path) -> None:
    async with host(tmp_path) as here:
        for step in (1, 2):
            await here.save(step)
            await here.until_durable(step)
    (tmp_path / "other").mkdir()
    (tmp_path / "checkpoints").rename(tmp_path / "other" / "checkpoints")
    async with host(tmp_path / "other") as after:  # a power failure took the records of both, and the memory
        assert (await after.latest()).step == 2
        await after.save(2)  # the trainer reports it again
        await after.save(3)
        assert await after.record() == [("Rewound", 1), ("StepTrained", 2), ("StepTrained", 3)]


async def test_host_without_memory_rewinds_to_the_checkpoint(tmp_path: Path) -> None:
    async with host(tmp_path) as here:
        await here.save(1)
        await here.until_durable(1)
        await here.save(2)
        await here.until_durable(2)
        shutil.rmtree(tmp_path / "checkpoints" / "step-000002")  # it never reached the disk
        here.system.kill(STATE)
        shutil.rmtree(tmp_path / "copies")
        here.start()
        state = await here.latest()
        assert (state.step, state.durable_step) == (1, 1)
        await here.save(2)
        assert await here.record() == [
            ("StepTrained", 1),
            ("StepTrained", 2),
            ("Rewound", 1),
            ("StepTrained", 2),
        ]


async def test_state_without_a_record_is_not_made_durable(
    tmp_path: Path,
) -> None:
    """The trainer died after the state was sealed and before the step was recorded. A checkpoint of an
    unrecorded step must not remain."""
    HostCopies(tmp_path / "copies").write(1, {"state": b"1"})
    async with host(tmp_path) as here:
        await asyncio.sleep(0.2)
        assert await here.latest() == StateIs(
            step=1, path=str(tmp_path / "copies" / "slot-0"), durable_step=-1, kept_step=-1
        )
        await here.save(1)
        await here.until_durable(1)
        assert await here.record() == [("StepTrained", 1)]


class SlowDisk(CheckpointStore):
    """Takes as long as the test wants."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, keep=KEEP)
        self.go_on = threading.Event()

    def adopt(self, source: SealedState) -> SealedState:
        self.go_on.wait(60)
        return super().adopt(source)


async def test_slow_checkpoint_write_delays_no_request(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        system.spawn("training/controller", lambda: Controller())
        disk = SlowDisk(tmp_path / "checkpoints")
        system.spawn(STATE, lambda: StateManager(HostCopies(tmp_path / "copies"), disk))
        found = Host(system, tmp_path, Controller())
        await found.save(1)
        async with asyncio.timeout(60):
            latest = await found.latest()
        assert (latest.step, latest.durable_step) == (1, -1)
        disk.go_on.set()
        await found.until_durable(1)


class FullDisk(CheckpointStore):
    """Has no space at first."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, keep=KEEP)
        self.free = False

    def adopt(self, source: SealedState) -> SealedState:
        if not self.free:
            raise StateDirFull(self.directory, 100, 0)
        return super().adopt(source)


async def test_checkpoint_waits_for_disk_space_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_manager, "SPACE_AGAIN_S", 0.01)
    async with TestSystem(tmp_path) as system:
        controller = Controller()
        system.spawn("training/controller", lambda: controller)
        disk = FullDisk(tmp_path / "checkpoints")
        system.spawn(STATE, lambda: StateManager(HostCopies(tmp_path / "copies"), disk))
        found = Host(system, tmp_path, controller)
        for step in (1, 2):
            await found.save(step)
            assert (await found.latest()).step == step
        manager = system.system.cell(STATE)
        async with asyncio.timeout(60):
            while "free space there" not in str(manager.actor.summary().get("suspended")):
                await asyncio.sleep(0.01)
        disk.free = True
        await found.until_durable(2)
        assert "suspended" not in manager.actor.summary()
