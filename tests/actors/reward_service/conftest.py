"""A reward service on loopback: the real server, service and proxy, and workers without processes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from small_service import CONFIG, HEADERS, KEY, Service, SmallTasks, TextWorkers

from gleaner.actors.names import REWARD, REWARD_SERVICE
from gleaner.actors.reward.proxy import RewardProxy
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward_service.service import RewardService
from gleaner.nodeagent.reward_http import server_of
from gleaner.supervisor.testing import TestSystem


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setenv("GLEANER_API_KEYS", KEY)
    workers = TextWorkers()
    settings = msgspec.structs.replace(CONFIG.gateway, listen="127.0.0.1:0")
    async with TestSystem(tmp_path) as system:
        proxy = RewardProxy(RewardSettings.of(CONFIG), "", workers.start, WorkerSpec())
        actor = RewardService(server_of(settings, SmallTasks()))
        system.spawn(REWARD, lambda: proxy)
        system.spawn(REWARD_SERVICE, lambda: actor)
        while not actor.summary()["url"]:
            await asyncio.sleep(0.01)
        async with aiohttp.ClientSession(headers=HEADERS) as http:
            yield Service(str(actor.summary()["url"]), workers, actor, proxy, http)
        workers.gate.set()
