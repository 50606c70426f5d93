"""Weights that do not load: what was served is served on, it is tried again, at last the instance ends."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec
import pytest
from test_actors_remote import fetched as without_tensors
from test_actors_sglang import published

from actors.engine import served_weights
from actors.engine.host import BuiltinHost
from actors.engine.served_weights import ServedWeights
from actors.engine.server_wire import LoadFailed, ServerDied
from actors.engine.turn import Orders, Turn
from actors.engine.worker import RolloutWorker
from actors.rollout.instance_messages import Serving
from actors.rollout.load_balancer import LoadBalancer
from actors.rollout.manager import RolloutManager
from actors.rollout.messages import PublishVersion, RolloutFigures, RolloutStatus, Weights
from actors.weights.control_file import ControlFile, has_writer, read_page
from actors.weights.control_page import NONE, State
from actors.weights.messages import Fetch, Fetched
from configs.schema import Config
from supervisor import Actor, Context, Done, handles
from supervisor.testing import TestSystem


def test_the_builtin_engine_keeps_its_weights_where_an_image_is_of_another_model(tmp_path: Path) -> None:
    host, good = BuiltinHost(Config()), published(tmp_path)[1]
    other = msgspec.structs.replace(good, version=4, root=b"4", tensors=good.tensors[:-1])
    with pytest.raises(LoadFailed, match="lacks"):
        BuiltinHost(Config()).turn(Orders(load=other))
    host.turn(Orders(load=good))
    turn = host.turn(Orders(load=other))
    assert (turn.version, turn.root) == (3, good.root)
    assert turn.load_failed.startswith("version 4 was not loaded: the image lacks")
    gone = msgspec.structs.replace(good, path=str(tmp_path / "gone"))
    assert "No such file" in host.turn(Orders(load=gone)).load_failed


class Stubborn:
    """A host that takes version 1 at once, and each later one only at try `tries`."""

    engines, cache_tokens = 1, 0

    def __init__(self, tries: int) -> None:
        self._tries, self.tried = tries, 0
        self._version: int | None = None

    def stage(self, fetched: Fetched) -> None:
        """There is nothing to prepare."""

    def turn(self, orders: Orders) -> Turn:
        failed = ""
        if (load := orders.load) is not None:
            self.tried += load.version > 1
            if load.version == 1 or self.tried == self._tries:
                self._version = load.version
            else:
                failed = "it does not fit"
        return Turn(None, [], self._version, b"r%d" % (self._version or 0), True, load_failed=failed)

    def hurry(self) -> None: ...

    def close(self) -> None: ...


class Transfer(Actor):
    """Has every version."""

    @handles(Fetch)
    async def fetch(self, message: Fetch) -> Fetched:
        return msgspec.structs.replace(without_tensors(message.version), root=message.root)


@pytest.mark.parametrize("tries", [2, served_weights.LOAD_TRIES + 1])
async def test_a_load_that_fails_is_tried_again_and_an_instance_whose_tries_all_fail_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    monkeypatch.setattr(served_weights, "LOAD_AGAIN_S", 0.01)
    host = Stubborn(tries)
    async with (
        TestSystem(tmp_path, node="head") as head,
        TestSystem(tmp_path, node="s", join=head) as spot,
    ):
        head.spawn("rollout/balancer", lambda: LoadBalancer(4))
        head.spawn("rollout/manager", lambda: RolloutManager(Config()))
        spot.spawn("s/transfer", Transfer)
        page = ControlFile(tmp_path, "s/engine")
        spot.spawn("s/engine", lambda: RolloutWorker(Config(), "s", "preemptible", host, page))

        async def until(serving: int) -> None:
            async with asyncio.timeout(60):
                while await serves() != serving:
                    await asyncio.sleep(0.01)

        async def serves() -> int:
            figures = await head.ask("rollout/manager", RolloutStatus(), RolloutFigures)
            return figures.serving_preemptible

        async def publish(version: int) -> None:
            weights = Weights(version=version, root=b"r%d" % version, sources=("s/transfer",))
            await head.ask("rollout/manager", PublishVersion(weights=weights), Done)

        await publish(1)
        await until(serving=1)
        assert (read_page(page.path).state, read_page(page.path).version) == (State.SERVING, 1)
        await publish(2)
        if tries <= served_weights.LOAD_TRIES:
            async with asyncio.timeout(60):
                while host.tried < tries:
                    await asyncio.sleep(0.01)
            assert spot.system.cell("s/engine") is not None
            async with asyncio.timeout(60):
                while read_page(page.path).version != 2:
                    await asyncio.sleep(0.01)
            assert read_page(page.path).failed_version == NONE
            assert read_page(page.path).failures == 1
            return
        async with asyncio.timeout(60):
            while spot.system.cell("s/engine") is not None:
                await asyncio.sleep(0.01)
        assert host.tried == served_weights.LOAD_TRIES
        left = read_page(page.path)
        assert (left.state, left.version, left.failed_version) == (State.LOAD_FAILED, 1, 2)
        assert (left.tries, left.why) == (served_weights.LOAD_TRIES, "it does not fit")
        assert not has_writer(page.path)


class Mortal(Stubborn):
    """A host whose engine does not outlive its first load."""

    def turn(self, orders: Orders) -> Turn:
        if orders.load is not None:
            raise ServerDied("the server has no room for it")
        return super().turn(orders)


async def test_an_instance_that_ends_in_a_load_leaves_on_its_page_which_weights_it_was_and_why(
    tmp_path: Path,
) -> None:
    page = ControlFile(tmp_path, "s/engine")
    async with (
        TestSystem(tmp_path, node="head") as head,
        TestSystem(tmp_path, node="s", join=head) as spot,
    ):
        head.spawn("rollout/balancer", lambda: LoadBalancer(4))
        head.spawn("rollout/manager", lambda: RolloutManager(Config()))
        spot.spawn("s/transfer", Transfer)
        spot.spawn("s/engine", lambda: RolloutWorker(Config(), "s", "preemptible", Mortal(1), page))
        weights = Weights(version=1, root=b"r1", sources=("s/transfer",))
        await head.ask("rollout/manager", PublishVersion(weights=weights), Done)
        async with asyncio.timeout(60):
            while spot.system.cell("s/engine") is not None:
                await asyncio.sleep(0.01)
    left = read_page(page.path)
    assert (left.state, left.version, left.failed_version) == (State.LOAD_FAILED, -1, 1)
    assert left.why == "the server has no room for it"


class Waiting:
    """The context of a worker, as far as its weights need one: every version is here, nobody is told."""

    name, incarnation = "s/engine", 1
    log = logging.LoggerAdapter(logging.getLogger("test"))

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def now(self) -> float:
        return 0.0

    def background(self, work: Coroutine[object, object, None], _: str) -> None:
        self.tasks.append(asyncio.create_task(work))

    @asynccontextmanager
    async def wait(self, *_: object, **__: object) -> AsyncIterator[None]:
        yield

    async def ask(self, _: str, message: Fetch | Serving, **__: object) -> Fetched | Done:
        if isinstance(message, Serving):
            return Done()
        return msgspec.structs.replace(without_tensors(message.version), root=message.root)


async def test_weights_that_are_told_again_are_not_tried_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_weights, "LOAD_AGAIN_S", 0.0)
    tried = 0

    async def stage(_: Fetched) -> None: ...

    async def load(_: Fetched) -> str:
        nonlocal tried
        tried += 1
        return "it does not fit"

    ctx = Waiting()
    weights = ServedWeights(cast(Context, ctx), Config(), "s", False, (stage, load))
    for _ in range(3):
        weights.want(Weights(version=2, root=b"r2", sources=("s/transfer",)))
    done, rest = await asyncio.wait(ctx.tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in rest:
        task.cancel()
    await asyncio.gather(*ctx.tasks, return_exceptions=True)
    assert [str(task.exception()) for task in done if task.exception()]
    assert tried == served_weights.LOAD_TRIES
    figures = weights.summary()
    assert (figures["version"], figures["failed_version"], figures["failed_tries"]) == (-1, 2, tried)
    assert figures["failed_why"] == "it does not fit"
