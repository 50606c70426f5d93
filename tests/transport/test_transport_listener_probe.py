"""ListenerProbe: the host itself reports a port without a listener.

The probe leaves no trace at a listener.
"""

import asyncio
import contextlib
import socket

import pytest

from gleaner.transport.listener_probe import ListenerProbe


def probed(endpoint: str) -> tuple[ListenerProbe, list[str]]:
    said: list[str] = []
    return ListenerProbe(endpoint, lambda: said.append("refused")), said


async def test_refused_port_is_reported_every_time(eventually) -> None:
    for _ in range(50):
        with socket.create_server(("127.0.0.1", 0)) as server:
            endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        probe, said = probed(endpoint)
        probe.start()
        await eventually(lambda: said == ["refused"])  # noqa: B023
        await asyncio.sleep(0)
        assert said == ["refused"]


async def test_listener_is_probed_until_gone_without_any_byte(eventually) -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    probe, said = probed(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    probe.start()
    probe.start()
    await eventually(lambda: len(heard) >= 3)
    assert said == []
    assert set(heard) == {b""}
    server.close()
    await eventually(lambda: said == ["refused"])


async def test_stopped_probe_asks_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe, said = probed(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        probe.start()
        probe.stop()
        probe.stop()
    await asyncio.sleep(0.05)
    assert said == []


@pytest.mark.parametrize(
    "endpoint", ["tcp://a.host:7700", "ipc:///tmp/x", "loop://b", "tcp://127.0.0.1:http"]
)
async def test_other_addresses_are_left_to_the_grace(endpoint: str) -> None:
    probe, said = probed(endpoint)
    probe.start()
    await asyncio.sleep(0.01)
    assert said == []


async def test_silence_is_no_refusal() -> None:
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(5):  # fills its queue, so that the kernel answers nothing any longer
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        probe, said = probed(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        probe.start()
        await asyncio.sleep(0.1)
        probe.stop()
        assert said == []
