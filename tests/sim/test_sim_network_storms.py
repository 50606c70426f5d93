"""Production's links and token streams over a network worse than any real one.

Everything arrives once and in order.
"""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.sim.loop import SimLoop
from gleaner.sim.network import SimNet
from gleaner.sim.network_path import Profile
from gleaner.transport.stream_sender import SenderLimits
from gleaner.transport.token_frame import PackedFrame
from gleaner.transport.token_stream import StreamReceiver, StreamSender
from gleaner.transport.wire import Link
from tests.sim.simulated_network import Simulated, until
from tests.transport.test_transport_links import Process, numbered

SEEDS = st.integers(0, 1 << 30)
WORSE = Profile(latency_s=0.0005, jitter_s=0.01, loss=0.02, resend_s=0.05, vanish=0.1, double=0.1)


async def storm(net: SimNet, rng: random.Random, until_s: float) -> None:
    """Resets, jams, and partitions of either direction, each shorter than the limit that ends a session.

    A dial into a partition is repeated a second later, and the grace of a link is over by then.
    """
    loop = asyncio.get_running_loop()
    while loop.time() < until_s:
        await asyncio.sleep(rng.uniform(0.25, 0.4))
        one, other = rng.choice([("a", "b"), ("b", "a")])
        what = rng.choice(["reset", "jam", "partition"])
        getattr(net, what)(one, other)
        await asyncio.sleep(rng.uniform(0.0, 0.3 if what == "partition" else 0.05))
        net.heal(one, other)


def storm_of_links(seed: int) -> Counter[str]:
    """Check that links deliver everything once and in order; what the network did to their messages."""
    loop = SimLoop()
    carrier = Simulated(loop, seed, WORSE)

    async def scenario() -> None:
        a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
        b.answers = True
        stormy = asyncio.create_task(storm(carrier.net, random.Random(seed), 3.0))
        for first in range(0, 600, 20):
            await a.tell(b.local, range(first, first + 20))
            await asyncio.sleep(0.1)
        await stormy
        await until(lambda: len(b.got) >= 600, 60.0)
        assert b.got == list(range(600))
        assert Link.DOWN not in a.events

    loop.complete(loop.spawn("test", "here"), scenario(), 200.0)
    assert loop.findings == []
    loop.close()
    return Counter(carrier.net.counts)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_links_lose_double_and_reorder_nothing(seed: int) -> None:
    storm_of_links(seed)


def test_storm_loses_and_doubles_messages_of_links() -> None:
    """The links have something to mend: without this the test above shows nothing."""
    met = storm_of_links(1) + storm_of_links(2) + storm_of_links(3)
    assert met["vanished"] > 0 < met["doubled"]


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, kills=st.booleans())
def test_token_stream_is_journaled_whole_despite_receiver_faults(seed: int, kills: bool) -> None:
    loop = SimLoop()
    net = SimNet(loop, random.Random(seed), loop.trace, profile=WORSE)
    address = {host: net.add_host(host) for host in "ab"}
    rng = random.Random(seed)
    journal: list[int] = []
    worker = loop.spawn("worker", "a")
    receivers: list[StreamReceiver] = []

    def on_frame(frame: PackedFrame) -> None:
        journal.append(int(frame.unpack().tokens[0]))
        receivers[-1].acknowledge(frame.stream, frame.incarnation, frame.seq)

    async def manage() -> None:
        receivers.append(
            StreamReceiver(
                f"tcp://{address['b']}:7001",
                on_frame,
                lambda stream, incarnation: len(journal),
                window=32,
                carrier=net.carrier(asyncio.get_running_loop(), "b"),
            )
        )
        await asyncio.sleep(1e6)

    def life() -> None:
        manager = loop.spawn("manager", "b")
        manager.create_task(manage())
        if kills and loop.now_s < 6.0:
            loop.call_later(rng.uniform(0.2, 1.5), manager.kill)
            loop.call_later(rng.uniform(1.6, 2.5), life)

    async def decode() -> None:
        await asyncio.sleep(0.1)
        sender = StreamSender(
            "spot", 1, carrier=net.carrier(worker, "a"), limits=SenderLimits(ring_frames=64)
        )
        sender.connect(receivers[-1].local)
        stormy = asyncio.create_task(storm(net, rng, 3.0))
        for number in range(1, 401):
            await asyncio.wait_for(sender.writable(), 60.0)
            assert sender.send([0], [number], [0.0], [0])
            await asyncio.sleep(0.01)
        await stormy
        await asyncio.wait_for(sender.drained(), 60.0)
        await sender.close()

    life()
    loop.complete(worker, decode(), 300.0)
    assert journal == list(range(1, 401))
    assert loop.findings == []
    loop.close()


@pytest.mark.parametrize("hosts", [2, 40])
def test_cost_of_a_turn_is_independent_of_idle_hosts(hosts: int) -> None:
    loop = SimLoop()
    carrier = Simulated(loop)

    async def scenario() -> None:
        hub, others = Process(carrier, "hub", 1), [Process(carrier, f"h{n}", n + 2) for n in range(hosts)]
        for number, other in enumerate(others):
            other.links.send(hub.local, numbered(number))
        await until(lambda: len(hub.got) == hosts)
        before = loop.turns
        for number in range(100):
            others[0].links.send(hub.local, numbered(number))
            await asyncio.sleep(0.05)
        assert loop.turns - before < 2000

    loop.complete(loop.spawn("test", "here"), scenario(), 200.0)
    loop.close()
