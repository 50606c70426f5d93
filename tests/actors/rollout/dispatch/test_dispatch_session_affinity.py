"""Session affinity: the last instance of a conversation gets its next request.

It does so only while it has a free slot.
"""

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_actors_rollout_plane import Plane, plane

from gleaner.actors.protocol.instances import InstancesAre, ListInstances
from gleaner.actors.protocol.requests import Generate
from gleaner.actors.protocol.rollout import HoldBack, RolloutFigures, RolloutStatus
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.rollout.dispatch.dispatcher import Dispatcher
from gleaner.actors.rollout.dispatch.placement import Balancer, InstanceKind
from gleaner.actors.rollout.dispatch.session_affinity import SessionAffinity
from gleaner.supervisor import Done
from tests.actors.rollout.state.test_state_versions import HELLO, generate

ROOTS = {3: b"root"}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")), max_size=30))
def test_last_instance_is_preferred_until_session_is_evicted(
    turns: list[tuple[str, str]],
) -> None:
    sessions, last = SessionAffinity(most=2), dict[str, str]()
    for number, (session, instance) in enumerate(turns):
        request = f"r{number}"
        sessions.begun(request, session)
        assert sessions.preferred(request) in ("", last.get(session, ""))
        sessions.sent(instance, [request, "of-no-session"])
        last.pop(session, None)
        last[session] = instance
        for known in list(last)[-2:]:
            sessions.begun("asked", known)
            assert sessions.preferred("asked") == last[known]
        sessions.ended(request)
        assert len(sessions) <= 2
    sessions.begun("none", "")
    assert sessions.preferred("none") == ""


def test_instance_has_capacity_with_slot_and_wanted_version() -> None:
    balancer = Balancer(max_pending=4)
    balancer.joined("s1", 1, InstanceKind.PREEMPTIBLE, 2)
    assert not balancer.has_room("s1", ROOTS), "the instance serves nothing yet"
    balancer.serving("s1", 1, 3, b"root")
    assert balancer.has_room("s1", ROOTS)
    assert not balancer.has_room("s1", {3: b"another"})
    assert not balancer.has_room("never heard of", ROOTS)
    balancer.dispatched("s1", 1, 2)
    assert not balancer.has_room("s1", ROOTS)
    balancer.started("s1", 1)
    balancer.ended("s1", 1, was_executing=True)
    assert balancer.has_room("s1", ROOTS)


async def served_by(running: Plane, request: Generate) -> str:
    """The instance that has the request while it is generated."""
    running.hold.begin(turns=3)
    asked = asyncio.create_task(generate(running, request))
    async with asyncio.timeout(60):
        while True:
            now = await running.head.ask("rollout/manager", ListInstances(), InstancesAre)
            busy = [one.name for one in now.instances if one.pending + one.executing]
            if busy:
                break
            await asyncio.sleep(0.001)
    running.hold.end()
    await asked
    assert len(busy) == 1
    return busy[0]


async def test_next_turn_goes_to_the_last_instance(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        hosts = [await running.host("s1"), await running.host("s2")]
        await running.submit()
        await running.responses()
        long = msgspec.structs.replace(HELLO, sampling=Sampling(ignore_eos=True))
        plain = [
            await served_by(running, msgspec.structs.replace(long, id=f"plain-{turn}")) for turn in range(4)
        ]
        assert len(set(plain)) == 2, "requests without a session alternate"
        turns = [
            await served_by(running, msgspec.structs.replace(long, id=f"turn-{turn}", session="talk"))
            for turn in range(4)
        ]
        assert len(set(turns)) == 1
        for host in hosts:
            await host.system.close()


async def test_requests_are_placed_together_except_those_of_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[list[str]] = []
    place = Dispatcher._place

    async def counted(self: Dispatcher, batches: list[str], roots: dict[int, bytes]) -> bool:
        placed.append(batches)
        return await place(self, batches, roots)

    monkeypatch.setattr(Dispatcher, "_place", counted)
    async with plane(tmp_path) as running:
        hosts = [await running.host("s1"), await running.host("s2")]
        await running.submit()
        await running.responses()
        await running.head.ask("rollout/manager", HoldBack(for_s=30.0), Done)
        asked = [
            msgspec.structs.replace(HELLO, id=f"r{number}", session="talk" if number == 3 else "")
            for number in range(6)
        ]
        answers = asyncio.gather(*(generate(running, request) for request in asked))
        async with asyncio.timeout(60):
            while (await running.head.ask("rollout/manager", RolloutStatus(), RolloutFigures)).queued < 6:
                await asyncio.sleep(0.01)
        placed.clear()
        await running.head.ask("rollout/manager", HoldBack(for_s=0.0), Done)
        tokens = {answer.tokens for answer in await answers}
        names = [[name.removeprefix("generate-") for name in batches] for batches in placed[:3]]
        assert names == [["r0", "r1", "r2"], ["r3"], ["r4", "r5"]]
        assert len(tokens) == 1, "equal prompts and seeds give equal tokens"
        for host in hosts:
            await host.system.close()
