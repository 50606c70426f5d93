"""Control links, on every carrier: once and in order, with backpressure.

This holds whatever frames the wire drops; slow peers slow only their senders.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator

import msgpack
import pytest
from patient_loop import PatientLoop

from gleaner.transport import control_frame
from gleaner.transport.envelope import Envelope, Lane, Mode, encode
from gleaner.transport.link import DialledLink
from gleaner.transport.link_end import LinkLimits
from gleaner.transport.links import Links
from gleaner.transport.refusal import BadField
from gleaner.transport.session import PROMPT_MESSAGES, START_LIMIT
from gleaner.transport.wire import Link, Peer, Route, Sent
from tests.transport.carriers import SOON_S, Flaky, Keyed, Loopback, Plain

LIMITS = LinkLimits(ack_delay_s=0.05, answer_ack_s=0.1, probe_s=0.1, answer_s=2.0)


class Process:
    """One life of a process: its links, its received messages, and the behaviour of its layer above."""

    def __init__(self, carrier: Loopback | Plain, name: str, life: int, limits: LinkLimits = LIMITS) -> None:
        self.wire = carrier.open(name)
        self.links = Links(self.wire, life=life, limits=limits)
        self.got: list[int] = []
        self.routes: list[Route] = []
        self.events: list[Link] = []
        self.full = False  # then one-way messages are held
        self.answers = False  # then asks are answered with their number
        self.links.listen(self.on_envelope, lambda peer, link: self.events.append(link))

    @property
    def local(self) -> Peer:
        return self.links.local

    def on_envelope(self, route: Route, envelope: Envelope) -> bool:
        number = msgpack.unpackb(envelope.body)
        self.got.append(number)
        self.routes.append(route)
        if envelope.mode is Mode.ASK and self.answers:
            assert self.links.send(route, numbered(number, Mode.REPLY), answer=True) is Sent.OK
        return not (self.full and envelope.mode is Mode.TELL and envelope.lane is Lane.USER)

    async def tell(self, to: Peer, numbers: range) -> None:
        for number in numbers:
            while self.links.send(to, numbered(number), tell=True) is not Sent.OK:
                await asyncio.wait_for(self.links.room(to), 60)


def all_acknowledged(process: Process) -> bool:
    return all(state.unacked == 0 for state in process.links.states())


def numbered(number: int, mode: Mode = Mode.TELL) -> bytes:
    return encode("Number", "receiver", msgpack.packb(number), mode=mode)


@pytest.fixture(params=[Loopback, Plain, Keyed, Flaky])
async def carrier(request: pytest.FixtureRequest) -> AsyncIterator[Loopback | Plain]:
    carrier = request.param()
    yield carrier
    await carrier.close()


async def test_messages_arrive_once_and_in_order_both_ways(carrier, eventually) -> None:
    a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
    b.answers = True
    for number in range(3000):
        assert a.links.send(b.local, numbered(number, Mode.ASK)) is Sent.OK
        if number % 50 == 0:
            await asyncio.sleep(0)
    await eventually(lambda: len(a.got) >= 3000, within_s=60)
    assert b.got == a.got == list(range(3000))
    assert a.events == [Link.UP]
    await eventually(lambda: all_acknowledged(a) and all_acknowledged(b))
    await a.links.close()
    await b.links.close()


async def test_messages_of_one_turn_leave_in_one_frame(eventually) -> None:
    carrier = Loopback()
    a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
    a.links.send(b.local, numbered(0))
    await eventually(lambda: b.got == [0])
    frames: list[bytes] = []
    b.wire.deliver = lambda route, parts: frames.extend(parts) or True  # type: ignore[method-assign]
    for number in range(1, 31):
        a.links.send(b.local, numbered(number), tell=True)
    await eventually(lambda: bool(frames))
    [data] = [control_frame.decode(frame, print) for frame in frames]
    assert (data.first, len(data.envelopes)) == (2, 30)
    await carrier.close()


async def test_many_asks_leave_before_their_turn_ends() -> None:
    carrier = Loopback()
    a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
    a.links.send(b.local, numbered(0))
    while b.got != [0]:
        await asyncio.sleep(0)
    frames: list[bytes] = []
    b.wire.deliver = lambda route, parts: frames.extend(parts) or True  # type: ignore[method-assign]
    for number in range(1, 2 * PROMPT_MESSAGES):
        a.links.send(b.local, numbered(number, Mode.ASK))
    [data] = [control_frame.decode(frame, print) for frame in frames]
    assert (data.first, len(data.envelopes)) == (2, PROMPT_MESSAGES)
    await carrier.close()


async def test_full_mailbox_stops_only_messages_to_that_process(carrier, eventually) -> None:
    limits = LinkLimits(window=100, probe_s=0.1)
    a, slow, quick = (
        Process(carrier, name, life, limits) for life, name in enumerate(("a", "slow", "quick"), 1)
    )
    slow.full = slow.answers = True
    sending = asyncio.create_task(a.tell(slow.local, range(1000)))
    await eventually(lambda: len(slow.got) == 100)
    await eventually(lambda: a.links.send(slow.local, numbered(-1), tell=True) is Sent.NO_CREDIT)
    sending.cancel()
    await a.tell(quick.local, range(1000))
    a.links.send(slow.local, numbered(5000, Mode.ASK))
    await eventually(lambda: quick.got == list(range(1000)) and a.got == [5000], within_s=60)
    assert slow.got == [*range(100), 5000]
    assert sum(state.held for state in slow.links.states()) == 100
    rest = asyncio.create_task(a.tell(slow.local, range(100, 250)))
    await asyncio.sleep(0.05)
    assert len(slow.got) == 101  # still
    slow.full = False
    slow.links.consumed(slow.routes[0], 100)
    await asyncio.wait_for(rest, 60)
    await eventually(lambda: slow.got == [*range(100), 5000, *range(100, 250)], within_s=60)


async def test_waiting_senders_continue_in_order_until_link_ends(eventually) -> None:
    carrier = Loopback()
    a, b = Process(carrier, "a", 1), Process(carrier, "b", 2, LinkLimits(window=64))
    b.full = True
    await a.tell(b.local, range(64))
    await eventually(lambda: len(b.got) == 64)
    went: list[int] = []

    async def teller(number: int) -> None:
        while a.links.send(b.local, numbered(number), tell=True) is Sent.NO_CREDIT:
            await a.links.room(b.local)
        went.append(number)

    tellers = [asyncio.create_task(teller(number)) for number in range(100, 120)]
    await asyncio.sleep(0.05)
    assert went == []
    tellers[0].cancel()
    b.links.consumed(b.routes[0], 8)
    await eventually(lambda: len(went) == 8)
    await asyncio.sleep(0.05)
    assert went == list(range(101, 109))
    waiting = asyncio.create_task(a.links.room(b.local))
    await asyncio.sleep(0.01)
    carrier.network.kill("b")
    await asyncio.wait_for(waiting, 60)
    assert a.events[-1] is Link.DOWN
    for task in tellers:
        task.cancel()
    await carrier.close()


async def test_unacknowledged_messages_are_bounded(carrier) -> None:
    limits = LinkLimits(max_unacked=200, max_unacked_bytes=1 << 20)
    a = Process(carrier, "a", 1, limits)
    absent = carrier.address("nobody")
    assert sum(a.links.send(absent, numbered(n, Mode.ASK)) is Sent.OK for n in range(500)) == 200
    assert a.links.send(absent, numbered(0), tell=True) is Sent.NO_CREDIT
    b = Process(carrier, "b", 2)
    big = encode("Big", "receiver", bytes(1 << 19))
    assert [a.links.send(b.local, big) for _ in range(3)] == [Sent.OK, Sent.OK, Sent.NO_CREDIT]


async def test_few_messages_leave_before_the_peer_grants_more(carrier) -> None:
    a = Process(carrier, "a", 1)
    absent = carrier.address("nobody")
    sent = [a.links.send(absent, numbered(n), tell=True) for n in range(START_LIMIT + 1)]
    assert sent == [*[Sent.OK] * START_LIMIT, Sent.NO_CREDIT]


async def test_silent_peer_is_down_and_waiting_messages_counted(carrier, eventually) -> None:
    carrier.gives_up_after(SOON_S)
    a = Process(carrier, "a", 1)
    for number in range(10):
        a.links.send(carrier.address("nobody"), numbered(number))
    await eventually(lambda: a.events == [Link.DOWN])
    assert a.links.lost == {"down": 10}
    assert a.links.states() == []


async def test_restarted_process_gets_nothing_of_the_old_link(carrier, eventually) -> None:
    a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
    await a.tell(b.local, range(100))
    await eventually(lambda: len(b.got) == 100 and all_acknowledged(a))
    for number in range(100, 110):
        a.links.send(b.local, numbered(number))
    await b.wire.close()  # before they leave
    again = Process(carrier, "b", 3)
    await eventually(lambda: Link.DOWN in a.events)
    assert a.links.lost.total() == 10
    assert a.events in ([Link.UP, Link.SUSPECT, Link.DOWN], [Link.UP, Link.DOWN])
    await a.tell(again.local, range(200, 300))
    await eventually(lambda: again.got == list(range(200, 300)))


async def test_session_dropped_by_living_peer_restarts_without_down(carrier, eventually) -> None:
    a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
    await a.tell(b.local, range(10))
    await eventually(lambda: len(b.got) == 10 and all_acknowledged(a))
    b.links._table.remove(b.links._table.each()[0], "route gone")  # after a long silence of this peer
    a.links.ask_life(b.local)
    await eventually(lambda: a.events == [Link.UP, Link.SUSPECT, Link.UP])
    await a.tell(b.local, range(10, 20))
    await eventually(lambda: b.got == list(range(20)))


async def test_dialled_peer_is_given_up_despite_own_pause(eventually) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PatientLoop)
    events: list[Link] = []
    link = DialledLink(
        Peer("tcp://127.0.0.1:9"), lambda _: True, lambda _, event: events.append(event), lambda: None,
        grace_s=0.2, connect_deadline_s=1.0,
    )  # fmt: skip
    loop.stand_still(20.0)
    await asyncio.sleep(0.1)
    assert not events, "its answer of the meantime is read first"
    link.up()
    link.lost()
    loop.stand_still(20.0)
    await asyncio.sleep(0.05)
    assert events == [Link.UP, Link.SUSPECT]
    await eventually(lambda: events == [Link.UP, Link.SUSPECT, Link.DOWN])


async def test_broken_connection_loses_and_doubles_nothing(eventually) -> None:
    done: Counter[str] = Counter()
    for seed in range(8):
        carrier = Flaky(seed)
        a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
        b.answers = True
        over = asyncio.Event()
        storm = asyncio.create_task(carrier.storm(["a", "b"], over))
        await a.tell(b.local, range(2000))
        for number in range(2000, 2500):
            a.links.send(b.local, numbered(number, Mode.ASK))
        await asyncio.sleep(0.2)
        over.set()
        await storm
        await eventually(lambda: len(b.got) == 2500 and len(a.got) == 500, within_s=60)  # noqa: B023
        assert (b.got, a.got) == (list(range(2500)), list(range(2000, 2500)))
        assert Link.DOWN not in a.events
        done += a.wire.done
        for process in (a, b):
            process.wire.calm = True
            await process.links.close()
    assert all(done[fate] > 3 for fate in ("kept", "lost", "twice", "late", "refused"))


async def test_interrupted_burst_arrives_once_and_in_order(carrier, eventually) -> None:
    a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
    b.answers = True
    peer = await carrier.cuttable("b")
    burst = asyncio.create_task(a.tell(peer, range(20_000)))
    for cut in (3_000, 9_000, 15_000):
        await eventually(lambda: len(b.got) >= cut, within_s=60)  # noqa: B023
        carrier.cut("b")
        for number in range(10):
            a.links.send(peer, numbered(100_000 + cut + number, Mode.ASK))
        await asyncio.sleep(0.05)
        carrier.mend("b")
    await burst
    await eventually(lambda: len(b.got) == 20_030 and len(a.got) == 30, within_s=60)
    assert [number for number in b.got if number < 20_000] == list(range(20_000))
    assert a.got == [number for number in b.got if number >= 20_000] == sorted(a.got)
    assert Link.SUSPECT in a.events
    assert Link.DOWN not in a.events
    if isinstance(carrier, Plain):  # the others swallow nothing, or much
        assert sum(state.resent for state in a.links.states()) >= 10


async def test_failing_delivery_does_not_stop_its_batch(carrier, eventually) -> None:
    a = Process(carrier, "a", 1)
    links, got = Links(carrier.open("b"), life=2, limits=LIMITS), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)

    def fragile(_: Route, envelope: Envelope) -> bool:
        number = msgpack.unpackb(envelope.body)
        if number % 3 == 0:
            raise BadField("a third") if number % 2 else RuntimeError("another third")
        got.append(number)
        return True

    links.listen(fragile, lambda peer, link: None)
    await a.tell(links.local, range(90))
    await eventually(lambda: got == [number for number in range(90) if number % 3])
    assert links.refused["bad-field"] == 15


async def test_another_major_version_is_rejected_on_both_sides(carrier, recorder, eventually, caplog) -> None:
    a, old = Process(carrier, "a", 1), recorder(carrier.open("old"))
    a.links.send(old.wire.local, numbered(1))
    await eventually(lambda: bool(old.frames))
    old.wire.send(old.routes[0], [msgpack.packb(["GL", 3, 0, 5, "version 2, this process speaks 3"])])
    if isinstance(carrier, Flaky):
        old.wire.calm = True
        old.wire.send(old.routes[0], [msgpack.packb(["GL", 3, 0, 5, "version 2, this process speaks 3"])])
    await eventually(lambda: a.events == [Link.REJECTED])
    assert a.links.lost == {"rejected": 1}
    assert "version 3, this process speaks 2" in caplog.text
    a.wire.calm = old.wire.calm = True  # type: ignore[attr-defined]
    old.wire.send(a.local, [msgpack.packb(["GL", 1, 7, "HELLO"])])
    await eventually(lambda: len(old.frames) > 1 and old.frames[-1][0].startswith(b"\x95"))
    refused = control_frame.decode(old.frames[-1][0], print)
    assert "version 1, this process speaks 2" in refused.text
    assert a.links.refused["unknown-version"] >= 2


async def test_peer_without_links_is_given_up_and_counted(carrier, recorder, eventually) -> None:
    a, rude = Process(carrier, "a", 1), recorder(carrier.open("rude"))
    a.links.send(rude.wire.local, numbered(1))
    for frames in ([b"junk"], [b"two", b"parts"], [control_frame.data(9, 5, 0, 9, [numbered(1)])]):
        rude.wire.send(a.local, frames)
    await eventually(lambda: a.events == [Link.DOWN])
    assert a.got == []
    if not isinstance(carrier, Flaky):
        assert a.links.refused["not-ours"] == a.links.refused["wrong-parts"] == 1
        assert control_frame.gone(9) in [frame for [frame] in rude.frames]


async def test_peer_exceeding_its_limit_loses_its_session(recorder, eventually) -> None:
    carrier = Loopback()
    b, rude = Process(carrier, "b", 2, LinkLimits(window=100)), recorder(carrier.open("rude"))
    b.full = True
    rude.wire.send(b.local, [control_frame.hello(77, 0, 1, 0, 64)])
    for first in range(1, 1001, 100):
        rude.wire.send(b.local, [control_frame.data(77, first, 0, 64, [numbered(0)] * 100)])
    await eventually(lambda: b.links.refused["over-limit"] == 1)
    assert len(b.got) <= 300
    assert b.links.states() == []
    await eventually(lambda: rude.frames[-1] == [control_frame.gone(77)])
    await carrier.close()


async def test_dialler_sessions_are_bounded_and_dropped_with_route(carrier, eventually, monkeypatch) -> None:
    monkeypatch.setattr("gleaner.transport.link_upkeep.CALM_S", 0.1)
    b = Process(carrier, "b", 9, LinkLimits(max_sessions=2, silence_s=0.2, probe_s=0.1, broken_s=0.2))
    diallers = [Process(carrier, f"a{n}", n + 1) for n in range(2)]
    for dialler in diallers:
        dialler.links.send(b.local, numbered(0))
    await eventually(lambda: len(b.got) == 2)
    third = Process(carrier, "third", 5)
    third.links.send(b.local, numbered(1))
    await eventually(lambda: b.links.refused["too-many-links"] >= 1)
    for dialler in diallers:
        await dialler.links.close()
    await eventually(lambda: len(b.got) == 3, within_s=60)
    await eventually(lambda: len(b.links.states()) == 1)


async def test_dead_dialler_with_a_pending_answer_is_forgotten(carrier, eventually) -> None:
    b = Process(carrier, "b", 9, LinkLimits(probe_s=0.1, answer_ack_s=0.1, broken_s=0.2))
    a = Process(carrier, "a", 1)
    a.links.send(b.local, numbered(1))
    await eventually(lambda: b.got == [1])
    assert b.links.send(b.routes[0], numbered(2)) is Sent.OK
    await asyncio.sleep(0)
    await a.wire.close()  # killed: it acknowledges nothing any more
    await eventually(lambda: b.links.states() == [], within_s=60)
    assert b.links.lost == {"route gone": 1}


async def test_forgotten_peer_loses_waiting_messages_and_is_redialled(carrier, eventually) -> None:
    a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
    a.links.send(b.local, numbered(1))
    await eventually(lambda: b.got == [1] and all_acknowledged(a))
    a.links.send(b.local, numbered(2))
    a.links.forget(b.local)
    a.links.send(b.local, numbered(3))
    await eventually(lambda: b.got == [1, 3])
    assert a.links.lost == {"forgotten": 1}
    assert a.events == [Link.UP, Link.UP]


async def test_ended_link_sends_nothing_and_dials_no_peer(eventually) -> None:
    """A pending acknowledgement must not leave on the next link, nor open one."""
    carrier = Loopback()
    limits = LinkLimits(answer_ack_s=0.2)
    a, b = Process(carrier, "a", 1, limits), Process(carrier, "b", 2, limits)
    b.answers = True
    a.links.send(b.local, numbered(0, Mode.ASK))
    await eventually(lambda: a.got == [0])  # the reply arrived: `a` has its acknowledgement pending
    received: list[bytes] = []
    deliver = b.wire.deliver
    b.wire.deliver = lambda route, parts: received.extend(parts) or deliver(route, parts)  # type: ignore[method-assign]
    a.links.forget(b.local)
    await asyncio.sleep(0.3)
    assert not received
    a.links.send(b.local, numbered(1, Mode.ASK))
    await eventually(lambda: a.got == [0, 1])
    assert not b.links.refused
    await carrier.close()


def frames_to(process: Process) -> list[object]:
    """The frames that arrive at it from now on."""
    frames: list[object] = []
    deliver = process.wire.deliver

    def record(route: Route, parts: list[bytes]) -> bool:
        frames.extend(control_frame.decode(part, print) for part in parts)
        return deliver(route, parts)

    process.wire.deliver = record  # type: ignore[method-assign]
    return frames


async def test_answers_and_asks_acknowledge_each_other(eventually) -> None:
    carrier = Loopback()
    limits = LinkLimits(ack_delay_s=0.05, answer_ack_s=0.3, probe_s=0.1)
    a, b = Process(carrier, "a", 1, limits), Process(carrier, "b", 2, limits)
    b.answers = True
    a.links.send(b.local, numbered(0, Mode.ASK))
    await eventually(lambda: a.got == [0])
    frames = [frames_to(a), frames_to(b)]
    for number in range(1, 11):
        a.links.send(b.local, numbered(number, Mode.ASK))
        await eventually(lambda: a.got[-1] == number)  # noqa: B023
        await asyncio.sleep(0.12)  # longer than the ack delay and the probe interval
    assert [type(frame) for frame in (*frames[0], *frames[1])] == [control_frame.Data] * 20
    await eventually(lambda: all_acknowledged(a) and all_acknowledged(b))
    assert [type(frame) for frame in frames[1][10:]] == [control_frame.Ack], "the last answer: by itself"
    await carrier.close()


async def test_gap_in_answers_is_reported_again_when_the_report_was_lost(eventually) -> None:
    carrier = Loopback()
    limits = LinkLimits(ack_delay_s=0.05, answer_ack_s=3600.0, probe_s=0.1)
    a, b = Process(carrier, "a", 1, limits), Process(carrier, "b", 2, limits)
    b.answers = True
    a.links.send(b.local, numbered(0, Mode.ASK))
    await eventually(lambda: a.got == [0])
    lost: list[object] = []

    def lose(process: Process, kind: type[control_frame.Data | control_frame.Ack]) -> None:
        deliver = process.wire.deliver

        def filtered(route: Route, parts: list[bytes]) -> bool:
            frame = control_frame.decode(parts[0], print)
            if any(isinstance(one, kind) for one in lost) or not isinstance(frame, kind):
                return deliver(route, parts)
            if isinstance(frame, control_frame.Ack) and not frame.again:
                return deliver(route, parts)
            lost.append(frame)
            return True

        process.wire.deliver = filtered  # type: ignore[method-assign]

    lose(a, control_frame.Data)  # the next answer
    lose(b, control_frame.Ack)  # and the first report that it is missing
    a.links.send(b.local, numbered(1, Mode.ASK))
    await eventually(lambda: len(lost) == 1)
    a.links.send(b.local, numbered(2, Mode.ASK))
    await eventually(lambda: len(lost) == 2)
    await asyncio.sleep(limits.probe_s)
    a.links.send(b.local, numbered(3, Mode.ASK))
    await eventually(lambda: a.got == [0, 1, 2, 3])
    await carrier.close()


async def test_unanswered_ask_is_acknowledged_on_a_query(
    eventually,
) -> None:
    carrier = Loopback()
    a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
    a.links.send(b.local, numbered(0, Mode.ASK))
    await eventually(lambda: b.got == [0])
    assert not all_acknowledged(a)
    await eventually(lambda: all_acknowledged(a))
    assert b.got == [0]
    await carrier.close()


async def test_many_received_bytes_are_acknowledged_at_once(eventually) -> None:
    carrier = Loopback()
    limits = LinkLimits(answer_ack_s=60.0, ack_bytes=1000, ack_delay_s=60.0, probe_s=60.0)
    a, b = Process(carrier, "a", 1, limits), Process(carrier, "b", 2, limits)
    a.links.send(b.local, numbered(0))
    await eventually(lambda: b.got == [0])
    assert not all_acknowledged(a), "a small amount waits for more"
    a.links.send(b.local, encode("Big", "receiver", msgpack.packb(bytes(2000))))
    await eventually(lambda: all_acknowledged(a))
    await carrier.close()


async def test_idle_process_is_probed_without_a_message(eventually) -> None:
    carrier = Loopback()
    a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
    assert not a.links.ask_life(b.local)
    assert a.links.heard_s(b.local) == -math.inf
    a.links.send(b.local, numbered(0))
    await eventually(lambda: b.got == [0] and all_acknowledged(a))
    received_s = a.links.heard_s(b.local)
    await asyncio.sleep(0.05)
    assert a.links.heard_s(b.local) == received_s
    assert a.links.ask_life(b.local)
    await eventually(lambda: a.links.heard_s(b.local) > received_s)
    assert b.links.heard_s(b.routes[0]) > received_s, "the question is a sign of life too"
    assert b.got == [0]
    await carrier.close()


async def test_idle_links_schedule_no_timers(eventually) -> None:
    carrier = Loopback()
    a = Process(carrier, "a", 1)
    loop = asyncio.get_running_loop()
    assert a.links.states() == []
    before = len(loop._scheduled)  # type: ignore[attr-defined]
    b = Process(carrier, "b", 2)
    a.links.send(b.local, numbered(1))
    await eventually(lambda: b.got == [1] and a.links.states()[0].unacked == 0)
    a.links.forget(b.local)
    await asyncio.sleep(0.3)
    near = [
        handle
        for handle in loop._scheduled  # type: ignore[attr-defined]
        if not handle.cancelled() and handle.when() < loop.time() + 1
    ]
    assert len(near) <= before
    await carrier.close()


async def test_closing_flushes_messages_and_refuses_later_sends(carrier, eventually) -> None:
    a, b = Process(carrier, "a", 1), Process(carrier, "b", 2)
    a.links.send(b.local, numbered(0))
    await eventually(lambda: b.got == [0])
    for number in range(1, 200):
        a.links.send(b.local, numbered(number))
    if isinstance(carrier, Flaky):
        a.wire.calm = b.wire.calm = True  # type: ignore[attr-defined]
    await a.links.close()
    await a.links.close()
    await eventually(lambda: b.got == list(range(200)))
    assert a.links.send(b.local, numbered(0)) is Sent.NO_ROUTE


def test_life_number_leaves_space_for_link_ends() -> None:
    async def scenario() -> None:
        wire = Loopback().open("a")
        for life in (0, 1 << 43):
            with pytest.raises(ValueError, match="life"):
                Links(wire, life=life)

    asyncio.run(scenario())
    with pytest.raises(ValueError, match="window"):
        LinkLimits(window=1)
