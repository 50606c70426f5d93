"""`HostOffers`: which offers count, what a result of a host becomes, and when a host is empty."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gleaner.actors.protocol.instances import Withdrawn
from gleaner.actors.protocol.reward import ItemResult, ItemsScored, OfferWorkers, WorkersTaken
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.carried import Carried, packed
from gleaner.actors.reward.case_limits import CaseTimes
from gleaner.actors.reward.host_offers import LOOK_S, MOST_WORKERS, HostOffers
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdicts import (
    BLOB_LOST,
    COMPILE_FAILED,
    LOST,
    NO_ANSWER,
    OK,
    OURS,
    PASSED,
    VERIFIER_FAILED,
)
from gleaner.supervisor import Address, Context, Deferred, Message, Refused

HOST, OTHER = "far/reward", "farther/reward"
PROXY = Address(name="reward/proxy", endpoint="tcp://near", incarnation=3)
TAKES_S = 10.0
"""So long that a worker has one item at a time."""
LEFT = packed(Carried(program=b"\x7fELF"))
MOST_CALLS = 100
"""Looks at the clock: a drain that does not wait ends with an error."""


def actor(host: str = HOST, incarnation: int = 1) -> Address:
    return Address(name=host, endpoint=f"tcp://{host}", incarnation=incarnation)


def result(number: int = 0, status: str = OK, score: float | None = 1.0, **more: Any) -> ItemResult:
    """That of an item's first attempt in its first stage."""
    words: dict[str, Any] = {"attempt": 0, "stage": "compile", "took_s": TAKES_S, **more}
    return ItemResult(id=f"r{number}", status=status, score=score, **words)


@dataclass
class Link:
    """The way to a host."""

    ctx: object
    host: Address
    epoch: str
    given: list[list[str]] = field(default_factory=list)
    """Item ids, by call."""
    cancelled: list[list[str]] = field(default_factory=list)
    has_received: list[tuple[str, int]] = field(default_factory=list)
    closed: bool = False

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        self.given.append([item.id for item in items])

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        self.cancelled.append(list(items))

    def resize(self, stage: str, workers: int) -> None:
        raise AssertionError("nothing is planned")

    def received(self, attempts: Iterable[tuple[str, int]]) -> None:
        self.has_received += attempts

    def close(self) -> None:
        self.closed = True


