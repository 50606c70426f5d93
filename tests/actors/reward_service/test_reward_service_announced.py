"""Batches of a job whose responses a service scores: their names and announcements at the service."""

import asyncio
import random
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from small_service import KEY, Service

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import BatchEnded, RewardHint, RewardState, RewardStatus, Score, Verdict
from gleaner.actors.reward import pipe
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.proxy import RewardProxy
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.stage_pools import HostParts
from gleaner.actors.reward.verifiers.batch_announcements import MOST, BatchAnnouncements, named
from gleaner.actors.reward.verifiers.http_calls import Unavailable
from gleaner.actors.reward.verifiers.http_wires import BadAnswer
from gleaner.actors.reward.verifiers.shared_service import SharedService
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Share
from gleaner.supervisor.testing import TestSystem

ENTRY = msgspec.json.encode(Entry(question="1+1?", answer="2"))
RIGHT, HOLD = 0, 1
TEXTS = ["2", "hold"]
"""Response of each token."""


class Reader:
    """A worker that makes texts."""

    dead = False

    @staticmethod
    async def start(spec: WorkerSpec) -> "Reader":
        """See `StartWorker`."""
        return Reader()

    async def ask(self, frame: bytes, deadline_s: float) -> pipe.Answer:
        """See `ScoringWorker`."""
        item = pipe.item(frame[pipe.PREFIX.size :])
        assert isinstance(item, pipe.ReadItem)
        return pipe.ReadOut(pipe.TextItem("sums", ENTRY, TEXTS[item.tokens[0]]))

    async def kill(self) -> None:
        """See `ScoringWorker`."""


class Job:
    """A job's proxy, and what asks it."""

    def __init__(self, system: TestSystem) -> None:
        self.system = system

    def ask(self, request: str, token: int, batch: str) -> "asyncio.Task[Verdict]":
        """Request a verdict."""
        tokens = array("I", [token]).tobytes()
        score = Score(request=request, split="train", index=0, tokens=tokens, batch=batch)
        return asyncio.create_task(self.system.ask(REWARD, score, Verdict, deadline_s=30.0))


@asynccontextmanager
async def job_of(directory: Path, url: str, *, batches: bool = True) -> AsyncIterator[Job]:
    """A job that shares a service."""
    share = Share(with_=url, key_env="THE_KEY", deadline_s=30.0)
    config = from_tree({"reward": {"workers": 1, "attempts": 2, "share": {"with": url}}}, "test")
    directory.mkdir()
    async with TestSystem(directory) as system:
        parts = HostParts(make_service=lambda calls: SharedService(share, "one", calls, batches=batches))
        proxy = RewardProxy(RewardSettings.of(config), "", Reader.start, WorkerSpec(), parts=parts)
        system.spawn(REWARD, lambda: proxy)
        await system.ask(REWARD, RewardStatus(), RewardState, deadline_s=10.0)
        yield Job(system)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY)


async def batches(service: Service) -> dict[str, tuple[int, int]]:
    """Items expected and arrived of each active batch of the service."""
    async with service.http.get(f"{service.url}/state") as answer:
        found = (await answer.json())["batches"]
    return {batch["name"]: (batch["expected"], batch["arrived"]) for batch in found}


async def until(service: Service, holds: Callable[[dict[str, tuple[int, int]]], bool]) -> None:
    """Wait until the batches of the service are so."""
    async with asyncio.timeout(10.0):
        while not holds(await batches(service)):
            await asyncio.sleep(0.01)


async def test_batch_of_a_job_is_announced_to_its_service_and_ended_there(
    tmp_path: Path, service: Service
) -> None:
    async with job_of(tmp_path / "job", service.url) as job:
        await job.system.tell(REWARD, RewardHint(batch="step-1", items=5, kind="short"))
        await until(service, lambda found: found == {"one/step-1": (5, 0)})
        async with service.http.get(f"{service.url}/state") as answer:
            assert [one["kind"] for one in (await answer.json())["batches"]] == ["one/step short"]
        assert (await job.ask("a", RIGHT, "step-1")).score == 1.0
        assert await batches(service) == {"one/step-1": (5, 1)}
        await job.system.tell(REWARD, BatchEnded(batch="step-1"))
        await until(service, lambda found: not found)


