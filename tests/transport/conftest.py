"""Fixtures of the transport tests: waits with a deadline, recorders of wires."""

import asyncio
from collections.abc import Callable

import pytest

from gleaner.transport.wire import Link, Peer, Route, Wire


class Recorder:
    """Collects the frames that a wire delivers; answers with `reply` when it is set."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.frames: list[list[bytes]] = []
        self.routes: list[Route] = []
        self.links: list[tuple[Peer, Link]] = []
        self.reply: Callable[[list[bytes]], list[bytes]] | None = None
        wire.listen(self.on_frames, self.on_link)

    def on_frames(self, route: Route, frames: list[bytes]) -> None:
        self.frames.append(frames)
        self.routes.append(route)
        if self.reply is not None:
            self.wire.send(route, self.reply(frames))

    def on_link(self, peer: Peer, link: Link) -> None:
        self.links.append((peer, link))

    def states(self, peer: Peer) -> list[Link]:
        return [link for other, link in self.links if other == peer]


async def eventually(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait until `condition` holds; fail when it does not within the deadline."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "did not happen within the deadline"
        await asyncio.sleep(0.005)


@pytest.fixture
def recorder() -> type[Recorder]:
    return Recorder


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., object]:
    return eventually
