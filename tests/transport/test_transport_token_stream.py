"""Token streams over real sockets: restarts, kills, refusals, garbage."""

import asyncio
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import zmq

from gleaner.transport import stream_control, token_frame
from gleaner.transport.keys import NodeKeys
from gleaner.transport.stream_control import Hello
from gleaner.transport.stream_sender import SenderLimits
from gleaner.transport.token_frame import Flag, PackedFrame
from gleaner.transport.token_stream import StreamReceiver, StreamRefused, StreamSender
from gleaner.transport.wire import Peer


class Manager:
    """Receives streams and journals frames as configured; its journal survives its receiver."""

    def __init__(self, *, prompt: bool = True, window: int = 16, **options: object) -> None:
        self.journal: dict[tuple[str, int], list[int]] = {}
        self.in_hand: dict[tuple[str, int], list[int]] = {}
        self.fenced: set[tuple[str, int]] = set()
        self.prompt = prompt  # journal every frame at once
        self.options = {"window": window, **options}
        self.open()

    def open(self) -> None:
        self.receiver = StreamReceiver("tcp://127.0.0.1:0", self.on_frame, self.have, **self.options)

    async def restart(self) -> None:
        await self.receiver.close()
        self.in_hand.clear()  # frames that were not journaled die with the process
        self.open()

    def have(self, stream: str, incarnation: int) -> int | None:
        if (stream, incarnation) in self.fenced:
            return None
        return len(self.journal.get((stream, incarnation), []))

    def on_frame(self, frame: PackedFrame) -> None:
        key = (frame.stream, frame.incarnation)
        self.in_hand.setdefault(key, []).append(int(frame.unpack().tokens[0]))
        if self.prompt:
            self.commit(*key)

    def commit(self, stream: str, incarnation: int) -> None:
        journal = self.journal.setdefault((stream, incarnation), [])
        journal += self.in_hand.pop((stream, incarnation), [])
        self.receiver.acknowledge(stream, incarnation, len(journal))


@pytest.fixture
async def closing():
    opened: list[StreamSender | Manager] = []
    yield lambda thing: opened.append(thing) or thing
    for thing in opened:
        await (thing.receiver if isinstance(thing, Manager) else thing).close()


def token(sender: StreamSender, value: int) -> bool:
    return sender.send([3], [value], [-0.25], [Flag.FIRST])


async def pour(sender: StreamSender, numbers: Iterator[int] | range) -> None:
    for number in numbers:
        await asyncio.wait_for(sender.writable(), 60)
        assert token(sender, number)


async def test_frames_arrive_whole_and_are_acknowledged(closing, eventually) -> None:
    frames: list[PackedFrame] = []
    receiver = StreamReceiver("tcp://127.0.0.1:0", frames.append, lambda stream, incarnation: 0)
    sender = closing(StreamSender("spot-1", 4))
    sender.connect(receiver.local)
    assert sender.send([7, 8], [100, 200], [-0.5, -1.5], [Flag.FIRST, Flag.FINISHED])
    await eventually(lambda: len(frames) == 1)
    frame = frames[0].unpack()
    assert (frame.stream, frame.incarnation, frame.seq) == ("spot-1", 4, 1)
    assert frame.slots.tolist() == [7, 8]
    assert frame.tokens.tolist() == [100, 200]
    assert frame.logprobs.tolist() == [-0.5, -1.5]
    assert frame.flags.tolist() == [1, 2]
    assert sender.unacknowledged == sender.last_seq == 1
    receiver.acknowledge("spot-1", 4, 1)
    await asyncio.wait_for(sender.drained(), 60)
    await receiver.close()


async def test_receiver_restarted_elsewhere_gets_the_rest_once(closing, eventually) -> None:
    manager = closing(Manager(prompt=False))
    sender = closing(StreamSender("spot-1", 1))
    sender.connect(manager.receiver.local)
    await pour(sender, range(1, 41))
    for part in range(41, 401, 40):
        await eventually(lambda: len(manager.in_hand.get(("spot-1", 1), [])) >= 5)
        if part % 80 == 1:
            manager.commit("spot-1", 1)
        await manager.restart()
        sender.connect(manager.receiver.local)
        await pour(sender, range(part, part + 40))
    manager.prompt = True
    await eventually(lambda: manager.in_hand.get(("spot-1", 1)) is not None or sender.unacknowledged == 0)
    if sender.unacknowledged:
        manager.commit("spot-1", 1)
    await asyncio.wait_for(sender.drained(), 60)
    assert manager.journal[("spot-1", 1)] == list(range(1, 401))


