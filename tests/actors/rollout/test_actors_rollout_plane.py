"""The rollout plane in one process, with real engines and data sockets.

It has a manager, a balancer and transfer agents.
"""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch

from gleaner.actors.engine.builtin.host import BuiltinHost
from gleaner.actors.engine.builtin.settings import BuiltinSettings
from gleaner.actors.engine.worker.port import StepCommands, StepResult
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.model.flat_image import weight_layout, write_weights
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.model.tensor_spec import image_bytes
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.device import Device
from gleaner.actors.protocol.instances import NewWork, Withdraw, Withdrawn
from gleaner.actors.protocol.reward import Score, Verdict
from gleaner.actors.protocol.rollout import (
    Groups,
    ReleaseBatch,
    RolloutFigures,
    RolloutStatus,
    SubmitBatch,
    TakeGroups,
    Weights,
)
from gleaner.actors.protocol.weights import Publish, Published
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.weights.agent import TransferAgent
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.settings import TransferSettings
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from gleaner.supervisor import Actor, Done, Lane, Refused, Suspected, Terminated, handles
from gleaner.supervisor.cell import Delivery
from gleaner.supervisor.testing import TestSystem

MODEL = Qwen3Config(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    tie_word_embeddings=True,
    eos_token_ids=(1,),
)
NEW_TOKENS = 100
FREE_TURNS, HELD_TURN_S = 60, 2.0  # of a held engine


class LengthReward(Actor):
    """A reward that needs no worker process: the share of the longest response."""

    @handles(Score)
    async def score(self, message: Score) -> Verdict:
        return Verdict(request=message.request, score=len(message.tokens) / 4 / NEW_TOKENS, status="ok")


class Hold:
    """Slows the engines of a plane: `turns` turns each at their own speed, then one turn for each order and
    one every `HELD_TURN_S`. A longer response cannot end."""

    def __init__(self, turns: float) -> None:
        self._began, self._turns = 0, turns

    def begin(self, turns: float) -> None:
        self._began, self._turns = self._began + 1, turns

    def end(self) -> None:
        self._turns = math.inf

    def stops(self, began: int, made: int) -> tuple[int, bool]:
        """The number of the hold, and whether it stops an engine that made this many turns of it."""
        return self._began, (made if began == self._began else 0) >= self._turns


class HeldHost(BuiltinHost):
    """A `BuiltinHost` that obeys a `Hold`."""

    def __init__(self, settings: BuiltinSettings, hold: Hold) -> None:
        super().__init__(settings)
        self._hold, self._of, self._turns = hold, 0, 0
        self._ordered = threading.Event()

    @property
    def device(self) -> Device:
        """The cores of a computer with two: requests are placed alike on any."""
        return msgspec.structs.replace(super().device, share=0.5)

    def turn(self, orders: StepCommands) -> StepResult:
        until_s = time.monotonic() + HELD_TURN_S
        while self._stopped() and time.monotonic() < until_s and not self._ordered.wait(0.01):
            pass
        self._ordered.clear()
        turn = super().turn(orders)
        self._turns += turn.output is not None
        return turn

    def _stopped(self) -> bool:
        began, stopped = self._hold.stops(self._of, self._turns)
        if began != self._of:
            self._of, self._turns = began, 0
        return stopped

    def hurry(self) -> None:
        self._ordered.set()

    def close(self) -> None:
        self._ordered.set()


