"""Conformance of the simulated network to production's carriers.

The same tests run on virtual time.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gleaner.sim.loop import SimLoop
from gleaner.sim.network import SimNet
from gleaner.sim.process_loop import ProcessLoop
from gleaner.transport import bulk_pull, bulk_server, stream_receiver, stream_sender
from gleaner.transport.bulk import BulkServer
from gleaner.transport.token_stream import StreamSender
from tests.sim.simulated_network import HERE, Promise, Simulated, SimulatedKeyed, cases, mapped, run
from tests.transport import (
    test_transport_bulk,
    test_transport_links,
    test_transport_token_stream,
    test_transport_wire,
)


def params(module: object, needs: str, leave_out: str = "") -> list[object]:
    """The tests of a suite that have a parameter named `needs`."""
    return [
        pytest.param(test, values, id=name)
        for name, test, values in cases(module, leave_out)
        if needs in test.__code__.co_varnames[: test.__code__.co_argcount]
    ]


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop()
    yield loop
    loop.close()


@pytest.fixture
def sockets(loop: SimLoop, monkeypatch: pytest.MonkeyPatch) -> SimNet:
    """The network on which each data socket without an explicit carrier opens."""
    net = SimNet(loop, random.Random(1), loop.trace)
    net.add_host(HERE)

    def carrier() -> object:
        assert loop.current is not None
        return net.carrier(loop.current, HERE, files=mapped)

    for module in (bulk_pull, bulk_server, stream_receiver, stream_sender):
        monkeypatch.setattr(module, "ZmqCarrier", carrier)
    return net


@pytest.mark.parametrize(("test", "values"), params(test_transport_wire, "carrier"))
@pytest.mark.parametrize("kind", [Simulated, SimulatedKeyed])
def test_wires(
    kind: type[Simulated],
    test: Promise,
    values: dict[str, object],
    loop: SimLoop,
    request: pytest.FixtureRequest,
) -> None:
    run(test, loop, {"carrier": kind(loop), **values}, request)
    assert loop.findings == []


@pytest.mark.parametrize(("test", "values"), params(test_transport_links, "carrier"))
def test_links(
    test: Promise,
    values: dict[str, object],
    loop: SimLoop,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = "failing_delivery" in test.__name__
    if failing:
        monkeypatch.setattr(ProcessLoop, "set_exception_handler", lambda self, handler: None)
    run(test, loop, {"carrier": Simulated(loop), **values}, request)
    assert bool(loop.findings) == failing


@pytest.mark.parametrize(
    ("test", "values"),
    params(test_transport_token_stream, "closing", "zmq. subprocess set_exception_handler"),
)
def test_token_streams(
    test: Promise,
    values: dict[str, object],
    loop: SimLoop,
    sockets: SimNet,
    request: pytest.FixtureRequest,
) -> None:
    opened: list[StreamSender | test_transport_token_stream.Manager] = []

    async def scenario(**given: object) -> None:
        try:
            await test(closing=lambda thing: opened.append(thing) or thing, **given)
        finally:
            for thing in opened:
                await (thing if isinstance(thing, StreamSender) else thing.receiver).close()

    scenario.__signature__ = _without(test, "closing")  # type: ignore[attr-defined]
    run(scenario, loop, values, request)
    assert loop.findings == []


@pytest.mark.parametrize(
    ("test", "values"), params(test_transport_bulk, "content", "socket. start_server NodeKeys")
)
def test_bulk(
    test: Promise,
    values: dict[str, object],
    loop: SimLoop,
    sockets: SimNet,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    content = random.Random(7).randbytes(7 * test_transport_bulk.CHUNK + 1234)
    path = tmp_path / "weights"
    path.write_bytes(content)

    async def scenario(**given: object) -> None:
        server = BulkServer()
        await server.start()
        offered = {"server": server, "content": content, "path": path}
        wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
        try:
            await test(**{name: offered[name] for name in wanted if name in offered}, **given)
        finally:
            await server.close()

    scenario.__signature__ = _without(test, "server", "content", "path")  # type: ignore[attr-defined]
    run(scenario, loop, values, request)
    assert loop.findings == []


def test_suites_are_not_empty() -> None:
    counts = [
        len(params(test_transport_wire, "carrier")),
        len(params(test_transport_links, "carrier")),
        len(params(test_transport_token_stream, "closing", "zmq. subprocess set_exception_handler")),
        len(params(test_transport_bulk, "content", "socket. start_server NodeKeys")),
    ]
    assert all(count >= least for count, least in zip(counts, (15, 13, 10, 14), strict=True)), counts


def _without(test: Promise, *names: str) -> object:
    import inspect

    signature = inspect.signature(test)
    kept = [parameter for name, parameter in signature.parameters.items() if name not in names]
    return signature.replace(parameters=kept)