async def test_receiver_restarted_at_its_address_is_found_again(closing, eventually) -> None:
    manager = closing(Manager())
    sender = closing(StreamSender("spot-1", 1))
    sender.connect(manager.receiver.local)
    await pour(sender, range(1, 11))
    await asyncio.wait_for(sender.drained(), 60)
    address = manager.receiver.local.endpoint
    await manager.receiver.close()
    await pour(sender, range(11, 21))  # decoding continues meanwhile
    await asyncio.sleep(0.1)
    assert sender.unacknowledged == 10
    manager.receiver = StreamReceiver(address, manager.on_frame, manager.have)
    await asyncio.wait_for(sender.drained(), 60)
    assert manager.journal[("spot-1", 1)] == list(range(1, 21))


async def test_full_ring_takes_nothing_until_an_acknowledgement(closing, eventually) -> None:
    manager = closing(Manager(prompt=False))
    sender = closing(StreamSender("spot-1", 1, limits=SenderLimits(ring_frames=8)))
    assert [token(sender, n) for n in range(1, 11)] == [True] * 8 + [False] * 2
    assert sender.full
    waiting = asyncio.ensure_future(sender.writable())
    sender.connect(manager.receiver.local)
    await eventually(lambda: len(manager.in_hand.get(("spot-1", 1), [])) == 8)
    assert not waiting.done()
    manager.commit("spot-1", 1)
    await asyncio.wait_for(waiting, 60)
    assert token(sender, 9)


async def test_frames_in_flight_stay_within_window_without_commits(closing, eventually) -> None:
    manager = closing(Manager(prompt=False, window=4))
    sender = closing(StreamSender("spot-1", 1))
    sender.connect(manager.receiver.local)
    await pour(sender, range(1, 21))
    await eventually(lambda: len(manager.in_hand.get(("spot-1", 1), [])) == 4)
    await asyncio.sleep(0.6)  # unchanged after two more probes
    assert len(manager.in_hand[("spot-1", 1)]) == 4
    assert manager.receiver.duplicates == 0
    manager.prompt = True
    manager.commit("spot-1", 1)
    await asyncio.wait_for(sender.drained(), 60)
    assert manager.journal[("spot-1", 1)] == list(range(1, 21))


async def test_fenced_incarnation_is_notified_and_stops(closing, eventually) -> None:
    manager = closing(Manager())
    manager.fenced.add(("spot-1", 1))
    why: list[str] = []
    zombie, heir = (
        closing(StreamSender("spot-1", 1, on_refused=why.append)),
        closing(StreamSender("spot-1", 2)),
    )
    token(zombie, 1)
    zombie.connect(manager.receiver.local)
    heir.connect(manager.receiver.local)
    token(heir, 7)
    await eventually(lambda: bool(why))
    await asyncio.wait_for(heir.drained(), 60)
    assert why == ["incarnation 1 of spot-1 is not wanted"]
    assert not token(zombie, 2)
    with pytest.raises(StreamRefused, match="not wanted"):
        await zombie.drained()
    assert manager.journal == {("spot-1", 2): [7]}
    assert manager.receiver.refused["fenced"] >= 1


async def test_fenced_live_stream_is_notified_after_being_forgotten(closing, eventually) -> None:
    manager = closing(Manager())
    why: list[str] = []
    sender = closing(StreamSender("spot-1", 1, on_refused=why.append))
    sender.connect(manager.receiver.local)
    token(sender, 1)
    await asyncio.wait_for(sender.drained(), 60)
    manager.fenced.add(("spot-1", 1))
    manager.receiver.forget("spot-1", 1)
    token(sender, 2)
    await eventually(lambda: len(why) == 1)
    assert manager.journal[("spot-1", 1)] == [1]


