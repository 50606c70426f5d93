"""Model folders and a server in this process, for tests of the engine server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from served import Client, Serve, make_folder

from gleaner.actors.engine.builtin_server.process import Settings, loaded


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model."""
    return make_folder(tmp_path_factory.mktemp("models") / "a")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the same model."""
    return make_folder(tmp_path_factory.mktemp("models") / "b", seed=1)


@pytest.fixture
async def serve(folder: Path) -> AsyncIterator[Serve]:
    """Serves a folder with an engine that decodes exactly and whose request seeds are always the same."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(model: Path = folder, **settings: object) -> Client:
            chosen = {"slots": 4, "max_tokens": 512, "exact": True} | settings
            server, batch_loop = loaded(Settings(model=model, host="127.0.0.1", port=0, **chosen), 0)
            turning = asyncio.ensure_future(batch_loop.run())

            async def stop() -> None:
                turning.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await turning

            stack.push_async_callback(stop)
            http = TestServer(server.application(), handler_cancellation=True)
            return await stack.enter_async_context(TestClient(http))

        yield start
