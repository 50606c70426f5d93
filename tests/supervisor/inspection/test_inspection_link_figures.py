"""Sums over links: they only grow, whichever links open and end."""

import asyncio

from gleaner.supervisor.inspection.link_figures import link_figures
from gleaner.transport.envelope import encode
from gleaner.transport.link_end import COUNTED
from gleaner.transport.links import Links, LinkState
from gleaner.transport.loopback import LoopbackNetwork


def link(count: int, state: str = "up") -> LinkState:
    counts = dict.fromkeys(COUNTED, count)
    return LinkState(
        where="a", dialled=True, state=state, unacked=2, tell_room=9, waiting=1, held=0, **counts
    )


def test_live_and_ended_links_are_summed_up() -> None:
    figures = link_figures([link(5), link(1, "suspect")], {"resent": 2})
    assert figures.totals == {**dict.fromkeys(COUNTED, 6), "resent": 8}
    assert (figures.states, figures.unacked, figures.waiting) == ({"up": 1, "suspect": 1}, 4, 2)


async def test_counts_of_a_link_are_kept_when_it_ends() -> None:
    network = LoopbackNetwork()
    here, there = Links(network.wire("here"), life=1), Links(network.wire("there"), life=2)
    calls: list[str] = []
    for links in (here, there):
        links.listen(lambda _, envelope: calls.append(envelope.kind) is None, lambda *_: None)

    async def send(count: int) -> None:
        for _ in range(count):
            here.send(there.local, encode("Ping", "actor", b""))
        async with asyncio.timeout(60):
            while len(calls) < count:
                await asyncio.sleep(0.001)
        calls.clear()

    await send(3)
    here.forget(there.local)
    await send(2)
    [now] = here.states()
    assert now.sent == 2
    assert link_figures(here.states(), here.ended).totals["sent"] == 5
    for links in (here, there):
        await links.close()