async def test_frame_that_failed_in_the_manager_is_resent(closing, eventually) -> None:
    manager = closing(Manager())
    sender = closing(StreamSender("spot-1", 1, limits=SenderLimits(hello_period_s=0.05)))
    failures: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: failures.append(context["exception"])
    )
    real, times = manager.on_frame, iter(range(100))

    def fragile(frame: PackedFrame) -> None:
        if frame.seq == 3 and next(times) < 2:
            raise RuntimeError("journal is full")
        real(frame)

    manager.receiver._on_frame = fragile
    sender.connect(manager.receiver.local)
    await pour(sender, range(1, 11))
    await asyncio.wait_for(sender.drained(), 60)
    assert manager.journal[("spot-1", 1)] == list(range(1, 11))
    assert len(failures) == 2


async def test_gap_is_requested_and_duplicates_are_dropped(closing, eventually) -> None:
    manager = closing(Manager())
    peer = manager.receiver.local

    def frame(seq: int) -> list[bytes]:
        column = np.array([seq])
        return [token_frame.header("raw", 1, seq, 1), token_frame.pack_columns(column, column, column, [0])]

    with zmq.Context.instance().socket(zmq.DEALER) as raw:
        raw.linger, raw.routing_id, raw.rcvtimeo = 0, b"gl1#raw#", 2000
        raw.connect(peer.endpoint)
        for part in (stream_control.encode(Hello(1, "raw", 1, 0)), frame(1), frame(1), frame(4), frame(5)):
            raw.send_multipart(part)
        await eventually(lambda: manager.receiver.gaps == 2)
        assert manager.receiver.duplicates == 1
        replies = [stream_control.decode_from_receiver(raw.recv_multipart()) for _ in range(3)]
        assert replies == [
            stream_control.Have(1, 0, 0, 0, 16),
            stream_control.Ack(1),
            stream_control.Resend(2),
        ]
        raw.send_multipart(frame(500))
        await eventually(lambda: manager.receiver.refused["over-credit"] == 1)


async def test_garbage_on_stream_socket_is_counted_and_streams_continue(closing, eventually) -> None:
    manager = closing(Manager())
    sender = closing(StreamSender("spot-1", 1))
    sender.connect(manager.receiver.local)
    with (
        zmq.Context.instance().socket(zmq.DEALER) as rude,
        zmq.Context.instance().socket(zmq.DEALER) as anonymous,
    ):
        rude.linger = anonymous.linger = 0
        rude.routing_id = b"gl1#rude#"
        rude.connect(manager.receiver.local.endpoint)
        anonymous.connect(manager.receiver.local.endpoint)
        anonymous.send(b"x")
        rude.send(b"\xc1")
        rude.send_multipart([b"a", b"b", b"c"])
        rude.send_multipart(stream_control.encode(Hello(9, "s", 1, 0)))
        rude.send_multipart([token_frame.header("s", 1, 1, 2), b"short"])
        rude.send_multipart(stream_control.encode(stream_control.Ack(1)))
        await pour(sender, range(1, 51))
        await asyncio.wait_for(sender.drained(), 60)
        await eventually(lambda: manager.receiver.refused.total() == 6)
    assert manager.receiver.refused == {
        "no-identity": 1,
        "not-ours": 1,
        "wrong-parts": 1,
        "unknown-version": 1,
        "truncated": 1,
        "bad-field": 1,
    }
    assert manager.journal == {("spot-1", 1): list(range(1, 51))}


async def test_untrusted_instances_are_ignored_with_keys(closing, eventually) -> None:
    friend, stranger, own = NodeKeys.generate(), NodeKeys.generate(), NodeKeys.generate()
    manager = closing(Manager(keys=NodeKeys(own.public, own.secret, frozenset({friend.public}))))
    good, bad = closing(StreamSender("good", 1, keys=friend)), closing(StreamSender("bad", 1, keys=stranger))
    for sender in (bad, good):
        sender.connect(manager.receiver.local)
        token(sender, 1)
    await asyncio.wait_for(good.drained(), 60)
    await eventually(lambda: manager.receiver.refused["unknown-key"] >= 1)
    assert manager.journal == {("good", 1): [1]}
    assert bad.unacknowledged == 1
    with pytest.raises(ValueError, match="CURVE key"):
        good.connect(Peer("tcp://127.0.0.1:1"))


