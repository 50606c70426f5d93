"""`RequestService`: single requests whose batch is closed meanwhile."""

from array import array
from pathlib import Path

import pytest

from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.protocol.requests import Generate
from gleaner.actors.protocol.rollout import PublishVersion, RolloutFigures, RolloutStatus, Weights
from gleaner.actors.rollout.batches.submission import BatchSubmission
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.configs.schema import Config
from gleaner.supervisor import Done, Message, Refused
from gleaner.supervisor.testing import TestSystem


async def test_request_is_refused_when_its_batch_is_closed_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    whole = BatchSubmission.open

    async def closed_at_once(self: BatchSubmission, batch: BatchSubmitted, weights: Weights) -> None:
        await whole(self, batch, weights)
        opened.append(batch.batch)
        await self.close([batch.batch])

    monkeypatch.setattr(BatchSubmission, "open", closed_at_once)
    async with TestSystem(tmp_path) as system:
        system.spawn("rollout/balancer", lambda: LoadBalancer(4))
        life = system.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(Config())))
        weights = Weights(version=1, root=b"r", sources=())
        await system.ask("rollout/manager", PublishVersion(weights=weights), Done)
        request = Generate(id="a", prompt=array("I", [2, 3]).tobytes(), max_new_tokens=4)
        for _ in range(2):
            with pytest.raises(Refused, match="request a was closed while it was opened"):
                await system.ask("rollout/manager", request, Message)
        await system.ask("rollout/manager", RolloutStatus(), RolloutFigures)
        manager = system.system.cell("rollout/manager")
        assert manager is not None
        assert manager.address == life, "the manager goes on"
    assert opened == ["generate-a"] * 2