@dataclass
class Plane:
    head: TestSystem
    source: TestSystem
    config: Config
    directory: Path
    weights: Weights
    hold: Hold

    async def host(self, name: str) -> TestSystem:
        """One more preemptible host with its agent and engine."""
        system = TestSystem(self.directory, node=name, join=self.head)
        await system.__aenter__()
        config, store_dir = self.config, self.directory / f"{name}-store"
        system.spawn(
            f"{name}/transfer", lambda: TransferAgent(ImageStore(store_dir), TransferSettings.of(config))
        )
        system.spawn(
            f"{name}/engine",
            lambda: RolloutWorker(
                WorkerSettings.of(config),
                name,
                "preemptible",
                HeldHost(BuiltinSettings.of(config), self.hold),
            ),
        )
        return system

    def engine(self) -> HeldHost:
        return HeldHost(BuiltinSettings.of(self.config), self.hold)

    async def submit(self, batch: str = "step-1") -> None:
        prompts = tuple(
            Prompt(split="train", index=g, tokens=(2 + g, 5, 7), seeds=tuple(100 * g + i for i in range(4)))
            for g in range(6)
        )
        submitted = BatchSubmitted(batch=batch, version=3, prompts=prompts, max_new_tokens=NEW_TOKENS)
        await self.head.ask("rollout/manager", SubmitBatch(batch=submitted, weights=self.weights), Done)

    async def figures(self) -> RolloutFigures:
        return await self.head.ask("rollout/manager", RolloutStatus(), RolloutFigures)

    async def until_serving(self, count: int) -> None:
        async with asyncio.timeout(60):
            while (await self.figures()).serving_preemptible != count:
                await asyncio.sleep(0.01)

    async def until_decoding(self, least: int = 200) -> None:
        async with asyncio.timeout(60):
            while (await self.figures()).tokens_collected < least:
                await asyncio.sleep(0.01)

    async def responses(self, batch: str = "step-1") -> dict[str, bytes]:
        """Release the engines and take every group; the tokens of each request."""
        self.hold.end()
        got: dict[str, bytes] = {}
        have: list[int] = []
        async with asyncio.timeout(60):
            while len(have) < 6:
                ask = TakeGroups(batch=batch, taker=1, have=have, min_groups=6 - len(have), wait_s=1.0)
                groups = await self.head.ask("rollout/manager", ask, Groups)
                for group in groups.groups:
                    have.append(group.group)
                    got |= {sample.request: sample.tokens for sample in group.samples}
        return got


@asynccontextmanager
async def plane(directory: Path, *, held: bool = False, **rollout: float) -> AsyncIterator[Plane]:
    """held: for events during the rollout; the batch cannot end before `responses` is called."""
    config = from_tree({"engine": {"slots": 4}, "rollout": {"max_new_tokens": NEW_TOKENS, **rollout}}, "test")
    torch.manual_seed(0)
    model = Qwen3(MODEL)
    async with (
        TestSystem(directory, node="head") as head,
        TestSystem(directory, node="r", join=head) as source,
    ):
        store = ImageStore(directory / "store")
        specs = tuple(weight_layout(model))
        with store.create(3, image_bytes(specs), specs) as draft:
            write_weights(model, draft.view)
            draft.seal()
        source.spawn(
            "r/transfer", lambda: TransferAgent(ImageStore(directory / "store"), TransferSettings.of(config))
        )
        publish = Publish(version=3, tensors=specs, model_config=msgspec.json.encode(MODEL))
        published = await source.ask("r/transfer", publish, Published)
        head.spawn("reward/proxy", LengthReward)
        head.spawn("rollout/balancer", lambda: LoadBalancer(4))
        head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(config)))
        weights = Weights(version=3, root=published.root, sources=("r/transfer",))
        hold = Hold(FREE_TURNS if held else math.inf)
        try:
            yield Plane(head, source, config, directory, weights, hold)
        finally:
            hold.end()


async def undisturbed(directory: Path) -> dict[str, bytes]:
    async with plane(directory) as rollout:
        host = await rollout.host("spot-0")
        await rollout.submit()
        responses = await rollout.responses()
        await host.system.close()
        return responses


async def test_killed_instance_loses_no_token(tmp_path: Path) -> None:
    expected = await undisturbed(tmp_path / "calm")
    async with plane(tmp_path / "storm", held=True) as rollout:
        one, two = await rollout.host("spot-1"), await rollout.host("spot-2")
        await rollout.submit()
        await rollout.until_decoding()
        one.kill("spot-1/engine")
        assert await rollout.responses() == expected
        figures = await rollout.figures()
        assert figures.requests_migrated > 0
        assert figures.tokens_lost == 0
        assert figures.tokens_generated_twice == 0
        assert figures.tokens_collected == sum(len(tokens) // 4 for tokens in expected.values())
        await rollout.head.ask("rollout/manager", ReleaseBatch(batch="step-1"), Done)
        await one.system.close()
        await two.system.close()


async def test_killed_manager_recovers_and_generates_nothing_twice(tmp_path: Path) -> None:
    expected = await undisturbed(tmp_path / "calm")
    async with plane(tmp_path / "storm", held=True) as rollout:
        host = await rollout.host("spot-1")
        await rollout.submit()
        await rollout.until_decoding()
        rollout.head.kill("rollout/manager")
        rollout.head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(rollout.config)))
        assert await rollout.responses() == expected
        figures = await rollout.figures()
        assert figures.tokens_generated_twice == 0
        assert figures.tokens_lost == 0
        await host.system.close()