def trusting(own: NodeKeys, *others: NodeKeys) -> NodeKeys:
    return NodeKeys(own.public, own.secret, frozenset(other.public for other in others))


async def test_revoked_instance_resumes_without_gap_when_trusted_again(closing, eventually) -> None:
    spot, friend, own = NodeKeys.generate(), NodeKeys.generate(), NodeKeys.generate()
    keys = trusting(own, spot, friend)
    manager = closing(Manager(keys=keys, prompt=False))
    cut, kept = closing(StreamSender("spot", 1, keys=spot)), closing(StreamSender("friend", 1, keys=friend))
    for sender in (cut, kept):
        sender.connect(manager.receiver.local)
        await pour(sender, range(1, 6))
    await eventually(
        lambda: [len(manager.in_hand.get((name, 1), [])) for name in ("spot", "friend")] == [5, 5]
    )

    keys.allowed.replace(frozenset({own.public, friend.public}))
    await pour(cut, range(6, 11))  # into the ring
    await pour(kept, range(6, 11))
    await eventually(lambda: len(manager.in_hand["friend", 1]) == 10)
    await eventually(lambda: cut.refused["rejected"] >= 1)
    assert manager.in_hand["spot", 1] == list(range(1, 6))
    assert cut.unacknowledged == 10
    manager.commit("spot", 1)  # frames received before still count, and only then is the stream forgotten
    assert set(manager.receiver._streams) == {("friend", 1)}

    keys.allowed.replace(frozenset({own.public, friend.public, spot.public}))
    await eventually(lambda: manager.in_hand.get(("spot", 1)) == list(range(6, 11)))
    for name in ("spot", "friend"):
        manager.commit(name, 1)
        assert manager.journal[name, 1] == list(range(1, 11))
    await asyncio.wait_for(cut.drained(), 60)
    assert kept.refused == {}


async def test_instance_hangs_up_on_an_untrusted_manager(closing, eventually) -> None:
    spot, own = NodeKeys.generate(), NodeKeys.generate()
    manager = closing(Manager(keys=trusting(own, spot)))
    keys = trusting(spot, own)
    sender = closing(StreamSender("spot", 1, keys=keys))
    sender.connect(manager.receiver.local)
    await pour(sender, range(1, 4))
    await asyncio.wait_for(sender.drained(), 60)

    keys.allowed.replace(frozenset({spot.public}))
    await pour(sender, range(4, 6))
    await asyncio.sleep(0.4)
    assert manager.journal["spot", 1] == [1, 2, 3]
    assert sender.refused == {"revoked": 1}
    with pytest.raises(ValueError, match="was revoked here"):
        sender.connect(manager.receiver.local)

    keys.allowed.replace(frozenset({spot.public, own.public}))
    await asyncio.wait_for(sender.drained(), 60)
    assert manager.journal["spot", 1] == [1, 2, 3, 4, 5]


SENDER = """
import asyncio, sys
from gleaner.transport.stream_sender import SenderLimits
from gleaner.transport.token_stream import StreamSender
from gleaner.transport.wire import Peer

async def main():
    sender = StreamSender("spot-1", 1, limits=SenderLimits(ring_frames=64))
    sender.connect(Peer(sys.argv[1]))
    number = 0
    while True:
        await sender.writable()
        number += 1
        sender.send([0], [number], [0.0], [0])
        await asyncio.sleep(0)

asyncio.run(main())
"""


@pytest.mark.realprocess
async def test_killed_sender_loses_nothing_that_was_acknowledged(closing, eventually) -> None:
    manager = closing(Manager())
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SENDER, manager.receiver.local.endpoint
    )
    try:
        await eventually(lambda: len(manager.journal.get(("spot-1", 1), [])) > 500, within_s=60)
    finally:
        child.kill()
        await child.wait()
    await asyncio.sleep(0.1)
    journal = manager.journal[("spot-1", 1)]
    assert journal == list(range(1, len(journal) + 1))
    heir = closing(StreamSender("spot-1", 2))
    heir.connect(manager.receiver.local)
    await pour(heir, range(1, 11))
    await asyncio.wait_for(heir.drained(), 60)
    assert manager.journal[("spot-1", 2)] == list(range(1, 11))
