"""Port: the discipline around the edge-triggered FD leaves no message unread."""

import asyncio
import time
from collections.abc import Iterator

import pytest
import zmq

from gleaner.transport.port import DRAIN_BUDGET, Port


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket, zmq.Socket]]:
    """Our socket and a plain one on the other side, connected over TCP."""
    context = zmq.Context.instance()
    ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    ours.linger = theirs.linger = 0
    theirs.connect(f"tcp://127.0.0.1:{ours.bind_to_random_port('tcp://127.0.0.1')}")
    theirs.send(b"connected")
    assert ours.poll(60_000)
    assert ours.recv() == b"connected"
    yield ours, theirs
    theirs.close()
    ours.close()


async def test_messages_before_the_port_opened_are_delivered(pair, eventually) -> None:
    ours, theirs = pair
    theirs.send(b"early")
    assert ours.poll(60_000)  # it is in the socket now
    got: list[list[bytes]] = []
    port = Port(ours, got.append)
    await eventually(lambda: got == [[b"early"]])
    port.close()


async def test_send_does_not_hide_arrived_messages(pair, eventually) -> None:
    ours, theirs = pair
    got: list[list[bytes]] = []
    port = Port(ours, got.append)
    await asyncio.sleep(0.02)  # drained: from now on only the edge signals
    for number in range(20):
        theirs.send(b"%d" % number)
        time.sleep(0.01)  # it arrives while the loop is busy ...
        port.send([b"out"])  # ... and this call consumes the edge
        await eventually(lambda number=number: len(got) == number + 1, within_s=60.0)
    port.close()


async def test_failing_callback_does_not_stop_later_messages(pair, eventually) -> None:
    ours, theirs = pair
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    got: list[list[bytes]] = []

    def fragile(frames: list[bytes]) -> None:
        if frames == [b"1"]:
            raise RuntimeError("cannot")
        got.append(frames)

    port = Port(ours, fragile)
    await asyncio.sleep(0.02)
    for body in (b"1", b"2", b"3"):
        theirs.send(body)
    await eventually(lambda: got == [[b"2"], [b"3"]], within_s=60.0)
    assert len(failures) == 1
    port.close()


async def test_flood_does_not_starve_the_loop(pair, eventually) -> None:
    ours, theirs = pair
    for _ in range(3 * DRAIN_BUDGET):
        theirs.send(b"x")
    time.sleep(0.1)
    seen_between: list[int] = []
    got: list[list[bytes]] = []
    port = Port(ours, got.append)

    def other() -> None:
        seen_between.append(len(got))
        if len(got) < 3 * DRAIN_BUDGET:
            asyncio.get_running_loop().call_soon(other)

    asyncio.get_running_loop().call_soon(other)
    await eventually(lambda: len(got) == 3 * DRAIN_BUDGET)
    assert len([count for count in seen_between if 0 < count < 3 * DRAIN_BUDGET]) >= 2
    port.close()


async def test_closed_port_delivers_nothing(pair) -> None:
    ours, _ = pair
    port = Port(ours, lambda frames: None)
    port.close()
    port.close()
    assert not port.send([b"x"])
    assert not port.writable()
