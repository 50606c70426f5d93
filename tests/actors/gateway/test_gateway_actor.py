"""Gateway actor: requests across deaths of the manager, gaps, slow readers, aborts and deadlines."""

import asyncio
import hashlib
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gleaner.actors.gateway.ask import Ask, BadAsk, Busy, End, NotReady, Piece
from gleaner.actors.gateway.fleet import Fleet, NotHere
from gleaner.actors.gateway.gateway import Gateway
from gleaner.actors.gateway.job_fleet import JobFleet
from gleaner.actors.protocol.instances import InstanceIs, InstancesAre, ListInstances
from gleaner.actors.protocol.requests import (
    Cancel,
    Generate,
    Generated,
    Progress,
    ProgressItem,
    VersionNotReady,
    VersionSpan,
)
from gleaner.configs.schema import Gateway as Settings
from gleaner.supervisor import Actor, AskTimeout, Context, Deferred, Done, Message, Refused, handles
from gleaner.supervisor.testing import TestSystem

TOKENS = array("I", range(100, 140))
LOGPROBS = array("f", [-n / 8 for n in range(40)])


@dataclass
class Talk:
    """Requests that the manager received, over all its lives."""

    asked: list[Generate] = field(default_factory=list)
    waiting: dict[str, Deferred] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    answer: Callable[[Generate], Message | Exception | None] = lambda message: None


