"""Bulk pulls: the right bytes in place or a typed error, and kept progress."""

import asyncio
import gc
import os
import random
import socket
import struct
from pathlib import Path

import pytest
import uvloop
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from patient_loop import PatientPolicy

from gleaner.transport import bulk, bulk_frames, bulk_pull, bulk_server
from gleaner.transport.bulk import BulkServer, BulkSource, Chunk, pull
from gleaner.transport.keys import NodeKeys, RefusedToListen
from gleaner.transport.refusal import NotAnEnvelope
from gleaner.transport.sockets import CannotListen

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy.")
CHUNK = 64 << 10


@pytest.fixture(params=[PatientPolicy(), uvloop.EventLoopPolicy()], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return request.param


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the limits unless a test sets them: both ends have threads, which a busy machine delays."""
    monkeypatch.setattr(bulk_pull, "STALL_S", 600.0)
    monkeypatch.setattr(bulk_server, "FIRST_REQUEST_S", 600.0)


@pytest.fixture
async def server():
    server = BulkServer()
    await server.start()
    yield server
    await server.close()


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """Seven full chunks and a short one."""
    return os.urandom(7 * CHUNK + 1234)


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(content)
    return path


def chunks_of(content: bytes) -> list[Chunk]:
    return [
        Chunk(at, len(content[at : at + CHUNK]), xxhash.xxh3_128(content[at : at + CHUNK]).digest())
        for at in range(0, len(content), CHUNK)
    ]


def source_of(server: BulkServer, version: int | None = None) -> BulkSource:
    return BulkSource(server.endpoint, server.issue_token(version))


def partly(content: bytes, chunks: int) -> bulk.PartialContent:
    """Content of which only the first chunks have arrived."""
    partial = bulk.PartialContent(memoryview(bytearray(content)))
    for chunk in chunks_of(content)[:chunks]:
        partial.landed(chunk.offset, chunk.length)
    return partial


def address_of(server: BulkServer) -> tuple[str, int]:
    return "127.0.0.1", int(server.endpoint.rsplit(":", 1)[1])


async def test_pull_writes_every_chunk_to_its_place(server, content, path, eventually) -> None:
    server.publish(3, path)
    into, landed = bytearray(len(content)), []
    result = await pull(
        source_of(server), 3, chunks_of(content), memoryview(into), deadline_s=60, on_chunk=landed.append
    )
    assert into == content
    assert landed == chunks_of(content)
    assert (result.received_bytes, result.retried_chunks) == (len(content), 0)
    await eventually(lambda: server.served_bytes == len(content))


async def test_only_the_requested_ranges_are_written(server, content, path) -> None:
    server.publish(3, path)
    into = bytearray(len(content))
    wanted = chunks_of(content)[2:4]
    await pull(source_of(server), 3, wanted, memoryview(into), deadline_s=60)
    assert into[2 * CHUNK : 4 * CHUNK] == content[2 * CHUNK : 4 * CHUNK]
    assert not any(into[: 2 * CHUNK])
    assert not any(into[4 * CHUNK :])


async def test_revoked_key_loses_its_connections_while_trusted_resume(content, path) -> None:
    own, friend, spot = NodeKeys.generate(), NodeKeys.generate(), NodeKeys.generate()
    keys = NodeKeys(own.public, own.secret, frozenset({friend.public, spot.public}))
    server = BulkServer(keys=keys)
    await server.start()
    try:
        server.publish(3, partly(content, 2))
        source, into, landed = source_of(server), bytearray(len(content)), []

        def on_chunk(chunk: Chunk) -> None:
            landed.append(chunk)
            if len(landed) == 2:
                keys.allowed.replace(frozenset({own.public, friend.public}))

        with pytest.raises(bulk.SourceGone) as cut:
            await pull(
                source, 3, chunks_of(content), memoryview(into), window=1, deadline_s=60, on_chunk=on_chunk
            )
        assert cut.value.done == tuple(chunks_of(content)[:2])
        server.publish(3, path)
        with pytest.raises(bulk.Unauthorized):
            await pull(source, 3, chunks_of(content), memoryview(into), deadline_s=60)

        left = [chunk for chunk in chunks_of(content) if chunk not in cut.value.done]
        await pull(source_of(server), 3, left, memoryview(into), deadline_s=60)
        assert into == content
        after = source_of(server)
        keys.allowed.replace(
            frozenset({own.public, friend.public, spot.public})
        )  # trusting a key cuts no connection
        await pull(after, 3, chunks_of(content), memoryview(into), deadline_s=60)
    finally:
        await server.close()


async def test_puller_hangs_up_when_it_revokes_a_key(server, content, path) -> None:
    own, source_key = NodeKeys.generate(), NodeKeys.generate()
    keys = NodeKeys(own.public, own.secret, frozenset({source_key.public}))
    server.publish(3, path)
    into = bytearray(len(content))
    with pytest.raises(bulk.SourceGone, match="hung up") as cut:
        await pull(
            source_of(server),
            3,
            chunks_of(content),
            memoryview(into),
            window=1,
            deadline_s=60,
            on_chunk=lambda chunk: keys.allowed.replace(frozenset({own.public})),
            keys=keys,
        )
    assert cut.value.done == tuple(chunks_of(content)[:1])
    await pull(source_of(server), 3, chunks_of(content)[1:], memoryview(into), deadline_s=60, keys=keys)
    assert into == content


async def test_concurrent_pullers_get_the_same_content(server, content, path) -> None:
    server.publish(3, path)
    into = [bytearray(len(content)) for _ in range(8)]
    await asyncio.gather(
        *(pull(source_of(server), 3, chunks_of(content), memoryview(to), deadline_s=60) for to in into)
    )
    assert all(to == content for to in into)


async def test_another_version_is_gone(server, content, path) -> None:
    server.publish(3, path)
    into = memoryview(bytearray(len(content)))
    with pytest.raises(bulk.SourceGone, match="version 4.*not served"):
        await pull(source_of(server), 4, chunks_of(content), into, deadline_s=60)
    server.retire(3)
    with pytest.raises(bulk.SourceGone):
        await pull(source_of(server), 3, chunks_of(content), into, deadline_s=60)


async def test_version_is_served_anew_under_its_number(server, content, path, tmp_path) -> None:
    server.publish(3, path)
    other = tmp_path / "other"
    other.write_bytes(content[::-1])
    server.publish(3, other)
    into = bytearray(len(content))
    await pull(source_of(server), 3, chunks_of(content[::-1]), memoryview(into), deadline_s=60)
    assert into == content[::-1]


@pytest.mark.parametrize("which", ["forged", "stranger", "other version", "revoked"])
async def test_pull_without_the_right_token_gets_nothing(server, content, path, which) -> None:
    server.publish(3, path)
    good = server.issue_token(4 if which == "other version" else 3)
    if which == "revoked":
        server.revoke_token(good)
    token = {"forged": good[:16] + bytes(32), "stranger": os.urandom(48)}.get(which, good)
    into = bytearray(len(content))
    with pytest.raises(bulk.Unauthorized):
        await pull(BulkSource(server.endpoint, token), 3, chunks_of(content), memoryview(into), deadline_s=60)
    assert not any(into)
    assert server.refused["unauthorized"] >= 1


async def test_signature_covers_the_range_and_the_version(server, content, path) -> None:
    request = bulk_frames.Request(b"i" * 16, 3, 0, 10, 1)
    frame = bulk_frames.encode_request(request, b"s" * 32)
    assert bulk_frames.is_signed(frame, b"s" * 32)
    for at in range(len(frame)):
        changed = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        assert not bulk_frames.is_signed(changed, b"s" * 32)


async def test_range_outside_the_file_is_refused(server, content, path) -> None:
    server.publish(3, path)
    beyond = Chunk(len(content) - 10, 20, bytes(16))
    with pytest.raises(bulk.BadRange):
        await pull(source_of(server), 3, [beyond], memoryview(bytearray(2 * len(content))), deadline_s=60)


async def test_ranges_beyond_the_memory_are_a_caller_error(server, content) -> None:
    for chunk, into in (
        (Chunk(0, 20, b""), bytearray(10)),
        (Chunk(-1, 5, b""), bytearray(10)),
        (Chunk(0, 0, b""), bytearray(10)),
        (Chunk(0, 5, b""), bytes(10)),
    ):
        with pytest.raises(ValueError, match=r"fit|read-only"):
            await pull(source_of(server), 3, [chunk], memoryview(into), deadline_s=1)
    with pytest.raises(ValueError, match="token"):
        await pull(BulkSource(server.endpoint, b"short"), 3, [], memoryview(bytearray(1)), deadline_s=1)


async def test_chunk_with_wrong_hash_is_retried_twice_then_named(server, content, path, eventually) -> None:
    server.publish(3, path)
    chunks = chunks_of(content)
    bad = Chunk(chunks[2].offset, chunks[2].length, bytes(16))
    with pytest.raises(bulk.BadHash, match="3 times") as caught:
        await pull(
            source_of(server),
            3,
            [*chunks[:2], bad, *chunks[3:]],
            memoryview(bytearray(len(content))),
            deadline_s=60,
        )
    assert caught.value.chunk == bad
    assert set(caught.value.done) == set(chunks) - {chunks[2]}
    await eventually(lambda: server.served_bytes == len(content) + 2 * chunks[2].length)


async def test_chunk_that_arrives_right_at_last_is_done(server, content, path, monkeypatch) -> None:
    monkeypatch.setattr("gleaner.transport.bulk_exchange.RETRIES", 1 << 30)  # until it was repaired
    chunks, into = chunks_of(content), bytearray(len(content))
    damaged = bytearray(content)
    damaged[5 * CHUNK] ^= 1
    path.write_bytes(damaged)
    server.publish(3, path)

    def repair(chunk: Chunk) -> None:
        if chunk == chunks[-1]:  # the last one of the first round
            with path.open("r+b") as file:
                file.write(content)

    result = await pull(source_of(server), 3, chunks, memoryview(into), deadline_s=60, on_chunk=repair)
    assert into == content
    assert result.retried_chunks >= 1


async def test_pull_resumes_at_another_source_with_missing_chunks(server, content, path) -> None:
    second = BulkServer()
    await second.start()
    partial = partly(content, 3)
    server.publish(3, partial)
    second.publish(3, path)
    chunks, into, landed = chunks_of(content), bytearray(len(content)), []

    def stop(chunk: Chunk) -> None:
        landed.append(chunk)
        if len(landed) == 3:
            server.retire(3)
            partial.end()

    with pytest.raises(bulk.SourceGone) as caught:
        await pull(source_of(server), 3, chunks, memoryview(into), deadline_s=60, on_chunk=stop)
    assert caught.value.done == tuple(chunks[:3])
    result = await pull(source_of(second), 3, chunks[3:], memoryview(into), deadline_s=60)
    assert into == content
    assert result.received_bytes == sum(chunk.length for chunk in chunks[3:])
    await second.close()


async def test_server_death_and_closed_port_are_source_gone(server, content) -> None:
    server.publish(3, partly(content, 3))
    closing: list[asyncio.Task[None]] = []
    source = source_of(server)

    def die(chunk: Chunk) -> None:
        if not closing:
            closing.append(asyncio.ensure_future(server.close()))

    into = memoryview(bytearray(len(content)))
    with pytest.raises(bulk.SourceGone) as caught:
        await pull(source, 3, chunks_of(content), into, window=1, deadline_s=60, on_chunk=die)
    assert caught.value.done
    with pytest.raises(bulk.SourceGone):
        await pull(source, 3, chunks_of(content), into, deadline_s=60)


async def test_silent_or_late_source_is_given_up(monkeypatch, content) -> None:
    monkeypatch.setattr(bulk_pull, "STALL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = BulkSource(f"tcp://127.0.0.1:{silent.getsockname()[1]}", bytes(48))
        into = memoryview(bytearray(len(content)))
        with pytest.raises(bulk.PullTimeout, match="nothing arrived"):
            await pull(source, 3, chunks_of(content), into, deadline_s=60)
        monkeypatch.setattr(bulk_pull, "STALL_S", 60.0)
        with pytest.raises(bulk.PullTimeout, match=r"no chunk within 0\.1 s"):
            await pull(source, 3, chunks_of(content), into, deadline_s=0.1)


@pytest.mark.parametrize(
    "answer",
    [
        random.Random(24).randbytes(24),
        bulk_frames.encode_answer(bulk_frames.Status.OK, 3, 99, CHUNK),
        bulk_frames.encode_answer(bulk_frames.Status.OK, 4, 1, CHUNK),
        bulk_frames.encode_answer(bulk_frames.Status.OK, 3, 1, CHUNK + 1),
    ],
)
async def test_mismatched_answer_is_never_written(content, answer) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(bulk_frames.REQUEST_BYTES)
        writer.write(answer + b"\xee" * (CHUNK + 1))
        writer.close()

    false = await asyncio.start_server(serve, "127.0.0.1", 0)
    source = BulkSource(f"tcp://127.0.0.1:{false.sockets[0].getsockname()[1]}", bytes(48))
    into = bytearray(len(content))
    with pytest.raises(bulk.SourceGone):
        await pull(source, 3, chunks_of(content)[:1], memoryview(into), deadline_s=60)
    assert not any(into)
    false.close()


async def test_garbage_on_the_port_is_counted_and_pulls_continue(server, content, path, eventually) -> None:
    server.publish(3, path)
    signed = bulk_frames.encode_request(bulk_frames.Request(b"i" * 16, 3, 0, 10, 1), b"s" * 32)
    for junk in (
        os.urandom(500),
        b"GET / HTTP/1.1\r\n\r\n",
        signed[:-1],
        signed,
        struct.pack("<4sB", b"GLB1", 1) * 99,
    ):
        with socket.create_connection(address_of(server)) as raw:
            raw.sendall(junk)
            await asyncio.sleep(0.02)
    into = bytearray(len(content))
    await pull(source_of(server), 3, chunks_of(content), memoryview(into), deadline_s=60)
    assert into == content
    await eventually(lambda: server.refused.total() == 5)
    assert server.refused == {"not-ours": 1, "truncated": 2, "unauthorized": 2}


@given(st.binary(min_size=80, max_size=80))
def test_random_requests_are_read_or_refused(frame: bytes) -> None:
    with pytest.raises(NotAnEnvelope):
        bulk_frames.decode_request(frame)
    bulk_frames.decode_request(b"GLB1\x01" + frame[5:])
    assert not bulk_frames.is_signed(frame, b"s" * 32)


@given(st.binary(min_size=24, max_size=24))
def test_random_answers_are_refused(frame: bytes) -> None:
    with pytest.raises(NotAnEnvelope):
        bulk_frames.decode_answer(frame)


async def test_listening_beyond_loopback_needs_keys_and_free_port(server) -> None:
    with pytest.raises(RefusedToListen):
        BulkServer("10.1.2.3")
    with pytest.raises(RefusedToListen, match="--bulk clear"):
        BulkServer("10.1.2.3", keys=NodeKeys.generate())
    BulkServer("10.1.2.3", keys=NodeKeys.generate(), bulk="clear")
    with pytest.raises(CannotListen):
        await BulkServer("127.0.0.1", address_of(server)[1]).start()


def test_source_does_not_show_its_token() -> None:
    assert "secret" not in repr(BulkSource("tcp://127.0.0.1:1", b"secret" * 8))


async def test_relay_serves_present_and_arriving_chunks(server, content) -> None:
    chunks, view = chunks_of(content), memoryview(bytearray(len(content)))
    partial = bulk.PartialContent(view)
    server.publish(3, partial)

    def comes(chunk: Chunk) -> None:
        view[chunk.offset : chunk.offset + chunk.length] = content[chunk.offset : chunk.offset + chunk.length]
        partial.landed(chunk.offset, chunk.length)

    comes(chunks[0])
    into, landed = bytearray(len(content)), []

    def on_chunk(chunk: Chunk) -> None:
        landed.append(chunk)
        if len(landed) < len(chunks):
            comes(chunks[len(landed)])

    await pull(source_of(server), 3, chunks, memoryview(into), deadline_s=60, on_chunk=on_chunk)
    assert into == content
    assert landed == chunks, "no chunk before it was there"
    assert not server.refused


async def test_stalled_relay_is_a_lagging_source(server, content, monkeypatch) -> None:
    monkeypatch.setattr("gleaner.transport.bulk_partial.ARRIVE_S", 0.02)
    monkeypatch.setattr(bulk_pull, "LAG_S", 0.1)
    chunks, view = chunks_of(content), memoryview(bytearray(content))
    partial = bulk.PartialContent(view)
    server.publish(3, partial)
    partial.landed(chunks[0].offset, chunks[0].length)
    with pytest.raises(bulk.SourceLags) as lag:
        await pull(source_of(server), 3, chunks, memoryview(bytearray(len(content))), deadline_s=60)
    assert lag.value.done == (chunks[0],)


async def test_relay_serves_nothing_that_was_given_up(server, content, monkeypatch) -> None:
    monkeypatch.setattr("gleaner.transport.bulk_partial.ARRIVE_S", 0.02)
    monkeypatch.setattr(bulk_pull, "LAG_S", 0.05)
    chunks = chunks_of(content)
    partial = bulk.PartialContent(memoryview(bytearray(content)))
    server.publish(3, partial)
    partial.landed(chunks[0].offset, chunks[0].length)
    partial.end()
    with pytest.raises(bulk.SourceLags) as lag:
        await pull(source_of(server), 3, chunks[:1], memoryview(bytearray(len(content))), deadline_s=60)
    assert lag.value.done == ()


async def test_several_connections_share_the_wanted_chunks(server, content, path, monkeypatch) -> None:
    monkeypatch.setattr(bulk_pull, "SOCKET_BYTES", CHUNK)
    server.publish(3, path)
    accepted, into, landed = set(), bytearray(len(content)), []
    whole = server._talk

    def talk(connection, address):
        accepted.add(connection)
        return whole(connection, address)

    server._talk = talk
    await pull(
        source_of(server),
        3,
        chunks_of(content),
        memoryview(into),
        sockets=3,
        deadline_s=60,
        on_chunk=landed.append,
    )
    assert into == content
    assert sorted(landed, key=lambda chunk: chunk.offset) == chunks_of(content)
    assert len(accepted) == 3


async def test_broken_connection_leaves_its_chunks_to_others(content, monkeypatch) -> None:
    monkeypatch.setattr(bulk_pull, "SOCKET_BYTES", CHUNK)
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        good = connections != 2
        while good and (frame := await reader.read(bulk_frames.REQUEST_BYTES)):
            asked = bulk_frames.decode_request(frame)
            writer.write(bulk_frames.encode_answer(bulk_frames.Status.OK, 3, asked.tag, asked.length))
            writer.write(content[asked.offset : asked.offset + asked.length])
        writer.close()

    flaky = await asyncio.start_server(serve, "127.0.0.1", 0)
    source = BulkSource(f"tcp://127.0.0.1:{flaky.sockets[0].getsockname()[1]}", bytes(48))
    into = bytearray(len(content))
    result = await pull(source, 3, chunks_of(content), memoryview(into), window=2, sockets=2, deadline_s=60)
    assert into == content
    assert result.received_bytes == len(content)
    assert connections >= 2
    flaky.close()


async def test_bad_chunk_ends_a_pull_once_over_all_connections(server, content, path, monkeypatch) -> None:
    monkeypatch.setattr(bulk_pull, "SOCKET_BYTES", CHUNK)
    server.publish(3, path)
    chunks = chunks_of(content)
    bad = Chunk(chunks[2].offset, chunks[2].length, bytes(16))
    wanted = [*chunks[:2], bad, *chunks[3:]]
    with pytest.raises(bulk.BadHash) as caught:
        await pull(
            source_of(server), 3, wanted, memoryview(bytearray(len(content))), sockets=4, deadline_s=60
        )
    assert caught.value.chunk == bad
    assert bad not in caught.value.done
    assert set(caught.value.done) <= set(chunks)


async def test_pull_requests_no_more_than_its_limit(server, content, path, monkeypatch) -> None:
    monkeypatch.setattr(bulk_pull, "SOCKET_BYTES", CHUNK)
    server.publish(3, path)
    into, rate = bytearray(len(content)), 8 * len(content)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await pull(
        source_of(server),
        3,
        chunks_of(content),
        memoryview(into),
        sockets=2,
        limit_bytes_s=rate,
        deadline_s=60,
    )
    assert into == content
    assert loop.time() - began_s >= 7 * CHUNK / rate, "the last chunk waits for those before it"


async def test_low_rate_limit_does_not_time_out_the_source(server, content, path, monkeypatch) -> None:
    monkeypatch.setattr(bulk_pull, "SOCKET_BYTES", CHUNK)
    monkeypatch.setattr(bulk_server, "FIRST_REQUEST_S", 1.5)  # each connection has a turn in a second
    server.publish(3, path)
    into, chunks = memoryview(bytearray(len(content))), chunks_of(content)[:4]
    await pull(source_of(server), 3, chunks, into, sockets=4, limit_bytes_s=2 * CHUNK, deadline_s=60)
    assert into[: 4 * CHUNK] == content[: 4 * CHUNK]
    assert not server.refused, "it asked at once, and then for one after the other"


async def test_exception_of_the_caller_ends_the_pull(server, content, path, monkeypatch) -> None:
    monkeypatch.setattr(bulk_pull, "SOCKET_BYTES", CHUNK)
    server.publish(3, path)

    def fail(chunk: Chunk) -> None:
        raise LookupError(chunk.offset)

    with pytest.raises(LookupError):
        await pull(
            source_of(server),
            3,
            chunks_of(content),
            memoryview(bytearray(len(content))),
            sockets=2,
            deadline_s=60,
            on_chunk=fail,
        )


async def test_cancelled_pull_writes_nothing_more(content) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()
    into, chunk = bytearray(len(content)), chunks_of(content)[0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(bulk_frames.REQUEST_BYTES)
        writer.write(bulk_frames.encode_answer(bulk_frames.Status.OK, 3, 1, CHUNK) + content[: CHUNK // 2])
        asked.set()
        await go_on.wait()
        writer.write(content[CHUNK // 2 : CHUNK])
        writer.close()

    slow = await asyncio.start_server(serve, "127.0.0.1", 0)
    source = BulkSource(f"tcp://127.0.0.1:{slow.sockets[0].getsockname()[1]}", bytes(48))
    pulling = asyncio.ensure_future(pull(source, 3, [chunk], memoryview(into), deadline_s=60))
    await asked.wait()
    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pulling
    before = bytes(into)
    go_on.set()
    await asyncio.sleep(0.05)
    assert into == before
    slow.close()


async def test_puller_that_reads_nothing_is_given_up(server, monkeypatch, eventually) -> None:
    monkeypatch.setattr("gleaner.transport.bulk_server.STALL_S", 0.1)
    server.publish(
        3, memoryview(bytes(16 << 20))
    )  # more than the kernel buffers for a peer that does not read
    token = server.issue_token(3)
    request = bulk_frames.Request(token[:16], 3, 0, 16 << 20, 1)
    with socket.create_connection(address_of(server)) as raw:
        raw.sendall(bulk_frames.encode_request(request, token[16:]))
        await eventually(lambda: server.refused["silent"] == 1)
    assert server.served_bytes == 0


async def test_signed_request_beyond_the_content_gets_nothing(server, content, path) -> None:
    server.publish(3, path)
    token, loop = server.issue_token(3), asyncio.get_running_loop()
    with socket.create_connection(address_of(server)) as raw:
        raw.setblocking(False)
        for offset, length in ((0, (1 << 32) - 1), ((1 << 64) - 1, 1), (0, 0)):
            request = bulk_frames.Request(token[:16], 3, offset, length, 7)
            await loop.sock_sendall(raw, bulk_frames.encode_request(request, token[16:]))
            answer = await loop.sock_recv(raw, 100)
            assert answer == bulk_frames.encode_answer(bulk_frames.Status.BAD_RANGE, 3, 7, 0)


async def test_slow_request_bytes_are_given_up(server, monkeypatch, eventually) -> None:
    monkeypatch.setattr("gleaner.transport.bulk_server.FIRST_REQUEST_S", 0.1)
    token = server.issue_token(3)
    request = bulk_frames.Request(token[:16], 3, 0, 10, 1)
    with socket.create_connection(address_of(server)) as raw:
        for byte in bulk_frames.encode_request(request, token[16:])[:-1]:
            if server.refused:
                break
            raw.sendall(bytes([byte]))
            await asyncio.sleep(0.02)
        await eventually(lambda: server.refused == {"silent": 1})


async def test_aborted_pull_leaves_no_version_memory_at_source(server, eventually) -> None:
    content = bytearray(bulk.MAX_CHUNK_BYTES)  # more than a socket takes at once
    server.publish(3, memoryview(content))
    token = server.issue_token(3)
    request = bulk_frames.Request(token[:16], 3, 0, len(content), 1)
    gc.disable()
    try:
        with socket.create_connection(address_of(server)) as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, unread
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(raw, bulk_frames.encode_request(request, token[16:]))
            assert await loop.sock_recv(raw, 1 << 20)
        await eventually(lambda: len(server._tasks) == 1)  # it accepts
        server.retire(3)
        content.clear()  # BufferError where a view of it still exists
    finally:
        gc.enable()
