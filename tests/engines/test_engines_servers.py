"""Real servers of SGLang and vLLM behind instances of a manager: deaths, freezes and changes of weights."""

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from driven_host import DrivenHost
from engine_kinds import NEW_TOKENS
from engines_world import Plane, Servers, logprobs_of, plane, publish_image, request

from gleaner.actors.engine.servers.host import RemoteHost
from gleaner.actors.engine.servers.port import Ask, Chunk, Loads, ServerRefused, ServerWire
from gleaner.actors.engine.worker.port import StepCommands
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.requests import Generated
from gleaner.supervisor.testing import TestSystem

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
]  # with the start of the servers

REQUESTS = 8
STALL_S = 2.0
LONGEST = 160  # tokens
ATTEMPTS = 10
PATIENCE_S = 60.0


SOME = 16  # tokens of all requests; nearly all are still missing when a server is disturbed
SETTLED_S = 0.5  # without a change: what was on its way has arrived


async def all_of(running: Plane, name: str) -> list[Generated]:
    return await asyncio.gather(*(running.generate(request(name, place)) for place in range(REQUESTS)))


@dataclass
class Storm:
    """Requests of which a stopped instance holds some. collected_before: tokens before they were sent."""

    answers: asyncio.Task[list[Generated]]
    collected_before: int


async def storm_caught(
    running: Plane, name: str, stop: Callable[[], Awaitable[None]], go_on: Callable[[], Awaitable[None]]
) -> Storm:
    """Stop the server of an instance in the middle of its requests.

    If they ended before it stopped, it goes on, and other requests follow."""
    for attempt in range(ATTEMPTS):
        collected = (await running.figures()).tokens_collected
        answers = asyncio.create_task(all_of(running, f"storm-{attempt}"))
        while not answers.done():
            made = (await running.figures()).tokens_collected - collected
            if made >= SOME and await running.executing(name) > 0:
                break
            await asyncio.sleep(0.01)
        await stop()
        if await held_for_good(running, name):
            return Storm(answers, collected)
        await go_on()
        await answers
    raise AssertionError(f"{ATTEMPTS} times all requests of {name} had ended when its server stopped")


async def held_for_good(running: Plane, name: str) -> bool:
    """Whether a stopped instance holds requests after all that was on its way has arrived."""
    held, since_s = await running.executing(name), time.monotonic()
    while held > 0 and time.monotonic() - since_s < SETTLED_S:
        await asyncio.sleep(0.05)
        if (now := await running.executing(name)) != held:
            held, since_s = now, time.monotonic()
    return held > 0


