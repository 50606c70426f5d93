"""Start of a server while its first weights are pulled, with their model."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from gleaner.actors.engine.servers import factory as servers
from gleaner.actors.engine.servers.host import RemoteHost
from gleaner.actors.engine.servers.port import ServerDied
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.protocol.rollout import PublishVersion, RolloutFigures, RolloutStatus, Weights
from gleaner.actors.protocol.weights import Fetch, Fetched, WhatComes
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.configs.schema import Config, Engine
from gleaner.supervisor import Actor, Deferred, Done, handles
from gleaner.supervisor.testing import TestSystem
from tests.actors.engine.servers.test_servers_host import ScriptedServer
from tests.actors.engine.servers.test_servers_host import fetched as without_tensors
from tests.actors.engine.servers.test_servers_sglang import published


class SlowPull(Actor):
    """Knows the next version at once; the version arrives only after the server has started."""

    def __init__(self, started: asyncio.Event) -> None:
        self._started = started

    @handles(WhatComes)
    async def what_comes(self, message: WhatComes) -> Fetched:
        return msgspec.structs.replace(without_tensors(message.version), root=message.root)

    @handles(Fetch)
    async def fetch(self, message: Fetch) -> Deferred:
        deferred = Deferred()
        self.ctx.background(self._later(message, deferred), "pull")
        return deferred

    async def _later(self, message: Fetch, deferred: Deferred) -> None:
        await self._started.wait()
        deferred.answer(msgspec.structs.replace(without_tensors(message.version), root=message.root))


class StartedServer(ScriptedServer):
    """Records when it was started, and with which model."""

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.versions: list[int] = []
        self.committed = -1

    async def commit(self) -> str:
        self.committed = self.staged.version
        self.version_name = str(self.committed)
        return await super().commit()

    async def start(self, model: Fetched) -> None:
        self.versions.append(model.version)
        self.started.set()


async def test_server_starts_once_while_first_weights_are_pulled(tmp_path: Path) -> None:
    server = StartedServer()
    async with (
        TestSystem(tmp_path, node="head") as head,
        TestSystem(tmp_path, node="s", join=head) as spot,
    ):
        head.spawn("rollout/balancer", lambda: LoadBalancer(4))
        head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(Config())))
        spot.spawn("s/transfer", lambda: SlowPull(server.started))
        host = RemoteHost(server, stall_s=30.0, serve_s=60.0)
        spot.spawn("s/engine", lambda: RolloutWorker(WorkerSettings.of(Config()), "s", "preemptible", host))
        for version in (3, 4):
            weights = Weights(version=version, root=b"r%d" % version, sources=("s/transfer",))
            await head.ask("rollout/manager", PublishVersion(weights=weights), Done)
            async with asyncio.timeout(60):
                while server.committed != version:
                    await asyncio.sleep(0.01)
                while not (
                    await head.ask("rollout/manager", RolloutStatus(), RolloutFigures)
                ).serving_preemptible:
                    await asyncio.sleep(0.01)
    assert server.versions == [3]


@pytest.mark.parametrize(("args", "early"), [((), True), (("--load-format", "auto"), False)])
async def test_sglang_starts_without_weights_and_reports_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: Sequence[str], early: bool
) -> None:
    commands: list[list[str]] = []

    def process(command: list[str], *_: object) -> None:
        commands.append(command)
        raise ServerDied("it is not meant to run")

    monkeypatch.setattr(servers, "ServerProcess", process)
    host = servers.sglang_host(Config(engine=Engine(kind="sglang", args=list(args))))
    model = published(tmp_path)[1]
    Path(model.path).unlink()
    try:
        if not early:
            await host.prepare(model)
            assert commands == []
            return
        with pytest.raises(ServerDied):
            await host.prepare(model)
        (command,) = commands
        assert command[-2:] == ["--load-format", "dummy"]
        assert command[command.index("--weight-version") + 1] == servers.NO_WEIGHTS
    finally:
        host.close()
        await host.closed()
