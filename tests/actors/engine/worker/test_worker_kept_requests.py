"""Requests that stay on their instance while weights change (`engine.in_flight`).

With `engine.in_flight = "kept"` a response has a span for each version. A request that no newer weights
may continue, or that the manager does not allow, is handed over.
"""

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import torch
from test_actors_load_failed import Transfer

from gleaner.actors.engine.builtin.host import BuiltinHost
from gleaner.actors.engine.builtin.settings import BuiltinSettings
from gleaner.actors.engine.servers.host import RemoteHost
from gleaner.actors.engine.worker.kept_requests import KeptRequests
from gleaner.actors.engine.worker.port import AnyHost, StepCommands, StepResult
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.protocol.instances import KeepRequests, RequestsKept
from gleaner.actors.protocol.requests import Cancel, Generate, Generated
from gleaner.actors.protocol.rollout import PublishVersion, RolloutFigures, RolloutStatus, Weights
from gleaner.actors.protocol.weights import Fetch, Fetched
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.configs.load import from_tree
from gleaner.supervisor import Actor, Done, Refused, handles
from gleaner.supervisor.testing import TestSystem
from gleaner.transport.token_stream import StreamSender
from tests.actors.engine.servers.test_servers_host import ScriptedServer
from tests.actors.engine.servers.test_servers_sglang import published

TOKENS, BEFORE = 20, 5
CONFIG = from_tree(
    {
        "engine": {"in_flight": "kept", "max_prompt_tokens": 8},
        "rollout": {"max_new_tokens": TOKENS, "staleness": 1},
    },
    "test",
)


def root(version: int) -> bytes:
    return b"root-%d" % version


