"""Bulk transfer on the simulated network.

Bytes arrive in order, or the connection raises an error; links have a rate.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.sim.loop import SimLoop
from gleaner.sim.network import SimNet
from gleaner.sim.network_carrier import SimCarrier
from gleaner.sim.network_path import Profile
from gleaner.transport.bulk import BulkServer, BulkSource, Chunk, PullTimeout, SourceGone, pull
from gleaner.transport.bulk_pull import STALL_S
from gleaner.transport.carrier import Connection
from tests.sim.simulated_network import now_s

CONTENT = random.Random(3).randbytes(64 << 10)
CHUNK = 1 << 10


def chunks(content: bytes = CONTENT, size: int = CHUNK) -> list[Chunk]:
    return [
        Chunk(at, size, xxhash.xxh3_128(content[at : at + size]).digest())
        for at in range(0, len(content), size)
    ]


class Hosts:
    """A source and some pullers, each a process on its own host."""

    def __init__(
        self,
        pullers: int = 1,
        *,
        scale: float = 1.0,
        seed: int = 1,
        egress: float = 1e9,
        content: bytes = CONTENT,
    ) -> None:
        self.content = content
        self.loop = SimLoop()
        self.net = SimNet(self.loop, random.Random(seed), self.loop.trace)
        self.net.add_host("source", egress_bytes_s=egress)
        self.source = self.loop.spawn("source", "source")
        self.server = BulkServer(
            self.net.station(self.source, "source", "source").host.address,
            carrier=self.net.carrier(self.source, "source", files=lambda path: content, scale=scale),
        )
        self.pullers = []
        for number in range(pullers):
            self.net.add_host(f"p{number}")
            process = self.loop.spawn(f"p{number}", f"p{number}")
            self.pullers.append((process, self.net.carrier(process, f"p{number}", scale=scale)))
        self.chunks = chunks()
        self.deadline_s = 60.0
        self.limit_bytes_s = 0.0
        self.took_s: dict[int, float] = {}
        self.outcomes: dict[int, BaseException | None] = {}

    def pull_all(self, within_s: float = 100.0, meanwhile: Callable[[], None] | None = None) -> None:
        async def start() -> None:
            await self.server.start()
            self.server.publish(1, "weights")

        self.loop.complete(self.source, start(), 1.0)
        tasks = [
            process.create_task(self._pull(number, carrier))
            for number, (process, carrier) in enumerate(self.pullers)
        ]
        if meanwhile is not None:
            meanwhile()
        self.loop.run(within_s)
        assert all(task.done() for task in tasks)

    async def _pull(self, number: int, carrier: SimCarrier) -> None:
        into = bytearray(len(self.content))
        source = BulkSource(self.server.endpoint, self.server.issue_token(1))
        began_s = now_s()
        try:
            await pull(
                source,
                1,
                self.chunks,
                memoryview(into),
                sockets=4,
                limit_bytes_s=self.limit_bytes_s,
                deadline_s=self.deadline_s,
                carrier=carrier,
            )
            assert into == self.content
            self.outcomes[number] = None
        except (SourceGone, PullTimeout) as problem:
            self.outcomes[number] = problem
        self.took_s[number] = now_s() - began_s


def test_scaled_file_takes_as_long_as_a_large_one() -> None:
    hosts = Hosts(scale=1e5)  # 6.5 GB at 1 GB/s
    hosts.pull_all()
    assert hosts.outcomes == {0: None}
    assert hosts.took_s[0] == pytest.approx(len(CONTENT) * 1e5 / 1e9, rel=0.1)


def test_pullers_sharing_a_card_share_its_rate() -> None:
    hosts = Hosts(4, scale=2e4)
    hosts.pull_all()
    assert list(hosts.outcomes.values()) == [None] * 4
    together_s = 4 * len(CONTENT) * 2e4 / 1e9
    assert max(hosts.took_s.values()) == pytest.approx(together_s, rel=0.15)
    assert min(hosts.took_s.values()) > 0.6 * together_s


def test_pieces_that_wait_for_other_pullers_are_no_stall() -> None:
    hosts = Hosts(20, scale=1e5)  # each has up to 4 connections of 4 pieces on the card: 16 s of its rate
    hosts.pull_all(within_s=200.0)
    assert list(hosts.outcomes.values()) == [None] * 20
    assert max(hosts.took_s.values()) == pytest.approx(20 * len(CONTENT) * 1e5 / 1e9, rel=0.1)
    assert not hosts.server.refused


def test_pieces_that_wait_are_a_stall_once_their_source_is_cut_off() -> None:
    hosts = Hosts(20, scale=1e5)
    for number in range(20):
        hosts.loop.call_later(10.0, hosts.net.partition, "source", f"p{number}")
    hosts.pull_all(within_s=60.0)
    assert all(isinstance(outcome, PullTimeout | SourceGone) for outcome in hosts.outcomes.values())
    assert max(hosts.took_s.values()) < 10.0 + 2 * STALL_S + 0.5


def test_slow_line_slows_only_its_own_puller() -> None:
    hosts = Hosts(2, scale=1e4)
    hosts.net.set_link("source", "p1", Profile(rate_bytes_s=1e8))
    hosts.pull_all()
    assert hosts.took_s[1] > 5 * hosts.took_s[0]


def test_line_carries_its_backlog_at_the_new_rate() -> None:
    hosts = Hosts(scale=1e5)  # 6.5 GB at 1 GB/s

    def slow_for_a_while() -> None:
        hosts.loop.run(1.0)
        hosts.net.set_link("source", "p0", Profile(rate_bytes_s=1e6))  # a piece takes 50 s
        hosts.loop.run(4.0)
        hosts.net.set_link("source", "p0", Profile())

    hosts.pull_all(meanwhile=slow_for_a_while)
    assert isinstance(hosts.outcomes[0], PullTimeout | SourceGone)
    process, carrier = hosts.pullers[0]
    process.create_task(hosts._pull(0, carrier))
    hosts.loop.run(200.0)
    assert hosts.outcomes == {0: None}
    assert hosts.took_s[0] == pytest.approx(len(CONTENT) * 1e5 / 1e9, rel=0.1)


def test_line_carries_nothing_of_a_connection_that_was_given_up() -> None:
    hosts = Hosts(scale=1e5)

    def given_up_on_a_slow_line() -> None:
        hosts.loop.run(1.0)
        hosts.net.set_link("source", "p0", Profile(rate_bytes_s=1e6))  # a piece takes 50 s
        hosts.loop.run(4.0)
        assert isinstance(hosts.outcomes[0], PullTimeout | SourceGone)
        process, carrier = hosts.pullers[0]
        process.create_task(hosts._pull(0, carrier))
        hosts.loop.run(5.0)
        hosts.net.set_link("source", "p0", Profile())

    hosts.pull_all(meanwhile=given_up_on_a_slow_line)
    hosts.loop.run(200.0)
    assert hosts.outcomes == {0: None}
    assert hosts.took_s[0] == pytest.approx(1.0 + len(CONTENT) * 1e5 / 1e9, rel=0.1)


def test_slow_link_is_not_taken_for_a_stall() -> None:
    content, rate = random.Random(4).randbytes(512 << 10), 2e4
    hosts = Hosts(content=content)
    hosts.net.set_link("source", "p0", Profile(rate_bytes_s=rate))
    hosts.chunks = chunks(content, len(content))  # longer than the silence that either end allows
    hosts.pull_all()
    assert hosts.outcomes == {0: None}
    assert hosts.took_s[0] == pytest.approx(len(content) / rate, rel=0.2)


def test_pull_may_outlast_the_deadline_but_no_chunk() -> None:
    for rate, outcome in ((4e3, type(None)), (100.0, PullTimeout)):
        hosts = Hosts()
        hosts.net.set_link("source", "p0", Profile(rate_bytes_s=rate))
        hosts.deadline_s = 5.0
        hosts.pull_all()
        assert isinstance(hosts.outcomes[0], outcome)
        assert (hosts.took_s[0] > 2 * hosts.deadline_s) == (outcome is type(None))


def test_pull_keeps_a_limit_slower_than_request_timeout() -> None:
    hosts = Hosts()
    hosts.limit_bytes_s = CHUNK / 2.5
    hosts.pull_all(within_s=200.0)
    assert hosts.outcomes == {0: None}
    assert hosts.took_s[0] == pytest.approx(2.5 * (len(hosts.chunks) - 1), rel=0.05)
    assert not hosts.server.refused


def test_killed_source_is_gone_at_once_and_frozen_later() -> None:
    for act, kind, at_most_s in (("kill", SourceGone, 0.4), ("freeze", PullTimeout, 2.8)):
        hosts = Hosts(scale=1e5)
        hosts.loop.call_later(0.3, getattr(hosts.source, act))
        hosts.pull_all()
        assert isinstance(hosts.outcomes[0], kind)
        assert 0.3 <= hosts.took_s[0] < at_most_s


def test_sender_without_acknowledgement_sends_only_a_window() -> None:
    hosts = Hosts(egress=1e6)
    process, carrier = hosts.pullers[0]
    listener = hosts.net.carrier(hosts.source, "source").bulk_listener("10.0.0.1", 0, None, "clear")
    listener.open()
    got: list[int] = [0]

    async def serve() -> None:
        connection, _ = await listener.accept()
        await connection.send(bytes(4_000_000), 60.0)

    async def read() -> None:
        connection = await carrier.connect(listener.endpoint)
        while count := await connection.receive(memoryview(bytearray(4000)), 60.0):
            got[0] += count

    serving = hosts.source.create_task(serve())
    process.create_task(read())
    hosts.loop.run(1.0)
    hosts.net.partition("p0", "source")
    before = got[0]
    hosts.loop.run(10.0)
    assert 0 < got[0] - before <= 5 * 50_000  # pieces of 50 ms
    assert not serving.done()
    hosts.net.heal("p0", "source")
    hosts.loop.run(20.0)
    assert got[0] == 4_000_000


def test_closed_port_is_refused_and_silent_host_awaited() -> None:
    hosts = Hosts()
    process, carrier = hosts.pullers[0]
    times: list[float] = []

    async def scenario() -> None:
        for endpoint, kind in (
            ("tcp://10.0.0.1:9", ConnectionRefusedError),
            ("tcp://10.9.9.9:9", TimeoutError),
        ):
            began_s = now_s()
            with pytest.raises(kind):
                await carrier.connect(endpoint)
            times.append(now_s() - began_s)

    hosts.loop.complete(process, scenario(), 500.0)
    assert times[0] < 0.01
    assert times[1] > 60.0


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=20),
    profile=st.builds(
        Profile,
        latency_s=st.floats(0, 0.05),
        jitter_s=st.floats(0, 0.05),
        loss=st.sampled_from([0.0, 0.2]),
        rate_bytes_s=st.sampled_from([1e4, 1e6, 1e9]),
    ),
    reset_at_s=st.one_of(st.none(), st.floats(0.05, 1.0)),
    cut_s=st.floats(0.0, 2.0),
)
def test_connection_delivers_all_bytes_in_order_or_breaks(
    seed: int, sizes: list[int], profile: Profile, reset_at_s: float | None, cut_s: float
) -> None:
    hosts = Hosts(seed=seed)
    for one, other in (("p0", "source"), ("source", "p0")):
        hosts.net.set_link(one, other, profile)
    sent = [random.Random(size).randbytes(size) for size in sizes]
    got = bytearray()
    ends: list[str] = []
    process, carrier = hosts.pullers[0]
    listener = hosts.net.carrier(hosts.source, "source").bulk_listener("10.0.0.1", 0, None, "clear")

    async def serve() -> None:
        listener.open()
        connection, _ = await listener.accept()
        try:
            for piece in sent:
                await connection.send(piece, 60.0)
        except OSError:
            ends.append("broken at the sender")
        connection.close()

    async def read() -> None:
        await asyncio.sleep(0.01)
        connection: Connection = await carrier.connect(listener.endpoint)
        place = memoryview(bytearray(1))
        try:
            while count := await connection.receive(place, 60.0):
                got.extend(place[:count])
            ends.append("end")
        except ConnectionResetError:
            ends.append("reset")
        connection.close()

    works: list[Coroutine[object, object, None]] = [serve(), read()]
    tasks = [loop.create_task(work) for loop, work in zip((hosts.source, process), works, strict=True)]
    if reset_at_s is not None:
        hosts.loop.call_later(reset_at_s, hosts.net.reset, "source", "p0")
    hosts.loop.call_later(0.1, hosts.net.partition, "source", "p0")
    hosts.loop.call_later(0.1 + cut_s, hosts.net.heal, "source", "p0")
    hosts.loop.run(400.0)
    assert all(task.done() for task in tasks)
    whole = b"".join(sent)
    assert whole.startswith(bytes(got))
    assert bytes(got) == whole or "reset" in ends
    assert reset_at_s is not None or ends == ["end"]
    hosts.loop.close()
