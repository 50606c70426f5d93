"""Parts of a reward service for tests: its tasks, workers without processes, and a client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gleaner.actors.names import REWARD, REWARD_SERVICE
from gleaner.actors.protocol.reward import CommandRun
from gleaner.actors.reward import pipe
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.proxy import RewardProxy
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward_service.service import RewardService
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from gleaner.nodeagent.reward_http import server_of
from gleaner.supervisor.testing import TestSystem

KEY = "a-key"
HEADERS = {"Authorization": f"Bearer {KEY}"}
CONFIG = from_tree(
    {
        "reward": {"deadline_s": 5.0, "attempts": 1, "workers": 1, "max_queue": 4},
        "gateway": {"listen": "h:0"},
    },
    "test",
)


class SmallTasks:
    """Three tasks. A problem with `refused` in its info is none for them; one of `programs` has tests."""

    names = ["sums", "words", "programs"]  # as the port has it

    def check(self, task: str, entry: Entry) -> str:
        """See `KnownTasks`."""
        bare = task == "programs" and not entry.tests
        return "it has no tests" if bare or "refused" in entry.info else ""


@dataclass
class TextWorkers:
    """Workers that compare the response with the answer; "hold" waits for `gate`, "fail" has no score."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[pipe.TextItem | pipe.RunItem] = field(default_factory=list)
    dead = False

    async def start(self, spec: WorkerSpec) -> "TextWorkers":
        """See `StartWorker`."""
        return self

    async def ask(self, frame: bytes, deadline_s: float) -> pipe.Answer:
        """See `ScoringWorker`."""
        item = pipe.item(frame[pipe.PREFIX.size :])
        if isinstance(item, pipe.ScoreItems):
            return pipe.ScoresOut([await self._score(one) for one in item.items])
        if isinstance(item, pipe.RunItem):
            return await self._run(item)
        assert isinstance(item, pipe.TextItem)
        return await self._score(item)

    async def _run(self, item: pipe.RunItem) -> pipe.Answer:
        self.seen.append(item)
        if item.code == "hold":
            await self.gate.wait()
        if item.code == "fail":
            return pipe.Failed("SandboxFailed: no sandbox here")
        return pipe.RunOut(
            CommandRun(status="Finished", execution_time=0.5, return_code=0, stdout=item.stdin)
        )

    async def _score(self, item: pipe.Scorable) -> pipe.ScoreOut:
        assert isinstance(item, pipe.TextItem)
        self.seen.append(item)
        if item.response == "hold":
            await self.gate.wait()
        if item.response == "fail":
            return pipe.ScoreOut(0.0, "unavailable", "the judge is away")
        entry = msgspec.json.decode(item.entry, type=Entry)
        return pipe.ScoreOut(float(entry.answer == item.response))

    async def kill(self) -> None:
        """See `ScoringWorker`."""


@dataclass
class Service:
    """A service that listens. proxy, actor: for their summaries."""

    url: str
    workers: TextWorkers
    actor: RewardService
    proxy: RewardProxy
    http: aiohttp.ClientSession

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        """Status and body of an answer. body: JSON, or bytes."""
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self.http.post(f"{self.url}{path}", data=raw, **options) as answer:
            return answer.status, msgspec.json.decode(await answer.read())


@asynccontextmanager
async def serving(directory: Path, config: Config, listen: str = "127.0.0.1:0") -> AsyncIterator[Service]:
    """A service with these settings; its key is `KEY`, if GLEANER_API_KEYS has that."""
    workers = TextWorkers()
    settings = msgspec.structs.replace(config.gateway, listen=listen)
    async with TestSystem(directory) as system:
        proxy = RewardProxy(RewardSettings.of(config), "", workers.start, WorkerSpec())
        actor = RewardService(server_of(settings, SmallTasks()))
        system.spawn(REWARD, lambda: proxy)
        system.spawn(REWARD_SERVICE, lambda: actor)
        while not actor.summary()["url"]:
            await asyncio.sleep(0.01)
        async with aiohttp.ClientSession(headers=HEADERS) as http:
            yield Service(str(actor.summary()["url"]), workers, actor, proxy, http)
        workers.gate.set()
