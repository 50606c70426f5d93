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
    link.give("score", [RewardItem(name, "step-1", 0.0, "score", b"") for name in ("a", "b")])
    link.give("score", [RewardItem("c", "step-1", 0.0, "score", b"")])
    await asyncio.sleep(0)
    link.cancel(["a", "c"])
    await asyncio.sleep(0)
    ctx.fail.set()
    await asyncio.gather(*ctx.tasks)
    given = [[item.id for item in one.items] for one in ctx.sent if isinstance(one, ScoreItems)]
    assert given == [["a", "b", "c"], ["b"]]
    assert [one.items for one in ctx.sent if isinstance(one, CancelItems)] == [["a", "c"], ["a", "c"]]


async def test_end_of_items_is_repeated_until_it_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of those that are given again: a repetition would end an attempt that is needed."""
    monkeypatch.setattr(remote_workers, "RETRY_S", 0.0)
    ctx = Unreachable()
    link = RemoteWorkers(
        cast("Context", ctx), Address(name="far/reward", endpoint="tcp://1", incarnation=1), "1.1"
    )
    items = {name: RewardItem(name, "step-1", 0.0, "score", b"") for name in ("a", "b", "c")}
    items["b"].attempts = items["c"].attempts = 1
    link.cancel(["a", "b", "c", "d"], {"b": 0, "c": 1})
    await asyncio.sleep(0)
    link.give("score", list(items.values()))
    await asyncio.sleep(0)
    ctx.fail.set()
    await asyncio.gather(*ctx.tasks)
    sent = [(one.items, one.attempts) for one in ctx.sent if isinstance(one, CancelItems)]
    assert sent == [(["a", "b", "c", "d"], {"b": 0, "c": 1}), (["b", "d"], {"b": 0})]
    assert not link._cancelling


async def test_end_of_items_is_not_repeated_to_a_host_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_workers, "RETRY_S", 0.0)
    ctx = Unreachable()
    link = RemoteWorkers(
        cast("Context", ctx), Address(name="far/reward", endpoint="tcp://1", incarnation=1), "1.1"
    )
    link.cancel(["a"])
    await asyncio.sleep(0)
    link.close()
    ctx.fail.set()
    await asyncio.gather(*ctx.tasks)
    assert [one.items for one in ctx.sent if isinstance(one, CancelItems)] == [["a"]]


async def test_item_is_not_repeated_when_its_result_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_workers, "RETRY_S", 0.0)
    ctx = Unreachable()
    host = Address(name="far/reward", endpoint="tcp://1", incarnation=1)
    link = RemoteWorkers(cast("Context", ctx), host, "1.1")
    items = [RewardItem(name, "step-1", 0.0, "score", b"") for name in ("a", "b")]
    items[1].attempts = 1
    link.give("score", items)
    await asyncio.sleep(0)
    link.received([("a", 0), ("b", 0)])  # b's result is that of the attempt before
    ctx.fail.set()
    await asyncio.gather(*ctx.tasks)
    given = [[item.id for item in one.items] for one in ctx.sent if isinstance(one, ScoreItems)]
    assert given == [["a", "b"], ["b"]]


async def test_next_attempt_is_repeated_when_the_one_before_was_received(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its result came before the answer to the message that brought it."""
    monkeypatch.setattr(remote_workers, "RETRY_S", 0.0)
    ctx = Unreachable()
    answered: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
    asks: list[ScoreItems] = []

    async def ask(to: Address, message: Message, **limits: object) -> Done:
        assert isinstance(message, ScoreItems)
        asks.append(message)
        if len(asks) == 1:
            return await answered
        if len(asks) == 2:
            answered.set_result(Done())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            raise AskFailed("no answer")
        return Done()

    monkeypatch.setattr(ctx, "ask", ask)
    link = RemoteWorkers(
        cast("Context", ctx), Address(name="far/reward", endpoint="tcp://1", incarnation=1), "1.1"
    )
    item = RewardItem("a", "step-1", 0.0, "score", b"")
    link.give("score", [item])
    await asyncio.sleep(0)
    item.attempts = 1
    link.give("score", [item])
    await asyncio.gather(*ctx.tasks)
    assert [[(one.id, one.attempt) for one in ask.items] for ask in asks] == [
        [("a", 0)],
        [("a", 1)],
        [("a", 1)],
    ]


async def test_items_of_one_turn_leave_together_up_to_a_message_s_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_workers, "MOST_BYTES", 8)
    ctx = Unreachable()
    ctx.fail.set()
    host = Address(name="far/reward", endpoint="tcp://1", incarnation=1)
    link = RemoteWorkers(cast("Context", ctx), host, "1.1")
    for name in ("a", "b", "c"):
        link.give("score", [RewardItem(name, "step-1", 0.0, "score", b"1234")])
    await asyncio.sleep(0.01)
    link.give("score", [RewardItem("d", "step-1", 0.0, "score", b"1234")])
    await asyncio.sleep(0.01)
    given = [[item.id for item in one.items] for one in ctx.sent if isinstance(one, ScoreItems)]
    assert given == [["a", "b"], ["c"], ["d"]]
