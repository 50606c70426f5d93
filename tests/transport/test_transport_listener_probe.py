"""ListenerProbe: the host itself reports a port without a listener.

The probe leaves no trace at a listener.
"""

import asyncio
import contextlib
import socket

import pytest

from gleaner.transport.listener_probe import ListenerProbe


def probed(endpoint: str) -> tuple[ListenerProbe, list[str]]:
    reports: list[str] = []
    return ListenerProbe(endpoint, lambda: reports.append("refused")), reports


async def test_refused_port_is_reported_every_time(eventually) -> None:
    for _ in range(50):
        with socket.create_server(("127.0.0.1", 0)) as server:
            endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        probe, reports = probed(endpoint)
        probe.start()
        await eventually(lambda: reports == ["refused"])  # noqa: B023
        await asyncio.sleep(0)
        assert reports == ["refused"]


async def test_listener_is_probed_until_gone_without_any_byte(eventually) -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    probe, reports = probed(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    probe.start()
    probe.start()
    await eventually(lambda: len(received) >= 3)
    assert reports == []
    assert set(received) == {b""}
    server.close()
    await eventually(lambda: reports == ["refused"])


async def test_stopped_probe_asks_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe, reports = probed(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        probe.start()
        probe.stop()
        probe.stop()
    await asyncio.sleep(0.05)
    assert reports == []


@pytest.mark.parametrize(
    "endpoint", ["tcp://a.host:7700", "ipc:///tmp/x", "loop://b", "tcp://127.0.0.1:http"]
)
async def test_other_addresses_are_left_to_the_grace(endpoint: str) -> None:
    probe, reports = probed(endpoint)
    probe.start()
    await asyncio.sleep(0.01)
    assert reports == []


async def test_silence_is_no_refusal() -> None:
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(5):  # fills its queue, so that the kernel answers nothing any longer
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        probe, reports = probed(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        probe.start()
        await asyncio.sleep(0.1)
        probe.stop()
        assert reports == []
