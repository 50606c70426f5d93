"""A job whose responses a service scores, each by a call of its own."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_service import KEY, Service, serving

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import BatchEnded, CancelScores, Score, Verdict
from gleaner.actors.reward import pipe
from gleaner.actors.reward.call_limit import CallLimit
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.proxy import RewardProxy
from gleaner.actors.reward.scoring import WorkerDied, WorkerSpec
from gleaner.actors.reward.service_pool import ServicePool
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.stage_pools import HostParts
from gleaner.actors.reward.verifiers.shared_service import SharedService
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Share
from gleaner.supervisor import AskFailed
from gleaner.supervisor.testing import TestSystem

CALLS = 32
ENTRY = msgspec.json.encode(Entry(question="1+1?", answer="2"))
RIGHT, WRONG, HOLD, FAIL, CRASH = 0, 1, 2, 3, 4
TEXTS = ["2", "3", "hold", "fail"]
"""Response of each token; `CRASH` ends the worker that reads it."""
SERVED = from_tree(
    {
        "reward": {"deadline_s": 5.0, "attempts": 1, "workers": 2, "max_queue": 512},
        "gateway": {"listen": "h:0"},
    },
    "test",
)


class Reader:
    """A worker that makes texts; it has no verifier."""

    dead = False

    @staticmethod
    async def start(spec: WorkerSpec) -> "Reader":
        """See `StartWorker`."""
        return Reader()

    async def ask(self, frame: bytes, deadline_s: float) -> pipe.Answer:
        """See `ScoringWorker`."""
        item = pipe.item(frame[pipe.PREFIX.size :])
        assert isinstance(item, pipe.ReadItem)
        if item.tokens[0] == CRASH:
            raise WorkerDied("signal 11 (SIGSEGV)")
        return pipe.ReadOut(pipe.TextItem("sums", ENTRY, TEXTS[item.tokens[0]]))

    async def kill(self) -> None:
        """See `ScoringWorker`."""


class Job:
    """A job's proxy, and what asks it."""

    def __init__(self, system: TestSystem, proxy: RewardProxy) -> None:
        self.system, self.proxy = system, proxy

    def ask(self, request: str, token: int) -> "asyncio.Task[Verdict]":
        """Request a verdict."""
        score = Score(
            request=request, split="train", index=0, tokens=array("I", [token]).tobytes(), batch="b"
        )
        return asyncio.create_task(self.system.ask(REWARD, score, Verdict, deadline_s=30.0))

    async def ask_all(self, name: str, token: int, count: int) -> "list[asyncio.Task[Verdict]]":
        """Request so many verdicts, a few at a time: a mailbox has a limit."""
        asked: list[asyncio.Task[Verdict]] = []
        while len(asked) < count:
            asked += [self.ask(f"{name}{number}", token) for number in range(len(asked), len(asked) + 16)]
            await asyncio.sleep(0.05)
        return asked

    @property
    def calls(self) -> int:
        """Under way at the service."""
        return int(self.proxy.summary()["calls"])


@asynccontextmanager
async def job_of(
    directory: Path, url: str, deadline_s: float = 30.0, calls: int = CALLS
) -> AsyncIterator[Job]:
    """A job that shares a service."""
    share = Share(with_=url, key_env="THE_KEY", deadline_s=deadline_s)
    config = from_tree(
        {
            "reward": {
                "workers": 3,
                "attempts": 2,
                "max_queue": 512,
                "share": {"with": url, "max_calls": calls},
            }
        },
        "test",
    )
    directory.mkdir()
    async with TestSystem(directory) as system:
        parts = HostParts(make_service=lambda calls: SharedService(share, "mine", calls))
        proxy = RewardProxy(RewardSettings.of(config), "", Reader.start, WorkerSpec(), parts=parts)
        system.spawn(REWARD, lambda: proxy)
        await until(lambda: hasattr(proxy, "_offers"))
        yield Job(system, proxy)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not holds():
            await asyncio.sleep(0.01)


def open_items(service: Service) -> int:
    """Items that the service has, waiting and running."""
    summary = service.proxy.summary()
    return int(summary["queued"]) + int(summary["running"])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("THE_KEY", "GLEANER_API_KEYS"):
        monkeypatch.setenv(name, KEY)