def at_once(act: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def acted() -> None:
        act()

    return acted


def lives(host: TestSystem, name: str) -> bool:
    return host.system.cell(f"{name}/engine") is not None


async def test_server_log_probs_equal_those_of_training(servers: Servers, tmp_path: Path) -> None:
    async with plane(tmp_path, servers.kind) as running:
        await running.publish(3)
        await running.instance("s1", servers.both[0].url)
        for temperature in (0.0, 0.7, 1.0):
            asked = request(f"t{temperature}", 0, temperature=temperature)
            made = await running.generate(asked)
            assert (made.status, len(made.tokens)) == ("length", 4 * NEW_TOKENS)
            reported = torch.from_numpy(np.frombuffer(made.logprobs, "<f4").copy())
            ours = logprobs_of(3, asked.prompt, made.tokens, temperature or 1.0)
            assert torch.allclose(reported, ours, atol=1e-4), (
                f"{(reported - ours).abs().max()} at {temperature}"
            )


def load_signal(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event that is set when weights are due to load: they are staged, and all earlier requests ended."""
    wire, loading = type(servers.kind.wire("http://127.0.0.1:1")), asyncio.Event()
    commit = wire.commit

    async def signalled(self: ServerWire) -> str:
        loading.set()
        return await commit(self)

    monkeypatch.setattr(wire, "commit", signalled)
    return loading


async def test_weight_change_within_a_response_is_in_its_spans(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plane(tmp_path, servers.kind) as running:
        await running.publish(3)
        await running.instance("s1", servers.both[0].url)
        await running.serving(1)
        loading = load_signal(servers, monkeypatch)
        for old in range(3, 3 + ATTEMPTS):  # a response that ends too early is followed by another
            asked, new = request(f"under-{old}", 1), old + 1
            since = (await running.figures()).tokens_collected
            answer = asyncio.create_task(running.generate(asked))
            await running.until_decoded(10, since)
            servers.both[0].freeze()  # it may not come to its end while the new weights travel
            loading.clear()
            try:
                await running.publish(new)
                await asyncio.wait_for(loading.wait(), PATIENCE_S)
            finally:
                servers.both[0].thaw()
            made = await answer
            await running.serving_newest()
            if len(made.versions) > 1:
                break
        assert [span.version for span in made.versions] == [old, new]
        before = made.versions[0].count
        assert 10 <= before < NEW_TOKENS
        assert sum(span.count for span in made.versions) == NEW_TOKENS
        rest = request(
            "rest",
            1,
            prompt=asked.prompt + made.tokens[: 4 * before],
            max_new_tokens=NEW_TOKENS - before,
            exact_version=new,
        )
        assert (await running.generate(rest)).tokens == made.tokens[4 * before :]
        under_old = logprobs_of(old, asked.prompt, made.tokens, 1.0)[:before]
        reported = torch.from_numpy(np.frombuffer(made.logprobs, "<f4").copy())[:before]
        assert torch.allclose(reported, under_old, atol=1e-4), "the first span is of the version before"


class Followed:
    """A request of the maximum length and its chunks so far."""

    def __init__(self, wire: ServerWire, id: str) -> None:
        self.id, self._wire, self.chunks = id, wire, list[Chunk]()
        self.task = asyncio.create_task(self._follow())

    @property
    def tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)

    async def _follow(self) -> None:
        async for chunk in self._wire.stream(Ask(self.id, array("I", [5, 9]), LONGEST, 0.0, 0)):
            self.chunks.append(chunk)


async def paused_within(wire: ServerWire, name: str) -> Followed:
    """A request in the middle of its response, since its server was paused there.

    If a response ends before the pause, another request follows."""
    for attempt in range(ATTEMPTS):
        followed, seen = Followed(wire, f"{name}-{attempt}"), 0
        async with asyncio.timeout(PATIENCE_S):
            while not followed.chunks:
                await asyncio.sleep(0.001)
        await wire.pause("in_place")
        while seen != followed.tokens:  # chunks on their way
            seen = followed.tokens
            await asyncio.sleep(0.3)
        if not followed.task.done():
            return followed
        followed.task.result()
        await wire.go_on()
    raise AssertionError(f"{ATTEMPTS} responses ended although their server was paused")


async def test_server_reports_load_pauses_and_aborts(servers: Servers, tmp_path: Path) -> None:
    wire = servers.kind.wire(servers.both[0].url)

    async def until_loads(running: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await wire.loads() != Loads(running, waiting=0):
                await asyncio.sleep(0.02)

    try:
        await wire.stage(publish_image(tmp_path / "store", 5))
        await wire.commit()
        paused = await paused_within(wire, "of-the-test")
        await until_loads(1)
        assert 0 < paused.tokens < LONGEST
        await wire.go_on()
        await asyncio.wait_for(paused.task, PATIENCE_S)
        assert paused.tokens == LONGEST

        paused = await paused_within(wire, "to-be-ended")
        await wire.abort([paused.id, "unknown"])
        await wire.go_on()
        await asyncio.wait_for(paused.task, PATIENCE_S)
        assert paused.chunks[-1].finish == "abort"
        assert 0 < paused.tokens < LONGEST
        await until_loads(0)
        with pytest.raises(ServerRefused, match="context length|max_model_len") as refused:
            async for _ in wire.stream(Ask("too-long", array("I", [5]), 100_000, 0.0, 0)):
                pass
        assert refused.value.never
    finally:
        await wire.disconnect()


def test_out_of_vocabulary_token_never_reaches_the_server(servers: Servers, tmp_path: Path) -> None:
    host = DrivenHost(RemoteHost(servers.kind.wire(servers.both[0].url), stall_s=30.0, serve_s=60.0))
    bad = Work(
        ticket=1,
        prompt=array("I", [300]).tobytes(),
        prefix=b"",
        seed=0,
        max_new_tokens=4,
        temperature=0.0,
    )
    try:
        host.turn(StepCommands(load=publish_image(tmp_path / "store", 6)))
        refused = host.turn(StepCommands(adds=[(6, [bad])])).refusals
        assert refused[0].never
        assert "outside of the vocabulary" in refused[0].why
        host.turn(StepCommands(load=publish_image(tmp_path / "store", 7)))  # it still serves
    finally:
        host.close()
        assert host.joined(10)


def test_failed_load_leaves_the_server_with_old_weights(servers: Servers, tmp_path: Path) -> None:
    host = DrivenHost(RemoteHost(servers.kind.wire(servers.both[0].url), stall_s=30.0, serve_s=60.0))
    whole = publish_image(tmp_path / "store", 9)
    last = msgspec.structs.replace(whole.tensors[-1], shape=(8,), nbytes=32)
    torn = msgspec.structs.replace(whole, tensors=(*whole.tensors[:-1], last))
    prompt = array("I", [5, 9])
    asked = Work(ticket=1, prompt=prompt.tobytes(), prefix=b"", seed=0, max_new_tokens=20, temperature=0.0)
    try:
        host.turn(StepCommands(load=publish_image(tmp_path / "store", 8)))
        turn = host.turn(StepCommands(load=torn))
        assert turn.version == 8
        assert "version 9 was not loaded" in turn.load_failed
        assert "version 8 was loaded again" in turn.load_failed
        outputs = [host.turn(StepCommands(adds=[(8, [asked])])).output]
        until_s = time.monotonic() + 60
        while sum(len(output) for output in outputs if output is not None) < 20:
            assert time.monotonic() < until_s
            outputs.append(host.turn(StepCommands()).output)
        tokens, reported = (
            np.concatenate([getattr(output, column) for output in outputs if output is not None])
            for column in ("tokens", "logprobs")
        )
        ours = logprobs_of(8, prompt.tobytes(), array("I", tokens.tolist()).tobytes(), 1.0)
        assert torch.allclose(torch.from_numpy(reported), ours, atol=1e-4), "it serves a mixture"
    finally:
        host.close()
        assert host.joined(10)


async def test_requests_of_a_frozen_server_continue_elsewhere(servers: Servers, tmp_path: Path) -> None:
    one, two = servers.both
    async with plane(tmp_path, servers.kind) as running:
        await running.publish(3)
        await running.instance("s1", one.url)
        await running.serving(1)
        calm = await all_of(running, "calm")
        frozen = await running.instance("s2", two.url, stall_s=STALL_S)
        await running.serving(2)
        try:
            storm = await storm_caught(running, "s2/engine", at_once(two.freeze), at_once(two.thaw))
            made = await storm.answers
            async with asyncio.timeout(60):
                while lives(frozen, "s2"):
                    await asyncio.sleep(0.05)
        finally:
            two.thaw()
        assert [answer.tokens for answer in made] == [answer.tokens for answer in calm]
        assert (await running.figures()).requests_migrated > 0
        assert lives(running.hosts[0], "s1")


async def test_healthy_server_without_tokens_is_left(servers: Servers, tmp_path: Path) -> None:
    one, two = servers.both
    other = servers.kind.wire(two.url)
    async with plane(tmp_path, servers.kind) as running:
        await running.publish(3)
        await running.instance("s1", one.url)
        await running.serving(1)
        calm = await all_of(running, "calm")
        mute = await running.instance("s2", two.url, stall_s=STALL_S)
        await running.serving(2)
        try:
            storm = await storm_caught(running, "s2/engine", lambda: other.pause("in_place"), other.go_on)
            made = await storm.answers
            async with asyncio.timeout(60):
                while lives(mute, "s2"):
                    await asyncio.sleep(0.05)
            await other.healthy()
        finally:
            await other.go_on()
            await other.disconnect()
        assert [answer.tokens for answer in made] == [answer.tokens for answer in calm]
        assert (await running.figures()).requests_migrated > 0


async def test_killed_server_loses_no_token(servers: Servers, tmp_path: Path) -> None:
    """The last test, since the server stays dead."""
    one, two = servers.both
    async with plane(tmp_path, servers.kind) as running:
        await running.publish(3)
        await running.instance("s1", one.url)
        await running.serving(1)
        calm = await all_of(running, "calm")
        assert all(len(set(array("I", answer.tokens))) > 5 for answer in calm), "a gap would not be seen"
        killed = await running.instance("s2", two.url)
        await running.serving(2)
        storm = await storm_caught(running, "s2/engine", at_once(two.freeze), at_once(two.thaw))
        two.kill()
        made = await storm.answers
        assert [answer.tokens for answer in made] == [answer.tokens for answer in calm]
        for answer, undisturbed in zip(made, calm, strict=True):
            reported, expected = (
                np.frombuffer(raw, "<f4") for raw in (answer.logprobs, undisturbed.logprobs)
            )
            assert np.allclose(reported, expected, atol=1e-4)
        after = await running.figures()
        assert after.requests_migrated > 0
        assert after.tokens_lost == after.tokens_generated_twice == 0
        assert after.tokens_collected - storm.collected_before == REQUESTS * NEW_TOKENS
        assert not lives(killed, "s2")
