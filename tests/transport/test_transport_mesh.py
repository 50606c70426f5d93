"""The control mesh over real sockets: killed processes, strangers, garbage."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gleaner.transport import control_frame, mesh
from gleaner.transport.keys import NodeKeys, RefusedToListen
from gleaner.transport.mesh import ZmqWire
from gleaner.transport.sockets import CannotListen
from gleaner.transport.wire import MAX_FRAME_BYTES, Link, LinkTimes, Peer, Sent

ECHO = """
import asyncio
import contextlib
from gleaner.transport.mesh import ZmqWire

async def main():
    wire = ZmqWire("echo", 1)
    wire.listen(lambda route, frames: wire.send(route, frames), lambda peer, link: None)
    print(wire.local.endpoint, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
async def opened():
    wires: list[ZmqWire] = []

    def opener(name: str, **options: object) -> ZmqWire:
        wires.append(ZmqWire(name, 1, **options))
        return wires[-1]

    yield opener
    for wire in wires:
        await wire.close()


def raw_dealer(peer: Peer, **options: object) -> zmq.Socket:
    """A DEALER of a peer that does not use our code."""
    sock = zmq.Context.instance().socket(zmq.DEALER)
    sock.linger = 0
    for name, value in options.items():
        setattr(sock, name, value)
    sock.connect(peer.endpoint)
    return sock


def port_of(peer: Peer) -> tuple[str, int]:
    return "127.0.0.1", int(peer.endpoint.rsplit(":", 1)[1])


@pytest.mark.realprocess
async def test_killed_process_is_suspected_and_down_without_grace(opened, recorder, eventually) -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", ECHO, stdout=subprocess.PIPE)
    try:
        line = (await child.stdout.readline()).decode()
        a, peer = recorder(opened("a", times=LinkTimes(grace_s=600.0))), Peer(line.strip())
        a.wire.send(peer, [b"hello"])
        await eventually(lambda: a.frames == [[b"hello"]])
        child.kill()
        await eventually(lambda: Link.DOWN in a.states(peer), within_s=60.0)
        assert a.states(peer) == [Link.UP, Link.SUSPECT, Link.DOWN]
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


@pytest.mark.realprocess
async def test_stopped_process_is_suspected_by_its_silent_heartbeat(opened, recorder, eventually) -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", ECHO, stdout=subprocess.PIPE)
    try:
        line = (await child.stdout.readline()).decode()
        a, peer = recorder(opened("a")), Peer(line.strip())
        a.wire.send(peer, [b"hello"])
        await eventually(lambda: a.frames == [[b"hello"]])
        child.send_signal(signal.SIGSTOP)
        await eventually(lambda: Link.SUSPECT in a.states(peer), within_s=60.0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def test_untrusted_client_gets_nothing_and_server_continues(opened, recorder, eventually) -> None:
    friend_keys, stranger_keys = NodeKeys.generate(), NodeKeys.generate()
    own = NodeKeys.generate()
    server_keys = NodeKeys(own.public, own.secret, frozenset({friend_keys.public}))
    server = recorder(opened("server", keys=server_keys))
    peer = server.wire.local
    stranger = recorder(opened("stranger", keys=stranger_keys))
    plain = recorder(opened("plain"))
    stranger.wire.send(peer, [b"let me in"])
    plain.wire.send(Peer(peer.endpoint), [b"me too"])
    await eventually(lambda: stranger.states(peer) == [Link.REJECTED])
    await eventually(lambda: plain.states(Peer(peer.endpoint)) == [Link.REJECTED])
    assert server.wire.refused["unknown-key"] >= 1
    assert server.wire.refused["handshake"] >= 1
    assert stranger.wire.refused["rejected"] == plain.wire.refused["rejected"] == 1

    friend = recorder(opened("friend", keys=friend_keys))
    sibling = recorder(opened("sibling", keys=server_keys))
    friend.wire.send(peer, [b"it is me"])
    sibling.wire.send(peer, [b"from the same node"])
    await eventually(lambda: len(server.frames) == 2)
    assert sorted(server.frames) == [[b"from the same node"], [b"it is me"]]


async def test_refused_peer_gets_local_rejections_without_dialling(opened, recorder, eventually) -> None:
    server = recorder(opened("server", keys=NodeKeys.generate()))
    peer = server.wire.local
    stranger = recorder(opened("stranger", keys=NodeKeys.generate()))
    for rounds in range(1, 30):
        stranger.wire.send(peer, [b"let me in"])
        await eventually(lambda rounds=rounds: stranger.states(peer) == [Link.REJECTED] * rounds)
    dialled = stranger.wire.refused["rejected"]
    assert 1 <= dialled < 29, "the layers above get every refusal, the server does not"
    assert server.wire.refused["unknown-key"] == dialled


async def test_server_with_unannounced_key_gets_nothing(opened, recorder, eventually) -> None:
    keys, other = NodeKeys.generate(), NodeKeys.generate()
    trusting = NodeKeys(other.public, other.secret, frozenset({keys.public}))
    server = recorder(opened("server", keys=trusting))
    client = recorder(opened("client", keys=keys, times=LinkTimes(connect_deadline_s=0.5)))
    false = Peer(server.wire.local.endpoint, NodeKeys.generate().public)
    client.wire.send(false, [b"secret"])
    await eventually(lambda: client.states(false) == [Link.DOWN])
    assert server.frames == []


async def test_member_cannot_use_the_routing_id_of_another(opened, recorder, eventually) -> None:
    own, member, victim = NodeKeys.generate(), NodeKeys.generate(), NodeKeys.generate()
    server = recorder(
        opened("server", keys=NodeKeys(own.public, own.secret, frozenset({member.public, victim.public})))
    )
    curve = {
        "curve_serverkey": own.public.encode(),
        "curve_publickey": member.public.encode(),
        "curve_secretkey": member.secret.encode(),
    }
    with raw_dealer(
        server.wire.local, routing_id=f"gl1#victim#1#1#{victim.public}".encode(), **curve
    ) as false:
        false.send(b"I am the victim")
        await eventually(lambda: server.wire.refused["impostor"] == 1)
    with raw_dealer(
        server.wire.local, routing_id=f"gl1#member#1#1#{member.public}".encode(), **curve
    ) as true:
        true.send(b"I am myself")
        await eventually(lambda: server.frames == [[b"I am myself"]])


async def test_keys_and_plain_peers_do_not_dial_each_other(opened) -> None:
    keyed, plain = opened("keyed", keys=NodeKeys.generate()), opened("plain")
    assert keyed.send(plain.local, [b"open letter"]) is Sent.NO_ROUTE
    assert plain.send(keyed.local, [b"x"]) is Sent.NO_ROUTE
    assert keyed.refused == plain.refused == {"cannot-dial": 1}


async def test_undiallable_address_is_no_route(opened) -> None:
    wire = opened("a")
    assert wire.send(Peer("tcp://no port"), [b"x"]) is Sent.NO_ROUTE
    assert wire.refused == {"cannot-dial": 1}


async def test_listening_beyond_loopback_without_keys_is_refused(opened) -> None:
    with pytest.raises(RefusedToListen, match="keygen"):
        opened("a", bind="tcp://10.1.2.3:0")


@pytest.mark.parametrize("name", ["", "x" * 200])
async def test_name_unusable_as_routing_id_is_refused(opened, name) -> None:
    with pytest.raises(ValueError, match="node name"):
        opened(name)


async def test_port_in_use_is_named(opened) -> None:
    first = opened("a")
    with pytest.raises(CannotListen, match=rf"{first.local.endpoint}.*another process listens there"):
        opened("b", bind=first.local.endpoint)


async def test_random_bytes_on_the_socket_disturb_no_peer(opened, recorder, eventually) -> None:
    a, b = recorder(opened("a")), recorder(opened("b"))
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    shouts = [
        os.urandom(3000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        greeting + os.urandom(500),
        greeting.replace(b"NULL", b"ODD!"),
        greeting + b"\x06" + struct.pack(">Q", 1 << 62),
    ]
    raw = [socket.create_connection(port_of(b.wire.local)) for _ in shouts]
    for n, (connection, shout) in enumerate(zip(raw, shouts, strict=True)):
        connection.sendall(shout)
        a.wire.send(b.wire.local, [b"%d" % n])
    await eventually(lambda: b.frames == [[b"0"], [b"1"], [b"2"], [b"3"], [b"4"]])
    for connection in raw:
        connection.close()
    await eventually(lambda: b.wire.refused["handshake"] >= 2)


async def test_malformed_messages_are_counted_while_live_traffic_continues(
    opened, recorder, eventually
) -> None:
    a, b = recorder(opened("a")), recorder(opened("b"))
    with raw_dealer(b.wire.local, routing_id=b"gl1#rude") as rude, raw_dealer(b.wire.local) as nameless:
        rude.send(b"x" * (MAX_FRAME_BYTES + 1))
        await eventually(lambda: b.wire.refused["oversize"] == 1)
        rude.send_multipart([b"part"] * (mesh.MAX_PARTS + 1))
        nameless.send(b"who am I")
        await eventually(lambda: b.wire.refused["wrong-parts"] == b.wire.refused["no-identity"] == 1)
        rude.send(b"x" * (MAX_FRAME_BYTES + (1 << 20)))  # libzmq cuts this one
        a.wire.send(b.wire.local, [b"are you there?"])
        await eventually(lambda: b.frames == [[b"are you there?"]])


async def test_refusal_kind_is_logged_once_per_peer(opened, recorder, eventually, caplog) -> None:
    b = opened("b")
    b.listen(lambda route, frames: control_frame.decode(frames[0], print) and None, lambda peer, link: None)
    with (
        raw_dealer(b.local, routing_id=b"gl1#rude") as rude,
        raw_dealer(b.local, routing_id=b"gl1#other") as other,
    ):
        for _ in range(50):
            rude.send(b"junk")
            rude.send(b"\x93\xa2GL\x03\x00")
        other.send(b"junk")
        await eventually(lambda: b.refused.total() == 101)
    assert b.refused == {"not-ours": 51, "unknown-version": 50}
    assert len(caplog.records) == 3


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.binary(max_size=80), min_size=1, max_size=20), min_size=1, max_size=10))
def test_stranger_message_never_stops_the_receive_loop(messages: list[list[bytes]]) -> None:
    async def scenario() -> None:
        wire, last = ZmqWire("b", 1), asyncio.Event()

        def on_frames(_: bytes, frames: list[bytes]) -> None:
            if frames == [b"the last one"]:
                last.set()
            else:
                control_frame.decode(frames[0], print)

        wire.listen(on_frames, lambda peer, link: None)
        with raw_dealer(wire.local, routing_id=b"gl1#rude") as rude:
            for message in messages:
                rude.send_multipart(message)
            rude.send(b"the last one")
            await asyncio.wait_for(last.wait(), 60)
        assert wire.refused.total() == len(messages)
        await wire.close()

    asyncio.run(scenario())
