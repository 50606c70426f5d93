"""Refused tickets: the manager gets the report, also one that it cannot take at first."""

import asyncio
from pathlib import Path

from gleaner.actors.engine.builtin.host import BuiltinHost
from gleaner.actors.engine.builtin.settings import BuiltinSettings
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.protocol.instances import (
    CannotTake,
    Dispatch,
    Registered,
    RegisterInstance,
    StillRegistered,
    Work,
)
from gleaner.configs.schema import Config
from gleaner.supervisor import Actor, Done, Refused, handles
from gleaner.supervisor.testing import TestSystem

EPOCH = "1.1"
NO_STREAM = "tcp://127.0.0.1:9"


class Manager(Actor):
    """Registers the worker; fails at the first `failures` reports."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.reports: list[CannotTake] = []
        self.registered, self.taken = asyncio.Event(), asyncio.Event()

    @handles(RegisterInstance)
    async def register(self, message: RegisterInstance) -> Registered:
        self.registered.set()
        return Registered(manager=self.ctx.address, epoch=EPOCH, stream_endpoint=NO_STREAM, stream_key="")

    @handles(StillRegistered)
    async def still_registered(self, message: StillRegistered) -> None: ...

    @handles(CannotTake)
    async def cannot_take(self, message: CannotTake) -> None:
        self.reports.append(message)
        if len(self.reports) <= self.failures:
            raise Refused("its journal takes nothing")
        self.taken.set()


def work(ticket: int) -> Work:
    return Work(ticket=ticket, prompt=bytes(4), prefix=b"", seed=0, max_new_tokens=1, temperature=0.0)


async def test_refused_tickets_are_reported_until_the_manager_takes_them_back(tmp_path: Path) -> None:
    manager = Manager(failures=2)
    without_weights = BuiltinHost(BuiltinSettings.of(Config()))
    async with asyncio.timeout(60), TestSystem(tmp_path) as system:
        system.spawn("rollout/manager", lambda: manager)
        system.spawn(
            "s/engine",
            lambda: RolloutWorker(WorkerSettings.of(Config()), "s", "preemptible", without_weights),
        )
        await manager.registered.wait()
        dispatch = Dispatch(epoch=EPOCH, version=1, work=[work(1), work(2)])
        while True:
            try:
                await system.ask("s/engine", dispatch, Done)
                break
            except Refused:  # the reply to its registration is on the way
                await asyncio.sleep(0.01)
        await manager.taken.wait()
        assert [(report.tickets, report.version) for report in manager.reports] == [([1, 2], None)] * 3
        await asyncio.sleep(0.5)
        assert len(manager.reports) == 3, "a report that was taken is not repeated"
