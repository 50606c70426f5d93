"""TakesWeights: stage, commit and version in the same way for every engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gleaner.actors.engine.builtin.host import BuiltinHost
from gleaner.actors.engine.builtin.settings import BuiltinSettings
from gleaner.actors.engine.images.checkpoint_folder import version_name
from gleaner.actors.engine.servers.port import LoadFailed, TakesWeights
from gleaner.actors.engine.servers.sglang import SglangWire
from gleaner.actors.engine.servers.vllm import VllmWire
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import Fetched
from gleaner.configs.schema import Config
from tests.actors.engine.servers.test_servers_sglang import published
from tests.actors.engine.servers.test_servers_sglang_weights import FakeSglang, image
from tests.actors.engine.servers.test_servers_vllm import FakeVllm, image_in


class OnItsThread:
    """The builtin engine, called as its worker does: not on the loop."""

    def __init__(self) -> None:
        self._host = BuiltinHost(BuiltinSettings.of(Config()))

    async def stage(self, fetched: Fetched) -> None:
        await asyncio.to_thread(self._host.stage, fetched)

    async def commit(self) -> str:
        return await asyncio.to_thread(self._host.commit)

    async def version(self) -> str:
        return self._host.version()


@dataclass
class Given:
    """An engine; `sound`: weights that it accepts; `unsound`: weights that it refuses."""

    engine: TakesWeights
    sound: Fetched
    unsound: Fetched

    def weights(self, version: int) -> Fetched:
        return msgspec.structs.replace(self.sound, version=version, root=bytes([version]) * 32)


async def served(open_servers: AsyncExitStack, fake: FakeSglang | FakeVllm) -> str:
    app = web.Application()
    if isinstance(fake, FakeVllm):
        app.router.add_post("/v1/completions", fake.completions)
    app.router.add_route("*", "/{path:.*}", fake.answer if isinstance(fake, FakeSglang) else fake.other)
    server = await open_servers.enter_async_context(TestServer(app))
    return str(server.make_url("")).rstrip("/")


def of_another_model(fetched: Fetched) -> Fetched:
    """The error of an engine that has no such tensor."""
    alien = TensorSpec("c.weight", "float32", (1,), 0, 4)
    return msgspec.structs.replace(fetched, version=9, root=b"9" * 32, tensors=(alien,))


@pytest.fixture(params=["builtin", "sglang", "vllm"])
async def given(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Given]:
    async with AsyncExitStack() as open_servers:
        if request.param == "builtin":
            sound = published(tmp_path)[1]
            yield Given(OnItsThread(), sound, of_another_model(sound))
        elif request.param == "sglang":

            async def tempered(_: SglangWire) -> bool:
                return False

            monkeypatch.setattr(SglangWire, "_leaves_temperature_out", tempered)  # it serves no requests
            wire = SglangWire(await served(open_servers, FakeSglang()), None)
            open_servers.push_async_callback(wire.disconnect)
            sound = image(tmp_path, 1)[0]
            yield Given(wire, sound, of_another_model(sound))
        else:
            fake = FakeVllm(alien="c.weight")
            other = VllmWire(await served(open_servers, fake), start=None)
            open_servers.push_async_callback(other.disconnect)
            sound = image_in(tmp_path)[0]
            yield Given(other, sound, of_another_model(sound))


async def flip(given: Given, fetched: Fetched) -> str:
    await given.engine.stage(fetched)
    return await given.engine.commit()


async def test_staged_weights_are_served_after_the_commit(given: Given) -> None:
    first, second = given.weights(1), given.weights(2)
    assert await flip(given, first) == await given.engine.version() == version_name(first)
    await given.engine.stage(second)
    assert await given.engine.version() == version_name(first)
    assert await given.engine.commit() == await given.engine.version() == version_name(second)


async def test_last_staged_weights_are_committed(given: Given) -> None:
    await flip(given, given.weights(1))
    await given.engine.stage(given.weights(2))
    assert await flip(given, given.weights(3)) == version_name(given.weights(3))


async def test_refused_weights_leave_the_served_ones(
    given: Given,
) -> None:
    await flip(given, given.weights(1))
    with pytest.raises(LoadFailed, match="version 9 was not loaded"):
        await flip(given, given.unsound)
    assert await given.engine.version() == version_name(given.weights(1))
    assert await flip(given, given.weights(2)) == version_name(given.weights(2))


async def test_missing_image_cannot_be_staged(given: Given) -> None:
    await flip(given, given.weights(1))
    gone = msgspec.structs.replace(given.weights(2), path=f"{given.sound.path}.gone")
    with pytest.raises(LoadFailed, match="version 2"):
        await flip(given, gone)
    assert await given.engine.version() == version_name(given.weights(1))
