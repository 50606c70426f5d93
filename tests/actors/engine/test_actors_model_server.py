"""The actor that serves a model: it reports its URL, fails with its server, and ends it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from gleaner.actors.engine.builtin_server.entry import BuiltinEntry
from gleaner.actors.engine.builtin_server.process import Settings
from gleaner.actors.engine.model_server import ModelServer
from gleaner.supervisor import Supervisor, child, one_for_one
from gleaner.supervisor.testing import TestSystem
from tests.gateway.judge_model import make_judge


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_judge(tmp_path_factory.mktemp("models") / "judge", 10, num_hidden_layers=3)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def ready(entry: BuiltinEntry) -> tuple[str, asyncio.Task[None]]:
    urls: list[str] = []
    serving = asyncio.create_task(entry.start(urls.append))
    await until(lambda: urls or serving.done())
    if serving.done():
        serving.result()
    return urls[0], serving


async def test_entry_serves_until_it_is_closed(folder: Path) -> None:
    settings = Settings(model=folder, host="127.0.0.1", port=0, name="judge", api_key="k", max_tokens=256)
    entry = BuiltinEntry(settings)
    url, serving = await ready(entry)
    asked = {"model": "judge", "messages": [{"role": "user", "content": "Go"}], "max_tokens": 200, "seed": 1}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v1/chat/completions", json=asked) as refused:
            assert refused.status == 401
        headers = {"Authorization": "Bearer k"}
        async with session.post(f"{url}/v1/chat/completions", json=asked, headers=headers) as answer:
            assert "<score>" in (await answer.json())["choices"][0]["message"]["content"]
    await entry.close()
    assert serving.done()
    port = int(url.rpartition(":")[2])
    again = BuiltinEntry(Settings(model=folder, host="127.0.0.1", port=port, max_tokens=256))
    url, _ = await ready(again)  # its port is free
    await again.close()


async def test_entry_of_a_folder_without_a_model_fails(tmp_path: Path) -> None:
    entry = BuiltinEntry(Settings(model=tmp_path, host="127.0.0.1", port=0))
    with pytest.raises(ValueError, match="tokenizer.json"):
        await entry.start(lambda url: None)
    await entry.close()


class _Entry:
    """A server that fails on order."""

    def __init__(self) -> None:
        self.failing = asyncio.Event()
        self.closed = False

    async def start(self, ready: Callable[[str], None]) -> None:
        ready("http://here:1")
        await self.failing.wait()
        raise OSError("broken")

    async def close(self) -> None:
        self.closed = True


async def test_actor_is_started_again_when_its_server_fails(tmp_path: Path) -> None:
    made: list[_Entry] = []
    failures: list[Exception] = []

    def make() -> _Entry:
        made.append(_Entry())
        return made[-1]

    async with TestSystem(tmp_path) as testing:
        spec = one_for_one(child("r/judge", lambda: ModelServer(make)), name="judge")
        tree = Supervisor(testing.system, spec, on_failure=failures.append)
        await tree.start()
        await until(lambda: made)
        made[0].failing.set()
        await until(lambda: len(made) == 2)
        assert made[0].closed
        assert not made[1].closed
        await tree.stop()
        await until(lambda: made[1].closed)
        assert not failures
