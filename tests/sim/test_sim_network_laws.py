"""Laws of a simulated connection: what the network may do to its data."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gleaner.sim.loop import ProcessLoop, SimLoop
from gleaner.sim.network import SimNet
from gleaner.sim.network_path import Profile
from gleaner.transport.keys import NodeKeys
from gleaner.transport.rejections import FIRST_S
from gleaner.transport.wire import Link, Peer, Route, Sent
from tests.sim.simulated_network import now_s, until

PROFILES = st.builds(
    Profile,
    latency_s=st.floats(0.0, 0.02),
    jitter_s=st.floats(0.0, 0.05),
    loss=st.sampled_from([0.0, 0.1]),
    rate_bytes_s=st.sampled_from([float("inf"), 1e4]),
)
FAULTS = ("partition", "heal", "reset", "jam", "quiet")
ACTS = st.lists(
    st.tuples(st.sampled_from(FAULTS), st.booleans(), st.integers(1, 5), st.floats(0.0, 0.5)), max_size=25
)


@dataclass
class Received:
    """The messages received by one end, by the route on which they came."""

    by_route: dict[Route, list[int]] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)

    def on_frames(self, route: Route, frames: list[bytes]) -> None:
        self.by_route.setdefault(route, []).append(int(frames[0]))

    def on_link(self, peer: Peer, link: Link) -> None:
        self.links.append(link)

    @property
    def all(self) -> list[int]:
        return [number for numbers in self.by_route.values() for number in numbers]


class Two:
    """Two processes on two hosts; `a` dials `b`, which replies on the routes of received messages."""

    def __init__(self, seed: int = 1, profile: Profile | None = None) -> None:
        self.loop = SimLoop()
        self.net = SimNet(self.loop, random.Random(seed), self.loop.trace, profile=profile)
        for host in "ab":
            self.net.add_host(host)
        self.a, self.b = (self.loop.spawn(name, name) for name in "ab")
        self.wires = [self.net.wire(process, process.name, process.name) for process in (self.a, self.b)]
        self.received = [Received(), Received()]
        for wire, received in zip(self.wires, self.received, strict=True):
            wire.listen(received.on_frames, received.on_link)
        self.sent: list[list[int]] = [[], []]

    @property
    def peer(self) -> Peer:
        return self.wires[1].local

    def tell(self, number: int, size: int = 0) -> Sent:
        """Send from a to b."""
        sent = self.wires[0].send(self.peer, [b"%d" % number, bytes(size)])
        if sent is Sent.OK:
            self.sent[0].append(number)
        return sent

    def answer(self, number: int) -> Sent:
        """Send from b to a, on the newest route."""
        routes = list(self.received[1].by_route)
        sent = self.wires[1].send(routes[-1], [b"%d" % number]) if routes else Sent.NO_ROUTE
        if sent is Sent.OK:
            self.sent[1].append(number)
        return sent

    def run(self, process: ProcessLoop, scenario: Callable[[], object], within_s: float = 100.0) -> None:
        async def main() -> None:
            outcome = scenario()
            if asyncio.iscoroutine(outcome):
                await outcome

        self.loop.complete(process, main(), within_s)


@pytest.fixture
def two() -> Iterator[Two]:
    two = Two()
    yield two
    assert two.loop.findings == []
    two.loop.close()


def in_order(received: list[int]) -> bool:
    return all(one < other for one, other in itertools.pairwise(received))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), there=PROFILES, back=PROFILES, acts=ACTS)
def test_connection_neither_reorders_nor_invents_nor_doubles(
    seed: int, there: Profile, back: Profile, acts: list[tuple[str, bool, int, float]]
) -> None:
    two = Two(seed)
    two.net.set_link("a", "b", there)
    two.net.set_link("b", "a", back)

    async def scenario() -> None:
        number = 0
        for what, forth, count, pause_s in acts:
            one, other = ("a", "b") if forth else ("b", "a")
            if what != "quiet":
                getattr(two.net, what)(one, other)
            for _ in range(count):
                number += 1
                two.tell(number)
                two.answer(number)
            await asyncio.sleep(pause_s)
        two.net.heal("a", "b")
        two.net.heal("b", "a")
        await asyncio.sleep(20.0)

    two.run(two.a, scenario)
    for received, sent in zip(reversed(two.received), two.sent, strict=True):
        assert all(in_order(numbers) for numbers in received.by_route.values())
        assert set(received.all) <= set(sent)
        assert len(received.all) == len(set(received.all))
    lost = sum(map(len, two.sent)) - sum(len(received.all) for received in two.received)
    assert lost == 0 or any(what in ("partition", "reset", "jam") for what, *_ in acts)
    assert two.loop.findings == []
    two.loop.close()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 30), profile=PROFILES, forth=st.booleans())
@example(seed=36367, profile=Profile(loss=0.1), forth=True)  # a message that is lost again and again
def test_one_way_partition_lets_the_other_direction_through(seed: int, profile: Profile, forth: bool) -> None:
    two = Two(seed)

    async def scenario() -> None:
        two.tell(1)
        await until(lambda: two.received[1].all == [1])
        two.answer(1)
        await until(lambda: two.received[0].all == [1])
        cut = ("a", "b") if forth else ("b", "a")
        # sent again so soon that what is lost several times in a row has arrived before the look below
        two.net.set_link(*reversed(cut), replace(profile, resend_s=0.01))
        two.net.partition(*cut)
        for number in range(2, 7):
            two.tell(number)
            two.answer(number)
        await asyncio.sleep(1.5)  # less than the silence that breaks a connection
        blocked, open_ = (two.received[1], two.received[0]) if forth else (two.received[0], two.received[1])
        assert blocked.all == [1]
        assert open_.all == list(range(1, 7))
        two.net.heal(*cut)
        await until(lambda: blocked.all == list(range(1, 7)))

    two.run(two.a, scenario)
    assert Link.SUSPECT not in two.received[0].links
    two.loop.close()


def test_connections_overtake_each_other() -> None:
    two = Two(profile=Profile(jitter_s=0.05))
    received: list[str] = []
    for name in "cd":
        two.net.add_host(name)
        process = two.loop.spawn(name, name)
        wire = two.net.wire(process, name, name)
        wire.listen(lambda route, frames, name=name: received.append(name), lambda peer, link: None)

        async def tell(peer: Peer = wire.local) -> None:
            for number in range(20):
                two.wires[0].send(peer, [b"%d" % number])
                await asyncio.sleep(0.05)

        two.a.create_task(tell())
    two.loop.run(3.0)
    assert len(received) == 40
    assert received != ["c", "d"] * 20
    two.loop.close()


def test_frozen_process_takes_bounded_input_and_handles_it_later(two: Two) -> None:
    async def scenario() -> None:
        two.tell(0)
        await until(lambda: two.received[1].all == [0])
        two.b.freeze()
        outcomes = [two.tell(number) for number in range(1, 5000)]
        taken = outcomes.count(Sent.OK)
        assert 1000 <= taken < 4999
        assert outcomes[taken:] == [Sent.NO_CREDIT] * (4999 - taken)
        await asyncio.sleep(1.0)
        assert two.received[1].all == [0]
        two.b.thaw()
        await until(lambda: two.received[1].all == list(range(taken + 1)))

    two.run(two.a, scenario)
    assert two.received[0].links == [Link.UP]


def test_long_frozen_process_is_down_and_handles_its_input(two: Two) -> None:
    async def scenario() -> None:
        two.tell(0)
        await until(lambda: two.received[1].all == [0])
        two.b.freeze()
        began_s = now_s()
        two.tell(1)
        await until(lambda: Link.SUSPECT in two.received[0].links)
        assert 2.9 < now_s() - began_s < 4.1
        await until(lambda: two.received[0].links[-1] is Link.DOWN)
        await asyncio.sleep(5.0)
        two.b.thaw()
        await until(lambda: two.received[1].all == [0, 1])
        assert two.answer(1) is Sent.NO_ROUTE

    two.run(two.a, scenario)


def test_process_death_is_noticed_at_once_unlike_host_death(two: Two) -> None:
    times: list[float] = []

    async def scenario() -> None:
        for kill in (two.b.kill, lambda: two.net.host_died("c")):
            began_s = now_s()
            kill()
            await until(lambda: two.received[0].links[-1] is Link.DOWN)
            times.append(now_s() - began_s)
            if not two.net.counts["host died"]:
                two.net.add_host("c")
                wire = two.net.wire(two.loop.spawn("c", "c"), "c", "c")
                wire.listen(lambda route, frames: None, lambda peer, link: None)
                two.wires[0].send(wire.local, [b"7"])
                await until(lambda: two.received[0].links[-1] is Link.UP)

    async def whole() -> None:
        two.tell(0)
        await until(lambda: two.received[1].all == [0])
        await scenario()

    two.run(two.a, whole)
    assert times[0] < 0.1
    assert 3.0 < times[1] < 4.6


def test_returning_host_answers_old_connections_with_a_reset(two: Two) -> None:
    async def scenario() -> None:
        two.tell(0)
        await until(lambda: two.received[1].all == [0])
        two.net.host_died("b")
        await asyncio.sleep(0.5)
        two.net.host_back("b")
        began_s = now_s()
        await until(lambda: Link.SUSPECT in two.received[0].links)
        assert now_s() - began_s < 1.2
        again = two.net.wire(two.loop.spawn("b", "b"), "b", "b", two.peer.endpoint)
        received = Received()
        again.listen(received.on_frames, received.on_link)
        await until(lambda: two.received[0].links == [Link.UP, Link.SUSPECT, Link.UP])  # to another process
        two.tell(1)
        await until(lambda: received.all == [1])

    two.run(two.a, scenario)


def test_one_way_partition_counts_as_silence_at_both_ends(two: Two) -> None:
    async def scenario() -> None:
        two.tell(0)
        await until(lambda: two.received[1].all == [0])
        two.net.partition("b", "a")
        began_s = now_s()
        await until(lambda: Link.SUSPECT in two.received[0].links)
        assert 2.9 < now_s() - began_s < 4.1
        two.net.heal("b", "a")
        await until(lambda: Link.DOWN in two.received[0].links)
        two.tell(1)
        await until(lambda: two.received[1].all == [0, 1])

    two.run(two.a, scenario)


def test_profile_sets_share_of_lost_and_doubled_messages(two: Two) -> None:
    async def scenario() -> None:
        two.tell(0)
        await until(lambda: two.received[1].all == [0])
        two.net.set_link("a", "b", Profile(vanish=0.2, double=0.2))
        for number in range(1, 500):
            two.tell(number)
        await asyncio.sleep(1.0)
        received = two.received[1].all
        assert received == sorted(received)
        assert 300 < len(set(received)) < 450
        assert len(received) - len(set(received)) == two.net.counts["doubled"] > 50

    two.run(two.a, scenario)


def test_revoked_key_is_ignored_and_not_dialled() -> None:
    loop = SimLoop()
    net = SimNet(loop, random.Random(1), loop.trace)
    keys = [NodeKeys.generate() for _ in range(2)]
    ours, theirs = (NodeKeys(k.public, k.secret, frozenset(o.public for o in keys)) for k in keys)
    received = [Received(), Received()]
    processes, wires = [], []
    for host, own, ear in zip("ab", (ours, theirs), received, strict=True):
        net.add_host(host)
        processes.append(loop.spawn(host, host))
        wires.append(net.wire(processes[-1], host, host, keys=own))
        wires[-1].listen(ear.on_frames, ear.on_link)
    peer = wires[1].local

    async def scenario() -> None:
        wires[0].send(peer, [b"1"])
        await until(lambda: received[1].all == [1])
        theirs.allowed.replace(frozenset({theirs.public}))
        wires[0].send(peer, [b"2"])
        await until(lambda: received[0].links[-1] is Link.REJECTED)
        assert received[1].all == [1]
        assert wires[1].refused["unknown-key"] == 1
        theirs.allowed.replace(frozenset({theirs.public, ours.public}))
        await asyncio.sleep(FIRST_S)  # the sender does not dial before that
        wires[0].send(peer, [b"3"])
        await until(lambda: received[1].all == [1, 3])
        ours.allowed.replace(frozenset({ours.public}))
        assert received[0].links[-1] is Link.REJECTED
        assert wires[0].send(peer, [b"4"]) is Sent.NO_ROUTE

    loop.complete(processes[0], scenario(), 30.0)
    loop.close()


@pytest.mark.parametrize("wrong", [{"latency_s": -1}, {"rate_bytes_s": 0}, {"loss": 1.5}, {"double": -0.1}])
def test_meaningless_profile_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Profile"):
        Profile(**wrong)


def test_network_is_determined_by_the_seed() -> None:
    def history(seed: int) -> str:
        two = Two(seed, Profile(loss=0.05, jitter_s=0.01))

        async def scenario() -> None:
            for number in range(200):
                two.tell(number)
                two.answer(number)
                if number % 60 == 59:
                    two.net.reset("a", "b")
                await asyncio.sleep(0.01)

        two.run(two.a, scenario)
        two.loop.close()
        return two.loop.trace.hash

    assert history(1) == history(1) != history(2)
