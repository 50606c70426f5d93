"""RowQueue: rows of several streams in one turn.

Gathering never delays a first or a last token.
"""

import asyncio
from array import array

import pytest

from gleaner.actors.engine.servers import row_queue as row_exchange
from gleaner.actors.engine.servers.port import Ask, Chunk
from gleaner.actors.engine.servers.row_queue import RowQueue, Stream, TakenRows

FOREVER_S = 600.0


@pytest.fixture(autouse=True)
def _gathers_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_exchange, "GATHER_S", FOREVER_S)
    monkeypatch.setattr(row_exchange, "SOON_S", 0.001)


def stream(ticket: int, started: bool = True) -> Stream:
    return Stream(ticket, Ask(f"r{ticket}", array("I", [1, 2]), 9, 0.0, 0), context=2, started=started)


def one(token: int, finish: bool = False) -> Chunk:
    return Chunk([token], [-0.5], "length" if finish else None)


async def taken(taking: "asyncio.Task[TakenRows]") -> list[int]:
    async with asyncio.timeout(60):
        output = (await taking).output
    assert output is not None
    return output.tokens.tolist()


async def test_tokens_wait_until_every_stream_has_some() -> None:
    exchange = RowQueue()
    taking = asyncio.create_task(exchange.take(FOREVER_S, expected=2))
    exchange.put(stream(1), one(7), 2)
    await asyncio.sleep(0.05)
    assert not taking.done()
    exchange.put(stream(2), one(8), 2)
    assert await taken(taking) == [7, 8]


@pytest.mark.parametrize(("started", "finish"), [(False, False), (True, True)], ids=["first", "last"])
async def test_first_and_last_tokens_of_requests_never_wait(started: bool, finish: bool) -> None:
    exchange = RowQueue()
    taking = asyncio.create_task(exchange.take(FOREVER_S, expected=9))
    exchange.put(stream(1), one(7), 2)
    await asyncio.sleep(0.05)
    assert not taking.done()
    exchange.put(stream(2, started), one(8, finish), 2)
    assert await taken(taking) == [7, 8]


@pytest.mark.parametrize("urgent", ["hurry", "refuse", "ended"])
async def test_urgent_event_releases_gathered_tokens(urgent: str) -> None:
    exchange = RowQueue()
    exchange.put(stream(1), one(7), 2)
    taking = asyncio.create_task(exchange.take(FOREVER_S, expected=9))
    await asyncio.sleep(0)
    if urgent == "hurry":
        exchange.hurry()
    elif urgent == "refuse":
        exchange.refuse(5, "no", never=True)
    else:
        exchange.ended([5])
    assert (await taken(taking))[0] == 7


async def test_retractions_of_streams_are_counted_once() -> None:
    exchange = RowQueue()
    first, second = stream(1), stream(2)
    for one_stream, retracted in ((first, 1), (second, 0), (first, 1), (first, 3)):
        exchange.put(one_stream, Chunk([7], [-0.5], retracted=retracted), 2)
    assert (await exchange.take(0.0, expected=1)).work.retracted == 3