@pytest.fixture
async def wide(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with two workers and room for many items."""
    async with serving(tmp_path, SERVED) as service:
        yield service


@pytest.fixture
async def job(tmp_path: Path, wide: Service) -> AsyncIterator[Job]:
    async with job_of(tmp_path / "job", wide.url) as job:
        yield job


async def test_slow_response_does_not_hold_the_verdict_of_a_fast_one(job: Job, wide: Service) -> None:
    slow = job.ask("slow", HOLD)
    await until(lambda: len(wide.workers.seen) == 1)
    fast = [await job.ask(f"fast-{number}", number % 2) for number in range(20)]
    assert [verdict.score for verdict in fast] == [1.0, 0.0] * 10
    assert not slow.done()
    wide.workers.gate.set()
    assert (await slow).score == 0.0


async def test_cancelled_item_ends_its_call_and_leaves_the_queue_of_the_service(
    job: Job, wide: Service
) -> None:
    asked = [job.ask(f"r{number}", HOLD) for number in range(6)]
    await until(lambda: open_items(wide) == 6)
    await job.system.tell(REWARD, CancelScores(requests=["r1", "r5"]))
    await until(lambda: open_items(wide) == 4 and job.calls == 4)
    for number in (1, 5):
        with pytest.raises(AskFailed, match="not needed any more"):
            await asked.pop(number if number == 1 else -1)
    await job.system.tell(REWARD, BatchEnded(batch="b"))
    await until(lambda: not open_items(wide) and not job.calls)
    for one in asked:
        with pytest.raises(AskFailed):
            await one


async def test_no_more_calls_than_the_bound_are_under_way(job: Job, wide: Service) -> None:
    await asyncio.gather(*await job.ask_all("r", RIGHT, CALLS))  # short ones first: their credit is large
    asked = await job.ask_all("h", HOLD, 3 * CALLS)
    await until(lambda: open_items(wide) == CALLS)
    await asyncio.sleep(0.3)
    assert (open_items(wide), job.calls) == (CALLS, CALLS)
    assert job.proxy.summary()["queued"] == 2 * CALLS
    await job.system.tell(REWARD, CancelScores(requests=["h0", "h1"]))  # two others take their place
    await until(lambda: job.proxy.summary()["queued"] == 2 * CALLS - 2)
    await until(lambda: open_items(wide) == CALLS)
    assert job.calls == CALLS
    wide.workers.gate.set()
    assert [verdict.score for verdict in await asyncio.gather(*asked[2:])] == [0.0] * (3 * CALLS - 2)
    await asyncio.gather(*asked[:2], return_exceptions=True)


async def test_calls_are_as_many_as_the_queues_of_the_service_have_room_for(tmp_path: Path) -> None:
    """Not as many as the job may have: each call that is refused lowers their number, each verdict raises
    it."""
    room = from_tree(
        {
            "reward": {"deadline_s": 5.0, "attempts": 1, "workers": 1, "max_queue": 4},
            "gateway": {"listen": "h:0"},
        },
        "test",
    )
    async with serving(tmp_path / "one", room) as service, job_of(tmp_path / "job", service.url) as job:
        asked = await job.ask_all("h", HOLD, 2 * CALLS)
        await until(lambda: open_items(service) > 4)
        pool = next(iter(job.proxy._pools.pools.values()))
        assert isinstance(pool, ServicePool)
        await until(lambda: pool._limit.calls <= open_items(service))
        await job.system.tell(REWARD, CancelScores(requests=[f"h{number}" for number in range(2 * CALLS)]))
        await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: job.calls == 0 and not open_items(service))
        service.workers.gate.set()  # the one that runs
        low = pool._limit.calls
        for number in range(8):
            assert (await job.ask(f"r{number}", RIGHT)).score == 1.0
        assert pool._limit.calls == low + 8


@given(st.integers(1, 50), st.lists(st.one_of(st.none(), st.integers(1, 50))))
def test_limit_of_calls_follows_the_answers_within_its_bounds(most: int, answers: list[int | None]) -> None:
    """None: a verdict; a number: a call that was refused, of so many."""
    limit = CallLimit(most)
    assert limit.calls == most
    for under_way in answers:
        last = limit.calls
        if under_way is None:
            limit.answered()
            assert limit.calls == min(last + 1, most)
        else:
            limit.refused(under_way)
            assert limit.calls < max(under_way, 2)
            assert limit.calls < last or last == 1
        assert 1 <= limit.calls <= most


async def test_service_that_restarts_is_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path / "one", SERVED) as first:
        listen = first.url.removeprefix("http://")
    async with job_of(tmp_path / "job", first.url) as job:
        asked = job.ask("r", RIGHT)
        await until(lambda: job.calls == 1)
        await asyncio.sleep(0.3)
        assert not asked.done()
        async with serving(tmp_path / "two", SERVED, listen):
            assert (await asked).score == 1.0


async def test_failure_of_the_service_or_of_the_reader_is_no_score(tmp_path: Path, wide: Service) -> None:
    async with job_of(tmp_path / "job", wide.url, deadline_s=0.5) as job:
        failed, unread = await job.ask("fails", FAIL), await job.ask("crashes", CRASH)
        assert (failed.score, failed.status) == (None, "unavailable")
        assert "answered 503" in failed.detail
        assert (
            sum(item.response == "fail" for item in wide.workers.seen if isinstance(item, pipe.TextItem)) >= 2
        )
        assert (unread.score, unread.status) == (None, "lost")
        assert (await job.ask("after", RIGHT)).score == 1.0


async def test_service_without_its_key_ends_the_proxy(
    tmp_path: Path, wide: Service, caplog: pytest.LogCaptureFixture
) -> None:
    share = Share(with_=wide.url, key_env="NO_KEY")
    pool = SharedService(share, "mine", 1)
    async with TestSystem(tmp_path / "job") as system:
        parts = HostParts(make_service=lambda calls: pool)
        settings = RewardSettings.of(from_tree({"reward": {"share": {"with": wide.url}}}, "test"))
        system.spawn(REWARD, lambda: RewardProxy(settings, "", Reader.start, WorkerSpec(), parts=parts))
        score = Score(request="r", split="train", index=0, tokens=bytes(4), batch="b")
        with pytest.raises(AskFailed):
            await system.ask(REWARD, score, Verdict, deadline_s=1.0)
    assert "reward.share.key_env: the reward worker has no variable NO_KEY" in caplog.text
