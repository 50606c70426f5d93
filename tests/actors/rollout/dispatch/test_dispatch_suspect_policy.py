"""Suspects: requests that kill engines are ended, and no others."""

import asyncio
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.engine.builtin.host import BuiltinHost
from gleaner.actors.engine.builtin.settings import BuiltinSettings
from gleaner.actors.engine.worker.port import StepCommands, StepResult
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.protocol.requests import Generate, Generated
from gleaner.actors.rollout.dispatch.suspect_policy import (
    LONE_DEATHS,
    SOON_S,
    SUSPECT_AFTER,
    SuspectRequest,
    Suspects,
)
from gleaner.actors.weights.agent import TransferAgent
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.settings import TransferSettings
from gleaner.supervisor import Refused
from gleaner.supervisor.testing import TestSystem
from tests.actors.rollout.test_actors_rollout_plane import NEW_TOKENS, Plane, plane

NAMES = "abc"
DEATHS = st.lists(
    st.tuples(
        st.sampled_from(["x", "y", "z"]),  # the instance
        st.floats(0.0, 20.0),  # seconds since the previous death
        st.dictionaries(
            st.sampled_from(NAMES),
            st.tuples(
                st.integers(0, 3), st.booleans(), st.floats(0.0, 2 * SOON_S)
            ),  # tokens, here, seconds held
            max_size=3,
        ),
    ),
    max_size=14,
)


@given(DEATHS)
def test_ended_request_was_alone_in_repeated_deaths(
    deaths: list[tuple[str, float, dict[str, tuple[int, bool, float]]]],
) -> None:
    policy, now_s = Suspects(), 0.0
    seen: list[tuple[str, float, dict[str, SuspectRequest]]] = []
    for instance, after_s, there in deaths:
        now_s += after_s
        held = {
            name: SuspectRequest(tokens, here, now_s - for_s) for name, (tokens, here, for_s) in there.items()
        }
        ended = policy.died(instance, now_s, held, set(NAMES))
        for name in ended:
            assert held.keys() == {name}, "no request is ended for the requests beside it"
        seen.append((instance, now_s, held))
        for name in ended:
            lone = [
                (place, when_s, whose[name])
                for place, when_s, whose in seen
                if whose.keys() == {name} and when_s - whose[name].sent_s <= SOON_S
            ][-LONE_DEATHS:]
            assert len(lone) == LONE_DEATHS
            assert len({one.tokens for _, _, one in lone}) == 1, "the request got no token in between"
            assert not any(one.here for _, _, one in lone)
            place, when_s, one = lone[-1]
            storm = [other for other, died_s, _ in seen if other != place and one.sent_s <= died_s < when_s]
            assert not storm, "no other instance died since the dispatch"


@given(st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=9), st.integers(0, 3))
def test_deadly_request_is_isolated_and_then_ended(places: list[str], company: int) -> None:
    policy, now_s = Suspects(), 0.0
    others = [f"other-{number}" for number in range(company)]
    expected = LONE_DEATHS if not company else SUSPECT_AFTER + LONE_DEATHS
    for deaths in range(1, expected + 1):
        now_s += 100.0
        names = ["deadly"] if policy.suspect("deadly", 0) else ["deadly", *others]
        held = {name: SuspectRequest(0, False, now_s - 1.0) for name in names}
        ended = policy.died(places[deaths % len(places)], now_s, held, set(names))
        assert ended == (["deadly"] if deaths == expected else [])
    for name in others:
        assert policy.died("x", now_s + 1.0, {name: SuspectRequest(1, True, now_s)}, {name}) == []
        assert not policy.suspect(name, 1), "a token clears the request"


DEADLY = 13


class FragileHost(BuiltinHost):
    """Dies at one token, and ends everything with it."""

    def turn(self, orders: StepCommands) -> StepResult:
        if any(DEADLY in array("I", one.prompt) for _, work in orders.adds for one in work):
            raise RuntimeError("illegal memory access")
        return super().turn(orders)


@dataclass
class Fragile:
    """Instances that are restarted after each death, as their supervisors do."""

    running: Plane
    hosts: dict[str, TestSystem] = field(default_factory=dict)
    deaths: int = 0

    async def start(self, name: str) -> None:
        system = TestSystem(self.running.directory, node=name, join=self.running.head)
        await system.__aenter__()
        config, store = self.running.config, self.running.directory / f"{name}-store"
        system.spawn(
            f"{name}/transfer", lambda: TransferAgent(ImageStore(store), TransferSettings.of(config))
        )
        self.hosts[name] = system
        self._spawn(name)

    def _spawn(self, name: str) -> None:
        config = self.running.config
        self.hosts[name].spawn(
            f"{name}/engine",
            lambda: RolloutWorker(
                WorkerSettings.of(config), name, "preemptible", FragileHost(BuiltinSettings.of(config))
            ),
        )

    async def supervise(self) -> None:
        while True:
            for name, system in self.hosts.items():
                if system.system.cell(f"{name}/engine") is None:
                    self.deaths += 1
                    self._spawn(name)
            await asyncio.sleep(0.05)


def generate(id: str, prompt: list[int], seed: int = 1) -> Generate:
    return Generate(
        id=id,
        prompt=array("I", prompt).tobytes(),
        max_new_tokens=NEW_TOKENS,
        seed=seed,
        wait_s=20.0,
        deadline_s=60.0,
    )


async def test_deadly_request_ends_and_others_are_answered(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        fragile = Fragile(running)
        for name in ("s1", "s2"):
            await fragile.start(name)
        await running.submit()  # publishes version 3
        supervising = asyncio.create_task(fragile.supervise())
        try:
            await running.until_serving(2)
            head = running.head

            def asked(message: Generate) -> asyncio.Task[Generated]:
                return asyncio.create_task(head.ask("rollout/manager", message, Generated, 60))

            deadly = asked(generate("deadly", [5, DEADLY]))
            beside = [asked(generate(f"b{n}", [5, 9], n)) for n in range(6)]
            with pytest.raises(Refused, match="not tried again"):
                await deadly
            assert LONE_DEATHS <= fragile.deaths <= SUSPECT_AFTER + LONE_DEATHS
            for one in beside:
                assert len((await one).tokens) > 0
            with pytest.raises(Refused, match="not tried again"):
                await asked(generate("again", [5, DEADLY]))
            assert fragile.deaths <= SUSPECT_AFTER + LONE_DEATHS, "its prompt is known to kill"
            after = await asked(generate("after", [5, 9]))
            assert len(after.tokens) > 0, "the instance kept free serves other requests again"
        finally:
            supervising.cancel()
            for system in fragile.hosts.values():
                await system.system.close()