async def test_items_of_a_job_are_in_its_own_batches_at_the_service(tmp_path: Path, service: Service) -> None:
    async with job_of(tmp_path / "job", service.url) as job:
        held = [job.ask("a", HOLD, "step-1"), job.ask("b", HOLD, "step-2"), job.ask("c", HOLD, "step-1")]
        await until(service, lambda found: found == {"one/step-1": (0, 2), "one/step-2": (0, 1)})
        await job.system.tell(REWARD, BatchEnded(batch="step-1"))
        await until(service, lambda found: found == {"one/step-2": (0, 1)})
        service.workers.gate.set()
        assert (await held[1]).status == "ok"
        await asyncio.gather(*held, return_exceptions=True)


async def test_batch_whose_name_a_service_refuses_has_none_there(tmp_path: Path, service: Service) -> None:
    async with job_of(tmp_path / "job", service.url) as job:
        await job.system.tell(REWARD, RewardHint(batch="a batch", items=5))
        held = job.ask("a", HOLD, "a batch")
        await until(service, lambda found: len(found) == 1)
        assert not any("/" in name for name in await batches(service))
        service.workers.gate.set()
        assert (await held).status == "ok"


async def test_service_gets_no_batches_of_a_client_without_them(tmp_path: Path, service: Service) -> None:
    async with job_of(tmp_path / "job", service.url, batches=False) as job:
        await job.system.tell(REWARD, RewardHint(batch="step-1", items=5))
        held = job.ask("a", HOLD, "step-1")
        await until(service, lambda found: len(found) == 1)
        assert not any("/" in name for name in await batches(service))
        service.workers.gate.set()
        assert (await held).status == "ok"


async def test_service_that_is_away_costs_the_job_no_verdict(tmp_path: Path, service: Service) -> None:
    """Nothing waits for announcements: the end of the job does not either."""
    async with asyncio.timeout(20.0), job_of(tmp_path / "job", "http://127.0.0.1:9") as job:
        await job.system.tell(REWARD, RewardHint(batch="step-1", items=5))
        await job.system.tell(REWARD, BatchEnded(batch="step-1"))
        await job.system.ask(REWARD, RewardStatus(), RewardState, deadline_s=5.0)


class Sent:
    """What a service gets; it fails while `fails` has an error."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.fails: list[Exception] = []
        self.gate = asyncio.Event()

    async def send(self, body: dict[str, object]) -> None:
        """See `BatchAnnouncements`."""
        if self.fails:
            raise self.fails.pop()
        if body["batch"] == "held" and "expected" in body:
            await self.gate.wait()
        self.bodies.append(body)


def announcements(sent: Sent, call_s: float = 10.0) -> BatchAnnouncements:
    return BatchAnnouncements(sent.send, random.Random(1), call_s)


async def test_end_of_a_batch_is_sent_behind_its_beginning_and_beside_others() -> None:
    sent = Sent()
    made = announcements(sent)
    made.opened("held", 3)
    made.ended("held")
    made.opened("step-2", 1)
    await asyncio.sleep(0.05)
    assert sent.bodies == [{"batch": "step-2", "expected": 1}]
    sent.gate.set()
    await made.close()
    assert sent.bodies[1:] == [{"batch": "held", "expected": 3}, {"batch": "held", "ended": True}]


@pytest.mark.parametrize(
    ("problem", "bodies"), [(Unavailable("answered 429"), 2), (BadAnswer("answered 404"), 1)]
)
async def test_announcement_is_tried_again_while_the_service_is_away(problem: Exception, bodies: int) -> None:
    sent = Sent()
    sent.fails.append(problem)
    made = announcements(sent)
    made.opened("step-1", 3)
    made.ended("step-1")
    await made.close()
    assert len(sent.bodies) == bodies
    assert sent.bodies[-1] == {"batch": "step-1", "ended": True}


async def test_announcement_is_given_up_after_its_deadline_or_at_the_end() -> None:
    sent = Sent()
    late = announcements(sent, call_s=0.05)
    late.opened("held", 3)
    await asyncio.sleep(0.2)
    assert not late._under_way
    closed = announcements(sent)
    for _ in range(MOST + 1):
        closed.opened("held", 3)
    assert len(closed._under_way) == MOST
    await closed.close()
    assert (closed._under_way, closed._last, sent.bodies) == (set(), {}, [])


@pytest.mark.parametrize("name", ["step-1", "eval-step-3", "A.b_c", "x" * 100])
def test_name_of_a_batch_is_sent_as_it_is_when_it_can_be(name: str) -> None:
    assert named(name) == name


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "x" * 101, "a\n"])
def test_name_of_a_batch_is_not_sent_when_it_would_be_refused(name: Any) -> None:
    assert named(name) == ""