class Proxy:
    """Offers of a proxy without workers of its own; its clock moves with each look of a drain."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = 0
        self.at_look: dict[int, Callable[[], object]] = {}
        """What happens during the wait before a look at a host that drains, by its number."""
        self.waits: list[tuple[str, str, float, bool]] = []
        self.watched: list[Address] = []
        self.changes = 0
        self.links: list[Link] = []
        self.tasks: list[asyncio.Task[None]] = []
        context = SimpleNamespace(
            incarnation=PROXY.incarnation,
            address=PROXY,
            log=logging.getLogger("offers"),
            now=self.now,
            watch=self.watched.append,
            wait=self.wait,
            background=self.background,
        )
        self.context = cast("Context", context)
        self.dispatch = ItemDispatch(["compile", "run"], 100, 1)
        for stage in self.dispatch.stages:
            self.dispatch.hosts.took(stage, TAKES_S)
        self.offers = HostOffers(self.context, self.dispatch, self.changed)

    def changed(self) -> None:
        self.changes += 1

    def now(self) -> float:
        self.calls += 1
        assert self.calls < MOST_CALLS, "it does not wait between two looks"
        return self.now_s

    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    @asynccontextmanager
    async def wait(self, what: str, *, on: str, deadline_s: float, go_on: bool) -> AsyncIterator[None]:
        self.waits.append((what, on, deadline_s, go_on))
        yield

    async def look(self, after_s: float) -> None:
        self.now_s += after_s
        self.at_look.get(round(self.now_s / LOOK_S), lambda: None)()

    def offer(
        self, host: str = HOST, incarnation: int = 1, workers: int = 1, running: Sequence[str] = ()
    ) -> WorkersTaken:
        return self.offers.take(
            OfferWorkers(
                host=host,
                actor=actor(host, incarnation),
                workers={"compile": workers, "run": workers},
                running=dict.fromkeys(running, 0),
            )
        )

    def submit(self, count: int = 1) -> "list[asyncio.Future[Verdict]]":
        first = len(list(self.dispatch))
        return [
            self.dispatch.submit(
                RewardItem(f"r{number}", "step-1", float(number), "compile", b"", pipeline=("compile", "run"))
            )
            for number in range(first, first + count)
        ]

    def scored(self, *results: ItemResult, host: str = HOST, epoch: str = "") -> None:
        epoch = epoch or next(link.epoch for link in reversed(self.links) if link.host.name == host)
        self.offers.scored(ItemsScored(host=host, epoch=epoch, results=list(results)))

    def hosts_of_items(self) -> dict[str, str]:
        return {item.id: item.host for item in self.dispatch}

    async def drained(self, grace_s: float, host: str = HOST) -> list[Message | Exception]:
        """The answers to a drain of a host, at its end."""
        answers: list[Message | Exception] = []
        deferred = self.offers.drain(host, grace_s)
        assert isinstance(deferred, Deferred)
        deferred.bind(answers.append)
        assert answers == []
        await asyncio.gather(*self.tasks)
        return answers


@pytest.fixture
async def proxy(monkeypatch: pytest.MonkeyPatch) -> Proxy:
    proxy = Proxy()

    def link(ctx: object, host: Address, epoch: str) -> Link:
        assert ctx is proxy.context
        proxy.links.append(Link(ctx, host, epoch))
        return proxy.links[-1]

    monkeypatch.setattr("gleaner.actors.reward.host_offers.RemoteWorkers", link)
    monkeypatch.setattr("gleaner.actors.reward.host_offers.asyncio", SimpleNamespace(sleep=proxy.look))
    return proxy


async def test_host_that_joins_is_watched_and_gets_what_waits(proxy: Proxy) -> None:
    proxy.submit(3)
    taken = proxy.offer(workers=2)
    assert (taken.proxy, len(proxy.offers), proxy.changes) == (PROXY, 1, 1)
    assert proxy.watched == [actor()]
    (link,) = proxy.links
    assert (link.host, link.epoch, link.given) == (actor(), taken.epoch, [["r0", "r1"]])


async def test_no_two_offers_have_the_same_epoch(proxy: Proxy) -> None:
    epochs = [proxy.offer(host).epoch for host in (HOST, OTHER, HOST)]
    assert len(set(epochs)) == 3
    assert all(epoch.startswith(f"{PROXY.incarnation}.") for epoch in epochs), "nor those of two lives"
    assert len(proxy.offers) == 2


@pytest.mark.parametrize("workers", [-1, 0, MOST_WORKERS + 1])
async def test_offer_with_counts_that_cannot_be_is_refused_and_changes_nothing(
    proxy: Proxy, workers: int
) -> None:
    with pytest.raises(Refused, match=f"1 to {MOST_WORKERS} of a stage"):
        proxy.offer(workers=workers)
    assert (len(proxy.offers), len(proxy.dispatch.hosts), proxy.changes, proxy.watched) == (0, 0, 0, [])
    proxy.offer(workers=MOST_WORKERS)
    assert len(proxy.offers) == 1


async def test_host_that_offers_again_keeps_its_items_under_the_new_epoch_only(proxy: Proxy) -> None:
    (verdict,) = proxy.submit()
    older = proxy.offer()
    newer = proxy.offer(running=["r0"])
    assert [link.closed for link in proxy.links] == [True, False]
    assert (proxy.hosts_of_items(), proxy.dispatch.counts["lost_with_host"]) == ({"r0": HOST}, 0)
    assert proxy.links[1].given == [], "nothing is sent twice"
    proxy.offers.require(HOST, newer.epoch)
    with pytest.raises(Refused, match="offer them again"):
        proxy.offers.require(HOST, older.epoch)
    with pytest.raises(Refused, match="offer them again"):
        proxy.scored(result(), epoch=older.epoch)
    assert not verdict.done()
    proxy.scored(result())
    assert verdict.result().score == 1.0


async def test_offer_of_an_unknown_host_is_required_in_vain(proxy: Proxy) -> None:
    epoch = proxy.offer().epoch
    with pytest.raises(Refused, match=OTHER):
        proxy.offers.require(OTHER, epoch)


async def test_newer_life_of_a_host_gets_the_items_of_the_older_one_anew(proxy: Proxy) -> None:
    proxy.submit()
    proxy.offer()
    proxy.changes = 0
    proxy.offer(incarnation=2)
    assert [link.closed for link in proxy.links] == [True, False]
    assert (proxy.links[1].given, proxy.dispatch.counts["lost_with_host"]) == ([["r0"]], 1)
    assert (len(proxy.offers), proxy.changes) == (1, 2), "one has left, one has joined"
    with pytest.raises(Refused, match="#2 replaced this one"):
        proxy.offer(incarnation=1)
    assert not proxy.links[1].closed
    assert proxy.hosts_of_items() == {"r0": HOST}


async def test_results_that_come_together_free_their_workers_together(proxy: Proxy) -> None:
    verdicts = proxy.submit(4)
    proxy.offer(workers=2)
    (link,) = proxy.links
    proxy.scored(result(0, score=0.25), result(1, score=0.75))
    assert [verdict.result().score for verdict in verdicts[:2]] == [0.25, 0.75]
    assert link.given == [["r0", "r1"], ["r2", "r3"]]
    assert link.has_received == [("r0", 0), ("r1", 0)]


async def test_result_that_a_host_was_never_given_counts_for_nothing(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    verdicts = proxy.submit(2)
    proxy.offer()
    proxy.scored(result(0, attempt=4), result(1), result(0, score=0.5))
    assert verdicts[0].result().score == 0.5
    assert not verdicts[1].done()
    assert proxy.links[0].has_received == [("r0", 0)]
    assert proxy.dispatch.counts["foreign_results"] == 2
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line.rpartition(" of ")[2] for line in warnings] == [
        "'r0', attempt 4, which it was never given",
        "'r1', attempt 0, which it was never given",
    ]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (result(score=0.5), Verdict(0.5, OK)),
        (result(status=NO_ANSWER, score=0.0), Verdict(0.0, NO_ANSWER)),
        (result(status=COMPILE_FAILED, score=-1.0, detail="no ;"), Verdict(-1.0, COMPILE_FAILED, "no ;")),
        *((result(status=status, score=None), Verdict(None, status)) for status in sorted(OURS)),
        (result(status=LOST, score=0.5, detail="killed"), Verdict(None, LOST, "killed")),
    ],
)
async def test_verdict_has_the_score_of_the_response_and_none_where_the_failure_is_ours(
    proxy: Proxy, found: ItemResult, expected: Verdict
) -> None:
    (verdict,) = proxy.submit()
    proxy.offer()
    proxy.scored(found)
    assert verdict.result() == expected


@pytest.mark.parametrize(
    "found",
    [
        result(score=None),
        result(score=math.nan),
        result(score=math.inf),
        result(status=NO_ANSWER, score=None),
        result(status="excellent"),
        result(status=PASSED, score=None, carried=b"no program"),
    ],
)
async def test_result_that_no_verifier_makes_is_a_failure_of_its_verifier(
    proxy: Proxy, found: ItemResult
) -> None:
    (verdict,) = proxy.submit()
    proxy.offer()
    proxy.scored(found)
    detail = f"{HOST} sent status {found.status!r}, score {found.score}"
    assert verdict.result() == Verdict(None, VERIFIER_FAILED, detail)


@pytest.mark.parametrize(("right_s", "cut"), [((0.5, 0.25), False), ((), True), ((), False)])
async def test_verdict_has_the_times_of_the_tests_where_there_are_some(
    proxy: Proxy, right_s: tuple[float, ...], cut: bool
) -> None:
    (verdict,) = proxy.submit()
    proxy.offer()
    proxy.scored(result(right_s=right_s, cut=cut))
    assert verdict.result().tests == (CaseTimes(right_s, cut) if right_s or cut else None)


async def test_item_that_passed_a_stage_has_in_the_next_one_what_that_left(proxy: Proxy) -> None:
    (verdict,) = proxy.submit()
    proxy.offer()
    proxy.scored(result(status=PASSED, score=None, carried=LEFT))
    (item,) = proxy.dispatch
    assert (item.stage, item.carried, item.made_on, item.host) == ("run", LEFT, HOST, HOST)
    proxy.scored(result(stage="run", attempt=item.attempts, status=BLOB_LOST, score=None))
    assert (item.stage, item.carried) == ("compile", b""), "it begins again where that is gone"
    assert not verdict.done()
    assert proxy.dispatch.counts["begun_again"] == 1


async def test_items_of_a_host_that_ended_run_elsewhere(proxy: Proxy) -> None:
    proxy.submit()
    proxy.offer()
    proxy.offer(OTHER)
    proxy.changes = 0
    proxy.offers.ended(HOST, 0, "an older life of it")
    proxy.offers.ended("unknown/reward", 1, "killed")
    assert (len(proxy.offers), proxy.changes, proxy.hosts_of_items()) == (2, 0, {"r0": HOST})
    proxy.offers.ended(HOST, 1, "killed")
    assert (len(proxy.offers), proxy.changes, proxy.hosts_of_items()) == (1, 1, {"r0": OTHER})
    assert [link.closed for link in proxy.links] == [True, False]


async def test_suspected_host_gets_no_items_until_it_answers(proxy: Proxy) -> None:
    proxy.offer()
    proxy.offers.suspected(HOST, suspected=True)
    proxy.submit()
    assert proxy.hosts_of_items() == {"r0": ""}
    proxy.offers.suspected(HOST, suspected=False)
    assert proxy.hosts_of_items() == {"r0": HOST}


async def test_workers_that_were_not_offered_are_never_suspected(proxy: Proxy) -> None:
    proxy.dispatch.join("own workers", {"compile": 1}, Link(None, PROXY, ""))
    proxy.offers.suspected("own workers", suspected=True)
    proxy.submit()
    assert proxy.hosts_of_items() == {"r0": "own workers"}


async def test_host_that_may_be_taken_gets_no_items_until_it_stays(proxy: Proxy) -> None:
    proxy.offer()
    proxy.changes = 0
    proxy.offers.allow(HOST, allowed=False)
    proxy.submit()
    assert (proxy.hosts_of_items(), proxy.changes) == ({"r0": ""}, 1)
    proxy.offers.suspected(HOST, suspected=True)
    proxy.offers.suspected(HOST, suspected=False)
    assert proxy.hosts_of_items() == {"r0": ""}, "that it answers does not let it stay"
    proxy.offers.allow(HOST, allowed=True)
    assert (proxy.hosts_of_items(), proxy.changes) == ({"r0": HOST}, 2)


async def test_empty_host_is_drained_at_once_and_gets_nothing_new(proxy: Proxy) -> None:
    proxy.offer()
    proxy.changes = 0
    assert await proxy.drained(5.0) == [Withdrawn(handed_over=0)]
    assert (proxy.now_s, proxy.changes, proxy.links[0].cancelled) == (0.0, 1, [])
    proxy.submit()
    assert proxy.hosts_of_items() == {"r0": ""}


async def test_drain_waits_for_the_last_item(proxy: Proxy) -> None:
    (verdict, _) = proxy.submit(2)
    proxy.offer()
    proxy.at_look = {2: lambda: proxy.scored(result())}
    assert await proxy.drained(5.0) == [Withdrawn(handed_over=0)]
    assert proxy.now_s == pytest.approx(2 * LOOK_S)
    assert proxy.waits == [("its last items", HOST, 5.0 + LOOK_S, True)]
    assert (verdict.done(), proxy.hosts_of_items(), proxy.links[0].cancelled) == (True, {"r1": ""}, [])


async def test_items_left_at_the_end_of_the_grace_are_cancelled_there_and_run_elsewhere(proxy: Proxy) -> None:
    proxy.submit(2)
    proxy.offer(workers=2)
    proxy.at_look = {1: lambda: proxy.offer(OTHER)}
    assert await proxy.drained(2 * LOOK_S) == [Withdrawn(handed_over=2)]
    assert proxy.now_s == 2 * LOOK_S, "no longer than the grace"
    assert proxy.links[0].cancelled == [["r0", "r1"]]
    assert proxy.hosts_of_items() == {"r0": OTHER, "r1": ""}


async def test_drain_ends_with_nothing_handed_over_when_the_host_stays(proxy: Proxy) -> None:
    proxy.submit()
    proxy.offer()
    proxy.at_look = {1: lambda: proxy.offers.allow(HOST, allowed=True)}
    assert await proxy.drained(5.0) == [Withdrawn(handed_over=0)]
    assert (proxy.now_s, proxy.links[0].cancelled) == (LOOK_S, [])
    assert proxy.hosts_of_items() == {"r0": HOST}


async def test_drain_ends_when_the_host_is_gone(proxy: Proxy) -> None:
    proxy.submit()
    proxy.offer()
    proxy.offer(OTHER)
    proxy.at_look = {1: lambda: proxy.offers.ended(HOST, 1, "killed")}
    assert await proxy.drained(5.0) == [Withdrawn(handed_over=0)]
    assert (proxy.now_s, proxy.hosts_of_items()) == (LOOK_S, {"r0": OTHER})
