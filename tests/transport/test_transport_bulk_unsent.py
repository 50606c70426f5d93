"""Unsent bytes that a source leaves in the kernel, by number of connections."""

import asyncio
import socket

import pytest

from gleaner.transport.bulk_socket import AS_THE_KERNEL_LIKES, UNSENT_BYTES, TcpConnection, TcpListener


def unsent(connection: TcpConnection) -> int:
    return connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)


async def accepted(listener: TcpListener) -> tuple[TcpConnection, TcpConnection]:
    """Both ends of a new connection; the source's first."""
    theirs = asyncio.ensure_future(TcpConnection.connect(listener.endpoint))
    ours, _ = await listener.accept()
    return ours, await theirs


@pytest.fixture
async def listener():
    listening = TcpListener("127.0.0.1", 0)
    listening.open()
    yield listening
    listening.close()


async def test_several_connections_keep_little_unsent_unlike_a_single(listener) -> None:
    first, at_first = await accepted(listener)
    assert unsent(first) == AS_THE_KERNEL_LIKES

    second, at_second = await accepted(listener)
    assert (unsent(first), unsent(second)) == (UNSENT_BYTES, UNSENT_BYTES)

    first.close()
    first.close()  # does nothing
    assert unsent(second) == AS_THE_KERNEL_LIKES

    third, at_third = await accepted(listener)
    assert (unsent(second), unsent(third)) == (UNSENT_BYTES, UNSENT_BYTES)
    for end in (second, third, at_first, at_second, at_third):
        end.close()


async def test_gone_puller_does_not_fail_the_others(listener) -> None:
    first, at_first = await accepted(listener)
    at_first.close()
    second, at_second = await accepted(listener)
    assert unsent(second) == UNSENT_BYTES
    for end in (first, second, at_second):
        end.close()