class Images(Actor):
    """Has the images of a folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @handles(Fetch)
    async def fetch(self, message: Fetch) -> Fetched:
        fetched = published(self._directory, message.version)[1]
        return msgspec.structs.replace(fetched, root=message.root)


class Stepped(BuiltinHost):
    """Makes `steps` steps, and one more for each late order; loads whenever an order asks for it."""

    def __init__(self, settings: BuiltinSettings) -> None:
        super().__init__(settings)
        self.steps = BEFORE
        self._version: int | None = None
        self._root = b""

    def turn(self, commands: StepCommands) -> StepResult:
        if not commands and not self.steps:
            time.sleep(0.005)
            return StepResult(None, [], self._version, self._root, idle=False)
        turn = super().turn(commands)
        if turn.output is not None and turn.work and turn.work.tokens:
            self.steps = max(0, self.steps - 1)
        self._version, self._root = turn.version, turn.root
        return turn


class Renaming(ScriptedServer):
    """Reports which weights it serves."""

    async def commit(self) -> str:
        self.version_name = await super().commit()
        return self.version_name


class Grudging(RolloutManager):
    """Allows no request to stay."""

    @handles(KeepRequests)
    async def keep(self, message: KeepRequests) -> RequestsKept:
        raise Refused("not now")


class Plane:
    """A manager, and one instance of this engine."""

    def __init__(self, head: TestSystem, worker: RolloutWorker) -> None:
        self.head, self.worker = head, worker

    async def publish(self, version: int) -> None:
        weights = Weights(version=version, root=root(version), sources=("s/transfer",))
        await self.head.ask("rollout/manager", PublishVersion(weights=weights), Done)

    async def figures(self) -> RolloutFigures:
        return await self.head.ask("rollout/manager", RolloutStatus(), RolloutFigures)

    async def collected(self, tokens: int) -> None:
        while (await self.figures()).tokens_collected < tokens:
            await asyncio.sleep(0.01)

    async def serves(self, version: int) -> None:
        while self.worker.summary()["version"] != version:
            await asyncio.sleep(0.01)

    async def generate(self, id: str, **more: object) -> Generated:
        prompt = array("I", [7, 8, 9]).tobytes()
        fields = {"prompt": prompt, "max_new_tokens": TOKENS, "temperature": 0.0, "seed": 0, **more}
        asked = Generate(id=id, deadline_s=60.0, wait_s=60.0, **fields)  # type: ignore[arg-type]
        return await self.head.ask("rollout/manager", asked, Generated, deadline_s=60.0)


@asynccontextmanager
async def plane(
    directory: Path,
    host: AnyHost,
    transfer: Callable[[], Actor],
    manager: type[RolloutManager] = RolloutManager,
) -> AsyncIterator[Plane]:
    async with (
        asyncio.timeout(60),
        TestSystem(directory, node="head") as head,
        TestSystem(directory, node="s", join=head) as spot,
    ):
        head.spawn("rollout/balancer", lambda: LoadBalancer(4))
        head.spawn("rollout/manager", lambda: manager(ManagerSettings.of(CONFIG)))
        spot.spawn("s/transfer", transfer)
        worker = RolloutWorker(WorkerSettings.of(CONFIG), "s", "preemptible", host)
        spot.spawn("s/engine", lambda: worker)
        running = Plane(head, worker)
        await running.publish(3)
        await running.serves(3)
        yield running


async def test_response_stays_during_a_change_with_exact_spans(
    tmp_path: Path,
) -> None:
    host = Stepped(BuiltinSettings.of(CONFIG))
    async with plane(tmp_path, host, lambda: Images(tmp_path / "store")) as running:
        answer = asyncio.create_task(running.generate("one"))
        await running.collected(BEFORE)
        await running.publish(4)
        await running.serves(4)
        assert running.worker.summary()["kept"] == 1
        host.steps = TOKENS
        made = await answer
        assert [(span.version, span.count) for span in made.versions] == [(3, BEFORE), (4, TOKENS - BEFORE)]
        assert (await running.figures()).requests_migrated == 0, "the request never left"
        tokens = torch.tensor(array("I", made.tokens).tolist())
        for version, part in ((3, slice(0, BEFORE)), (4, slice(BEFORE, TOKENS))):
            reported = torch.from_numpy(np.frombuffer(made.logprobs, "<f4").copy())[part]
            with torch.inference_mode():
                model = published(tmp_path / f"again-{version}", version)[0]
                logits = model(torch.cat([torch.tensor([7, 8, 9]), tokens])[None])[0][2:-1]
            ours = torch.log_softmax(logits, -1).gather(1, tokens[:, None])[part, 0]
            assert torch.allclose(reported, ours, atol=1e-4), f"the span of version {version}"


async def test_request_of_exactly_one_version_is_handed_over(tmp_path: Path) -> None:
    host = Stepped(BuiltinSettings.of(CONFIG))
    async with plane(tmp_path, host, lambda: Images(tmp_path / "store")) as running:
        free = asyncio.create_task(running.generate("free"))
        exact = asyncio.create_task(running.generate("exact", exact_version=3))
        await running.collected(BEFORE + 1)  # more than one request alone makes
        await running.publish(4)
        await running.serves(4)
        assert running.worker.summary()["kept"] == 1
        host.steps = TOKENS
        assert [span.version for span in (await free).versions] == [3, 4]
        await running.head.tell("rollout/manager", Cancel(ids=["exact"]))
        assert {span.version for span in (await exact).versions} == {3}


async def test_requests_without_permission_are_handed_over(tmp_path: Path) -> None:
    host = Stepped(BuiltinSettings.of(CONFIG))
    async with plane(tmp_path, host, lambda: Images(tmp_path / "store"), Grudging) as running:
        answer = asyncio.create_task(running.generate("one"))
        await running.collected(BEFORE)
        await running.publish(4)
        await running.serves(4)
        assert running.worker.summary()["kept"] == 0
        host.steps = TOKENS
        assert [span.version for span in (await answer).versions] == [3, 4]
        assert (await running.figures()).requests_migrated == 1


class Sender:
    """A stream with this many frames that are not journaled yet."""

    unacknowledged = 3


class Asked(Actor):
    """A manager that allows the first ticket, and records the frames in transit at each question."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.under_way: list[int] = []

    @handles(KeepRequests)
    async def keep(self, message: KeepRequests) -> RequestsKept:
        self.under_way.append(self._sender.unacknowledged)
        return RequestsKept(tickets=message.tickets[:1])


class Owner(Actor):
    """Has two requests that may stay."""

    def __init__(self, sender: Sender) -> None:
        self._sender = cast(StreamSender, sender)
        self.to_end: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

    async def on_start(self) -> None:
        kept_requests = KeptRequests(self.ctx, CONFIG.engine, self._sender, preemptible=True)
        self.ctx.background(self._ask(kept_requests), "keep")

    async def _ask(self, kept_requests: KeptRequests) -> None:
        self.to_end.set_result(await kept_requests.to_end([7, 8], 4, b"r"))


async def test_manager_is_asked_after_all_older_tokens_arrived(tmp_path: Path) -> None:
    sender = Sender()
    manager, owner = Asked(sender), Owner(sender)
    async with asyncio.timeout(60), TestSystem(tmp_path) as system:
        system.spawn("rollout/manager", lambda: manager)
        system.spawn("s/engine", lambda: owner)
        for left in (2, 1, 0):
            await asyncio.sleep(0.05)
            assert not manager.under_way
            sender.unacknowledged = left
        assert await owner.to_end == [8], "a request that is not allowed must end"
        assert manager.under_way == [0]


async def test_engine_that_keeps_nothing_hands_over_and_reports(tmp_path: Path) -> None:
    host = RemoteHost(Renaming(), stall_s=20.0, serve_s=20.0)
    async with plane(tmp_path, host, Transfer) as running:
        await running.publish(4)
        await running.serves(4)
        assert "cannot" in str(running.worker.summary()["kept"])
        assert len((await running.generate("one")).tokens) == 4 * TOKENS
