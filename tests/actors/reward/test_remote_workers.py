"""RemoteWorkers: what is repeated to a host that did not receive it."""

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from types import SimpleNamespace
from typing import cast

import pytest

from gleaner.actors.protocol.reward import CancelItems, ScoreItems
from gleaner.actors.reward import remote_workers
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.remote_workers import RemoteWorkers
from gleaner.supervisor import Address, AskFailed, Context, Done, Message


class Unreachable:
    """A `Context` whose first ask fails when the test lets it."""

    def __init__(self) -> None:
        self.fail = asyncio.Event()
        self.sent: list[Message] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.log = SimpleNamespace(info=lambda *words: None)

    def background(self, work: Coroutine[object, object, None], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    def wait(self, what: str, **limits: object) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def tell(self, to: Address, message: Message) -> None:
        self.sent.append(message)

    async def ask(self, to: Address, message: Message, **limits: object) -> Done:
        self.sent.append(message)
        if not self.fail.is_set():
            await self.fail.wait()
            raise AskFailed("no answer")
        return Done()


async def test_repeated_message_has_no_cancelled_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_workers, "RETRY_S", 0.0)
    ctx = Unreachable()
    host = Address(name="far/reward", endpoint="tcp://1", incarnation=1)
    link = RemoteWorkers(cast("Context", ctx), host, "1.1")
    link.give("score", [RewardItem(name, "step-1", 0.0, ("score",), b"") for name in ("a", "b")])
    link.give("score", [RewardItem("c", "step-1", 0.0, ("score",), b"")])
    await asyncio.sleep(0)
    link.cancel(["a", "c"])
    await asyncio.sleep(0)
    ctx.fail.set()
    await asyncio.gather(*ctx.tasks)
    given = [[item.id for item in one.items] for one in ctx.sent if isinstance(one, ScoreItems)]
    assert given == [["a", "b"], ["c"], ["b"]]
    assert [one.items for one in ctx.sent if isinstance(one, CancelItems)] == [["a", "c"]]
