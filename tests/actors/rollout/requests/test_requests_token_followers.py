"""Followers of single requests: tokens across deaths, cancel, sampling parameters."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from test_actors_rollout_plane import Plane, plane

from gleaner.actors.protocol.requests import Cancel, Generate, Progress
from gleaner.actors.protocol.rollout import HoldBack
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.requests.service import RequestService
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.rollout.state.events import RequestsDue
from gleaner.supervisor import Actor, Done, Refused, handles
from gleaner.supervisor.journal.file import contents_of, view_file
from tests.actors.rollout.state.test_state_versions import HELLO, generate

FOLLOWED = msgspec.structs.replace(HELLO, follower="rollout/gateway")


class Follower(Actor):
    """Joins the tokens that it receives, and records those that do not fit."""

    def __init__(self, received: dict[str, bytes], gaps: list[str]) -> None:
        self._received, self._gaps = received, gaps

    @handles(Progress)
    async def progress(self, message: Progress) -> None:
        for item in message.items:
            have = self._received.get(item.id, b"")
            if 4 * item.start != len(have) or len(item.tokens) != len(item.logprobs):
                self._gaps.append(f"{item.id} at {item.start}, had {len(have) // 4}")
            self._received[item.id] = have[: 4 * item.start] + item.tokens


def follower(running: Plane) -> tuple[dict[str, bytes], list[str]]:
    received: dict[str, bytes] = {}
    gaps: list[str] = []
    running.head.spawn("rollout/gateway", lambda: Follower(received, gaps))
    return received, gaps


async def until_received(received: dict[str, bytes], count: int) -> None:
    async with asyncio.timeout(60):
        while len(received.get("hello", b"")) < 4 * count:
            await asyncio.sleep(0.002)


async def test_follower_receives_tokens_in_order_before_the_answer(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        received, gaps = follower(running)
        running.hold.begin(turns=8)
        await running.submit()
        asked = asyncio.create_task(generate(running, FOLLOWED))
        await until_received(received, 5)
        assert not asked.done(), "tokens arrive while more are generated"
        running.hold.end()
        answer = await asked
        assert answer.tokens.startswith(received["hello"])
        assert gaps == []
        await host.system.close()


async def test_received_tokens_stay_valid_after_deaths(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        received, gaps = follower(running)
        running.hold.begin(turns=8)
        await running.submit()
        asked = asyncio.create_task(generate(running, FOLLOWED))
        await until_received(received, 5)
        running.head.kill("rollout/manager")
        host.kill("s1/engine")
        other = await running.host("s2")
        running.head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(running.config)))
        running.hold.end()
        answer = await asked
        assert answer.tokens.startswith(received["hello"])
        assert len(received["hello"]) >= 4 * 5
        assert all(" at 0, had" in gap for gap in gaps), "a repeated request is streamed from its start"
        for system in (host, other):
            await system.system.close()


async def test_cancelled_request_ends_and_finished_one_is_forgotten(
    tmp_path: Path,
) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        received, _ = follower(running)
        await running.submit()
        endless = msgspec.structs.replace(FOLLOWED, sampling=Sampling(ignore_eos=True))
        running.hold.begin(turns=6)
        asked = asyncio.create_task(generate(running, endless))
        await until_received(received, 3)
        await running.head.ask("rollout/manager", Cancel(ids=["hello", "never-heard-of"]), Done)
        answer = await asked
        running.hold.end()
        assert answer.status == "deadline"
        assert 3 <= len(answer.tokens) // 4 < HELLO.max_new_tokens
        assert await generate(running, endless) == answer, "the cancelled request has the same answer"
        await running.head.ask("rollout/manager", Cancel(ids=["hello"]), Done)
        again = await generate(running, endless)
        assert again.status == "length"
        assert again.tokens.startswith(answer.tokens), "a new request of the same seed"
        await host.system.close()


async def test_request_that_waits_for_its_gate_is_cancellable(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        await running.submit()
        late = Generate(
            id="late", prompt=HELLO.prompt, max_new_tokens=5, min_version=9, wait_s=30.0, deadline_s=30.0
        )
        asked = asyncio.create_task(generate(running, late))
        await asyncio.sleep(0.1)
        await running.head.ask("rollout/manager", Cancel(ids=["late"]), Done)
        with pytest.raises(Refused, match="late was cancelled"):
            await asked
        await host.system.close()


async def test_request_that_is_cancelled_before_it_is_journaled_is_never_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, waits = asyncio.Event(), asyncio.Event()

    async def make_room(service: RequestService) -> None:
        waits.set()
        await room.wait()

    monkeypatch.setattr(RequestService, "_make_room", make_room)
    async with plane(tmp_path) as running:
        await running.submit()
        queued = (await running.figures()).queued
        asked = asyncio.create_task(generate(running, HELLO))
        await waits.wait()
        await running.head.ask("rollout/manager", Cancel(ids=["hello"]), Done)
        room.set()
        with pytest.raises(Refused, match="hello was cancelled"):
            await asked
        assert (await running.figures()).queued == queued


async def test_cancel_is_answered_when_it_is_in_the_journal(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        await running.submit()  # no instance: it waits
        queued = (await running.figures()).queued
        asked = asyncio.create_task(generate(running, HELLO))
        async with asyncio.timeout(60):
            while (await running.figures()).queued == queued:
                await asyncio.sleep(0.01)
        await running.head.ask("rollout/manager", Cancel(ids=["hello"]), Done)
        with view_file(tmp_path / "head.sqlite") as journal:
            events = contents_of(journal, ["rollout/manager"])["rollout/manager"].events
        due = [one.requests for one in events if isinstance(one, RequestsDue)]
        assert due == [("generate-hello/0/0",)]
        assert (await asked).status == "deadline"


async def test_sampling_parameters_reach_the_engine_and_identify_requests(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        await running.submit()
        greedy = await generate(running, msgspec.structs.replace(HELLO, id="greedy", temperature=0.0))
        top = msgspec.structs.replace(HELLO, sampling=Sampling(top_k=1))
        assert (await generate(running, top)).tokens == greedy.tokens
        with pytest.raises(Refused, match="different contents"):
            await generate(running, HELLO)
        with pytest.raises(Refused, match="top_p: expected"):
            await generate(running, msgspec.structs.replace(HELLO, id="x", sampling=Sampling(top_p=2.0)))
        with pytest.raises(Refused, match="no penalties"):
            await generate(
                running, msgspec.structs.replace(HELLO, id="y", sampling=Sampling(presence_penalty=1.0))
            )
        await host.system.close()


async def test_hold_generates_nothing_and_loses_nothing(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        received, _ = follower(running)
        await running.submit()
        whole = await generate(running, msgspec.structs.replace(HELLO, id="calm"))
        await running.responses()
        running.hold.begin(turns=8)
        asked = asyncio.create_task(generate(running, FOLLOWED))
        await until_received(received, 5)
        await running.head.ask("rollout/manager", HoldBack(for_s=30.0, take_back=True), Done)
        async with asyncio.timeout(60):
            while (figures := await running.figures()).pending + figures.executing:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        held = await running.figures()
        assert held.tokens_collected == figures.tokens_collected
        assert not asked.done()
        await running.head.ask("rollout/manager", HoldBack(for_s=0.0), Done)
        running.hold.end()
        assert (await asked).tokens == whole.tokens
        await host.system.close()


async def test_hold_ends_by_itself(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        await running.submit()
        await running.head.ask("rollout/manager", HoldBack(for_s=0.3), Done)
        assert (await generate(running, HELLO)).tokens
        with pytest.raises(Refused, match="for_s is 1000"):
            await running.head.ask("rollout/manager", HoldBack(for_s=1000.0), Done)
        await host.system.close()


async def test_cancel_is_never_lost_however_early(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        await running.submit()  # no instance: a request that is not ended waits for its deadline
        for turn in range(20):
            name = f"early-{turn}"
            asked = asyncio.create_task(generate(running, msgspec.structs.replace(HELLO, id=name)))
            await asyncio.sleep(turn * 0.001)
            await running.head.ask("rollout/manager", Cancel(ids=[name]), Done)
            async with asyncio.timeout(60):
                if turn:  # at 0 the cancel may arrive before the request
                    (ended,) = await asyncio.gather(asked, return_exceptions=True)
                    assert isinstance(ended, Refused) or ended.status == "deadline"
            asked.cancel()
        assert (await running.figures()).queued <= 24 + 1, "no request is left"