class Manager(Actor):
    """Answers by the script of its `Talk`, or when the test orders it."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    @handles(Generate)
    async def generate(self, message: Generate) -> Deferred:
        deferred = self._talk.waiting[message.id] = Deferred()
        self._talk.asked.append(message)
        outcome = self._talk.answer(message)
        if outcome is not None:
            deferred.answer(outcome)
        return deferred

    @handles(Cancel)
    async def cancel(self, message: Cancel) -> Done:
        self._talk.cancelled += message.ids
        return Done()

    @handles(ListInstances)
    async def instances(self, message: ListInstances) -> InstancesAre:
        one = InstanceIs(
            name="s1/engine",
            incarnation=4,
            kind="preemptible",
            version=3,
            pending=1,
            executing=2,
            leaving=False,
        )
        return InstancesAre(instances=[one], published=5, queued=7)


class NoDoor:
    async def start(self) -> str:
        return "http://nowhere"

    async def close(self) -> None:
        return None


@dataclass
class World:
    system: TestSystem
    talk: Talk
    gateway: Gateway
    fleet: Fleet

    async def made(self, id: str, start: int, end: int, version: int = 3) -> None:
        item = ProgressItem(
            id=id,
            start=start,
            tokens=TOKENS[start:end].tobytes(),
            logprobs=LOGPROBS[start:end].tobytes(),
            version=version,
        )
        await self.system.tell("rollout/gateway", Progress(items=[item]))

    async def until_asked(self, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while len(self.talk.asked) < times:
                await asyncio.sleep(0.01)

    def end(
        self, id: str, count: int, status: str = "stop", versions: tuple[tuple[int, int], ...] = ()
    ) -> None:
        self.talk.waiting[id].answer(generated(id, self.talk.asked[-1].accepted, count, status, versions))


def generated(
    id: str, start: int, count: int, status: str = "stop", versions: tuple[tuple[int, int], ...] = ()
) -> Generated:
    spans = versions or (((3, count),) if count else ())
    return Generated(
        id=id,
        status=status,
        start=start,
        tokens=TOKENS[start:count].tobytes(),
        logprobs=LOGPROBS[start:count].tobytes(),
        versions=tuple(VersionSpan(version=version, count=number) for version, number in spans),
        version_start=spans[0][0] if spans else None,
        version_end=spans[-1][0] if spans else None,
        sha256=b"",
    )


@asynccontextmanager
async def world(directory: Path, **settings: float) -> AsyncIterator[World]:
    talk, made = Talk(), []
    async with TestSystem(directory) as system:
        system.spawn("rollout/manager", lambda: Manager(talk))

        def gateway() -> Gateway:
            def door(gateway: Gateway, fleet: Fleet) -> NoDoor:
                made.append((gateway, fleet))
                return NoDoor()

            return Gateway(Settings(**settings), door, JobFleet)  # type: ignore[arg-type]

        system.spawn("rollout/gateway", gateway)
        async with asyncio.timeout(60):
            while not made:
                await asyncio.sleep(0.01)
        yield World(system, talk, *made[0])


def ask(id: str = "a", **others: object) -> Ask:
    return replace(Ask(id, array("I", [1, 2]), 40, deadline_s=30.0), **others)  # type: ignore[arg-type]


async def read(running: World, one: Ask) -> tuple[list[int], list[float], End]:
    tokens: list[int] = []
    logprobs: list[float] = []
    async for item in running.gateway.stream(one):
        if isinstance(item, End):
            return tokens, logprobs, item
        tokens += item.tokens
        logprobs += item.logprobs
    raise AssertionError("the stream has no End item")


async def test_pieces_follow_the_manager_and_end_has_exact_versions(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        source = running.gateway.stream(ask())
        first = asyncio.ensure_future(anext(source))
        await running.until_asked()
        await running.made("a", 0, 4)
        assert await first == Piece([100, 101, 102, 103], [0.0, -0.125, -0.25, -0.375], 3)
        await running.made("a", 2, 6, version=4)  # two tokens again, and more
        assert await anext(source) == Piece([104, 105], [-0.5, -0.625], 4)
        running.end("a", 8, "length", ((3, 5), (4, 3)))
        assert await anext(source) == Piece([106, 107], [-0.75, -0.875], 4)
        assert await anext(source) == End("length", ((3, 5), (4, 3)), 3, 4)
        with pytest.raises(StopAsyncIteration):
            await anext(source)
        asked = running.talk.asked[0]
        assert (asked.follower, asked.wait_s, asked.accepted) == ("rollout/gateway", asked.deadline_s, 0)


async def test_gap_is_requested_with_received_tokens_and_their_hash(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        reading = asyncio.create_task(read(running, ask()))
        await running.until_asked()
        await running.made("a", 0, 4)
        await asyncio.sleep(0.6)  # gaps are not asked for more often
        await running.made("a", 7, 9)
        await running.until_asked(2)
        again = running.talk.asked[1]
        assert again.accepted == 4
        assert again.accepted_sha256 == hashlib.sha256(TOKENS[:4].tobytes()).digest()
        assert again.attempt > running.talk.asked[0].attempt
        running.end("a", 12)
        tokens, logprobs, end = await reading
        assert tokens == TOKENS[:12].tolist()
        assert logprobs == LOGPROBS[:12].tolist()
        assert end.status == "stop"


async def test_manager_death_is_invisible_to_the_reader(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        reading = asyncio.create_task(read(running, ask()))
        await running.until_asked()
        await running.made("a", 0, 10)
        running.system.kill("rollout/manager")
        await asyncio.sleep(0.1)
        running.system.spawn("rollout/manager", lambda: Manager(running.talk))
        await running.until_asked(2)
        await running.made("a", 0, 14)  # from what was accepted when it was first asked for
        running.end("a", 20)
        tokens, _, end = await reading
        assert tokens == TOKENS[:20].tolist()
        assert end == End("stop", ((3, 20),), 3, 3)


async def test_unreachable_manager_does_not_block_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Message] = []

    async def refused_at_once(ctx: Context, to: str, message: Message, **_: object) -> Message:
        asked.append(message)
        assert len(asked) < 50, "the gateway asks without a pause"
        raise AskTimeout("no actor holds the name, and there is no registry")

    async with world(tmp_path) as running:
        monkeypatch.setattr(Context, "ask", refused_at_once)
        reading = asyncio.create_task(read(running, ask()))
        await asyncio.sleep(0.5)
        reading.cancel()
        assert asked
        assert running.system.system.cell("rollout/gateway") is not None, "the gateway crashed"


async def test_slow_reader_pauses_the_manager_and_gets_all_tokens(tmp_path: Path) -> None:
    async with world(tmp_path, buffer_tokens=8) as running:
        source = running.gateway.stream(ask())
        first = asyncio.ensure_future(anext(source))
        await running.until_asked()
        await running.made("a", 0, 5)
        tokens = list((await first).tokens)  # type: ignore[union-attr]
        for start in range(5, 30, 5):  # the client reads nothing meanwhile
            await running.made("a", start, start + 5)
        await asyncio.sleep(0.6)
        assert running.gateway._follows["a"].__len__() <= 5 + 8 + 5
        assert len(running.talk.asked) == 1, "the manager gets no new request while the client does not read"
        running.talk.answer = lambda message: generated("a", message.accepted, 40)
        async for item in source:
            tokens += item.tokens if isinstance(item, Piece) else []
        assert tokens == TOKENS.tolist()
        assert len(running.talk.asked) == 2


async def test_same_id_joins_the_request_and_other_contents_fail(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        one = asyncio.create_task(read(running, ask(named=True)))
        await running.until_asked()
        await running.made("a", 0, 6)
        two = asyncio.create_task(read(running, ask(named=True, deadline_s=60.0)))
        with pytest.raises(BadAsk, match="different contents"):
            await read(running, ask(named=True, seed=9))
        await asyncio.sleep(0.05)
        running.end("a", 9)
        assert await one == await two
        assert len(running.talk.asked) == 1


async def test_leaving_reader_cancels_its_request_unless_named(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        for number, one in enumerate((ask("mine", named=True), ask("nobodys")), 1):
            source = running.gateway.stream(one)
            first = asyncio.ensure_future(anext(source))
            await running.until_asked(number)
            await running.made(one.id, 0, 3)
            await first
            await source.aclose()
        async with asyncio.timeout(60):
            while not running.talk.cancelled:
                await asyncio.sleep(0.01)
        assert running.talk.cancelled == ["nobodys"]
        assert running.gateway.under_way == 0
        running.talk.answer = lambda message: generated("mine", message.accepted, 7)
        tokens, _, _ = await read(running, ask("mine", named=True))
        assert tokens == TOKENS[:7].tolist(), "a returning client gets the response from its first token"


async def test_unnamed_request_is_forgotten_after_a_whole_read(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as running:
        running.talk.answer = lambda message: generated(message.id, 0, 5)
        for id in ("one", "two"):
            await read(running, ask(id))
        await read(running, ask("named", named=True))
        async with asyncio.timeout(60):
            while len(running.talk.cancelled) < 2:
                await asyncio.sleep(0.01)
        assert running.talk.cancelled == ["one", "two"]


async def test_abort_ends_requests_with_received_tokens(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        parts = [asyncio.create_task(read(running, ask(id))) for id in ("a.0", "a.1", "b")]
        await running.until_asked(3)
        await running.made("a.0", 0, 5)
        assert await running.gateway.abort(["a", "unknown"]) == 2
        async with asyncio.timeout(60):
            while not {"a.0", "a.1"} <= set(running.talk.cancelled):
                await asyncio.sleep(0.01)
        running.talk.waiting["a.0"].answer(generated("a.0", 0, 6, "deadline"))
        tokens, _, end = await parts[0]
        assert (tokens, end.status) == (TOKENS[:6].tolist(), "abort")
        _, _, silent = await parts[1]  # the manager never replies: the gateway ends it soon
        assert (silent.status, silent.versions) == ("abort", ())
        async with asyncio.timeout(60):
            while running.talk.cancelled.count("a.1") < 2:  # the cancellation is sent again
                await asyncio.sleep(0.01)
        assert not parts[2].done()
        assert await running.gateway.abort(None) == 1
        running.talk.waiting["b"].answer(Refused("request b was cancelled"))
        assert (await parts[2])[2].status == "abort"


async def test_silent_manager_ends_a_request_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.actors.gateway.gateway.GRACE_S", 0.2)
    async with world(tmp_path) as running:
        reading = asyncio.create_task(read(running, ask(deadline_s=0.5)))
        await running.until_asked()
        await running.made("a", 0, 5)
        running.system.kill("rollout/manager")
        tokens, _, end = await reading
        assert tokens == TOKENS[:5].tolist()
        assert end == End("deadline", ((3, 5),), 3, 3)


async def test_refused_requests_have_a_reason(tmp_path: Path) -> None:
    async with world(tmp_path, max_concurrent=1) as running:
        running.talk.answer = lambda message: VersionNotReady(
            target=9, exact=True, applied=3, retryable=False
        )
        with pytest.raises(NotReady, match="exactly version 9 is not served; the newest that is: 3"):
            await read(running, ask("v", exact_version=9))
        with pytest.raises(Busy, match="no weights are published"):
            await read(running, ask("w"))
        running.talk.answer = lambda message: Refused("request x: no instance serves it: no token 9")
        with pytest.raises(BadAsk, match="no token 9"):
            await read(running, ask("x"))
        running.talk.answer = lambda message: None
        reading = asyncio.create_task(read(running, ask("y")))
        await running.until_asked(4)
        with pytest.raises(Busy, match="max_concurrent"):
            await read(running, ask("z"))
        running.end("y", 1)
        await reading


async def test_job_fleet_shows_manager_state_and_refuses_changes(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        (worker,) = await running.fleet.workers()
        assert (worker.id, worker.incarnation, worker.running, worker.healthy) == ("s1-engine", 4, 2, True)
        loads = await running.fleet.loads()
        assert (loads.running, loads.waiting) == (0, 0), (
            "counts only requests of its clients, not those of the job"
        )
        versions = await running.fleet.versions()
        assert (versions.published, versions.applied) == (5, 3)
        with pytest.raises(NotHere, match="weights are its own"):
            await running.fleet.update_weights("/w", 4)
        running.talk.answer = lambda message: generated(message.id, 0, 1)
        await running.fleet.probe()


async def test_pause_holds_new_requests_until_resume(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        before = asyncio.create_task(read(running, ask("before")))
        await running.until_asked()
        assert await running.fleet.pause("keep") == 1
        held = asyncio.create_task(read(running, ask("held")))
        late = asyncio.create_task(read(running, ask("late", deadline_s=0.5)))
        await asyncio.sleep(0.05)
        loads = await running.fleet.loads()
        assert (loads.running, loads.waiting) == (1, 2)
        running.end("before", 2)
        await before
        assert (await late)[2].status == "deadline"
        assert len(running.talk.asked) == 1
        await running.fleet.resume()
        await running.fleet.resume()
        await running.until_asked(2)
        running.end("held", 2)
        await held