def give_up(rollout: Plane, host: TestSystem) -> None:
    """Report to the manager that the instance is silent, though it lives."""
    worker, manager = host.system.cell("spot-1/engine"), rollout.head.system.cell("rollout/manager")
    assert worker is not None
    assert manager is not None
    silent = Terminated(name=worker.address.name, incarnation=worker.address.incarnation, cause="silent")
    manager.deliver(Delivery(silent), Lane.SYSTEM)


async def until_fenced(host: TestSystem) -> None:
    async with asyncio.timeout(60):
        while host.system.cell("spot-1/engine") is not None:
            await asyncio.sleep(0.02)


async def test_given_up_instance_is_fenced(tmp_path: Path) -> None:
    expected = await undisturbed(tmp_path / "calm")
    async with plane(tmp_path / "storm", held=True) as rollout:
        one, two = await rollout.host("spot-1"), await rollout.host("spot-2")
        await rollout.submit()
        await rollout.until_decoding()
        give_up(rollout, one)
        assert await rollout.responses() == expected
        await until_fenced(one)
        figures = await rollout.figures()
        assert figures.tokens_generated_twice == 0
        assert figures.tokens_lost == 0
        assert figures.tokens_collected == sum(len(tokens) // 4 for tokens in expected.values())
        await one.system.close()
        await two.system.close()


async def test_idle_instance_learns_that_it_was_given_up(tmp_path: Path) -> None:
    async with plane(tmp_path) as rollout:
        one = await rollout.host("spot-1")
        await rollout.submit()
        await rollout.responses()
        give_up(rollout, one)
        await until_fenced(one)
        assert (await rollout.figures()).serving_preemptible == 0
        await one.system.close()


async def test_withdrawn_instance_hands_its_requests_over(tmp_path: Path) -> None:
    expected = await undisturbed(tmp_path / "calm")
    async with plane(tmp_path / "storm", held=True) as rollout:
        one, two = await rollout.host("spot-1"), await rollout.host("spot-2")
        await rollout.submit()
        await rollout.until_decoding()
        withdraw = Withdraw(instance="spot-1/engine", grace_s=0.0, leaves=True)
        withdrawn = await rollout.head.ask("rollout/manager", withdraw, Withdrawn)
        assert withdrawn.handed_over > 0
        assert await rollout.responses() == expected
        figures = await rollout.figures()
        assert figures.tokens_generated_twice == 0
        assert figures.serving_preemptible == 1
        await one.system.close()
        await two.system.close()


async def test_withdrawal_is_answered_after_the_commit_of_its_last_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = asyncio.Event()

    async def settled(_: JournaledState) -> None:
        await committed.wait()

    monkeypatch.setattr(JournaledState, "settled", settled)
    async with plane(tmp_path, held=True) as rollout:
        one = await rollout.host("spot-1")
        await rollout.submit()
        await rollout.until_decoding()
        withdraw = Withdraw(instance="spot-1/engine", grace_s=0.0, leaves=True)
        leaving = asyncio.create_task(rollout.head.ask("rollout/manager", withdraw, Withdrawn))
        await asyncio.sleep(1.0)  # longer than an abort takes
        assert not leaving.done()
        committed.set()
        assert (await leaving).handed_over > 0
        await one.system.close()


async def test_spared_instance_serves_again_on_notice(
    tmp_path: Path,
) -> None:
    expected = await undisturbed(tmp_path / "calm")
    async with plane(tmp_path / "storm", held=True) as rollout:
        one, two = await rollout.host("spot-1"), await rollout.host("spot-2")
        await rollout.submit()
        await rollout.until_serving(2)

        async def new_work(allowed: bool, serving: int) -> None:
            message = NewWork(instance="spot-1/engine", allowed=allowed)
            for _ in range(2):  # a repetition changes nothing
                await rollout.head.ask("rollout/manager", message, Done)
                assert (await rollout.figures()).serving_preemptible == serving

        await new_work(False, 1)
        await rollout.until_decoding()
        await new_work(True, 2)
        assert await rollout.responses() == expected
        assert (await rollout.figures()).tokens_generated_twice == 0
        unknown = NewWork(instance="spot-9/engine", allowed=True)
        await rollout.head.ask("rollout/manager", unknown, Done)
        await one.system.close()
        await two.system.close()


@pytest.mark.parametrize("hinted", [False, True], ids=["at once", "first to a hint"])
async def test_revoked_withdrawal_leaves_the_remaining_requests(hinted: bool, tmp_path: Path) -> None:
    expected = await undisturbed(tmp_path / "calm")
    async with plane(tmp_path / "storm", held=True) as rollout:
        one = await rollout.host("spot-1")  # alone: its lost requests would have no other instance
        await rollout.submit()
        await rollout.until_decoding()
        withdraw = Withdraw(instance="spot-1/engine", grace_s=60.0, leaves=True)
        leaving = asyncio.create_task(rollout.head.ask("rollout/manager", withdraw, Withdrawn, 70.0))
        await rollout.until_serving(0)
        for allowed in (False, True)[not hinted :]:
            stays = NewWork(instance="spot-1/engine", allowed=allowed)
            await rollout.head.ask("rollout/manager", stays, Done)
            assert (await rollout.figures()).serving_preemptible == allowed, "a hint lets no new work in"
            assert (await asyncio.wait_for(leaving, 30.0)).handed_over < len(expected), (
                "decoding requests stay"
            )
        assert await rollout.responses() == expected
        figures = await rollout.figures()
        assert (figures.serving_preemptible, figures.tokens_generated_twice) == (1, 0)
        await one.system.close()


async def test_batch_does_not_continue_under_other_weights(tmp_path: Path) -> None:
    async with plane(tmp_path) as rollout:
        await rollout.submit()
        await rollout.submit()  # a repetition is harmless
        rollout.weights = msgspec.structs.replace(rollout.weights, root=b"other")
        with pytest.raises(Refused, match="step-1 was begun under other weights of version 3"):
            await rollout.submit()


async def test_instance_that_joins_in_the_middle_gets_work(tmp_path: Path) -> None:
    async with plane(tmp_path, held=True) as rollout:
        one = await rollout.host("spot-1")
        await rollout.submit()
        await rollout.until_decoding(100)
        two = await rollout.host("spot-2")
        await rollout.until_serving(2)
        await rollout.responses()
        await one.system.close()
        await two.system.close()


async def test_waiting_taker_is_answered_when_an_instance_serves(tmp_path: Path) -> None:
    async with plane(tmp_path, held=True) as rollout:
        await rollout.submit()
        ask = TakeGroups(batch="step-1", taker=1, have=[], min_groups=6, wait_s=3600.0, until_served=True)
        answer = asyncio.create_task(rollout.head.ask("rollout/manager", ask, Groups, deadline_s=3600.0))
        await asyncio.sleep(0.1)
        assert not answer.done(), "no instance serves yet"
        host = await rollout.host("spot-1")
        async with asyncio.timeout(60):
            groups = await answer
        assert (groups.remaining, groups.remote_serving) == (6, 1)
        await rollout.responses()
        await host.system.close()


async def test_suspected_instance_gets_no_requests_until_it_responds(tmp_path: Path) -> None:
    async with plane(tmp_path) as rollout:
        one = await rollout.host("spot-1")
        await rollout.submit()
        await rollout.responses()
        collected = (await rollout.figures()).tokens_collected
        worker, manager = one.system.cell("spot-1/engine"), rollout.head.system.cell("rollout/manager")
        assert worker is not None
        assert manager is not None

        def suspect(suspected: bool) -> None:
            incarnation = worker.address.incarnation
            event = Suspected(name="spot-1/engine", incarnation=incarnation, suspected=suspected)
            manager.deliver(Delivery(event), Lane.SYSTEM)

        suspect(True)
        await asyncio.sleep(0.1)
        await rollout.submit("step-2")
        await asyncio.sleep(0.5)
        assert (await rollout.figures()).tokens_collected == collected
        waits = [(wait.who, wait.what) for wait in rollout.head.system.waits.snapshot()]
        assert ("rollout/manager", "room for requests") in waits
        suspect(False)
        assert len(await rollout.responses("step-2")) == 24
        waits = [(wait.who, wait.what) for wait in rollout.head.system.waits.snapshot()]
        assert ("rollout/manager", "room for requests") not in waits
        await one.system.close()
