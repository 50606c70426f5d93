"""Batches that clients of a reward service name: which items they have, their order and their end."""

import asyncio
from typing import Any

import pytest
from small_service import Service

from gleaner.actors.protocol.reward import JOB_HEADER
from gleaner.actors.reward import pipe
from gleaner.actors.reward_service.asking import QueueFull
from gleaner.actors.reward_service.client_batches import (
    IDLE_S,
    MOST_ANNOUNCED,
    MOST_NAMED_ITEMS,
    MOST_OF_ALL,
    ClientBatches,
    named,
)


def item(response: str, batch: str | None) -> dict[str, Any]:
    """A body of `POST /score`."""
    body = {"task": "sums", "problem": {"question": "1+1?", "answer": "2"}, "response": response}
    return body if batch is None else {**body, "batch": batch}


def asked(service: Service, job: str, response: str, batch: str | None) -> "asyncio.Task[tuple[int, Any]]":
    """A request for a verdict."""
    headers = {JOB_HEADER: job}
    return asyncio.create_task(service.post("/score", item(response, batch), headers=headers))


async def arrived(service: Service, items: int) -> None:
    """Wait until the service has so many open items."""
    async with asyncio.timeout(10.0):
        while sum(int(service.proxy.summary()[name]) for name in ("queued", "running")) != items:
            await asyncio.sleep(0.01)


async def batches(service: Service) -> dict[str, dict[str, Any]]:
    """The active batches by name, as `GET /state` has them."""
    async with service.http.get(f"{service.url}/state") as answer:
        return {batch["name"]: batch for batch in (await answer.json())["batches"]}


async def until_gone(service: Service, name: str) -> None:
    """Wait until a batch is not active."""
    async with asyncio.timeout(10.0):
        while name in await batches(service):
            await asyncio.sleep(0.01)


def test_named_batch_has_the_items_of_its_name_beside_those_without() -> None:
    known = ClientBatches()
    step, bare, other = (
        known.arrive("k", named("one", "step-1")),
        known.arrive("k"),
        known.arrive("k", named("one", "step-2")),
    )
    assert known.arrive("other key", "one/step-1") is step
    assert (step.name, other.name, bare.name) == ("one/step-1", "one/step-2", "k-1")
    assert [known.left(batch) for batch in (step, step, bare, other)] == [False, True, True, True]
    assert len(known) == 0
    assert known.arrive("k").name == "k-2"


def test_item_beyond_the_limit_of_a_named_batch_has_one_without_a_name() -> None:
    known = ClientBatches()
    names = [known.arrive("k", "one/step-1").name for _ in range(MOST_NAMED_ITEMS + 1)]
    assert set(names[:-1]) == {"one/step-1"}
    assert names[-1] == "k-1"


async def test_items_of_a_job_are_in_the_batches_that_it_names(service: Service) -> None:
    held = [
        asked(service, job, "hold", batch)
        for job, batch in (("one", "step-1"), ("one", "step-2"), ("two", "step-1"), ("one", "step-1"))
    ]
    await arrived(service, 4)
    found = {name: batch["arrived"] for name, batch in (await batches(service)).items()}
    assert found == {"one/step-1": 2, "one/step-2": 1, "two/step-1": 1}
    held[1].cancel()
    await until_gone(service, "one/step-2")
    service.workers.gate.set()
    assert [status for status, _ in await asyncio.gather(held[0], *held[2:])] == [200] * 3
    await until_gone(service, "one/step-1")


async def test_item_of_the_batch_that_is_complete_first_is_scored_first(service: Service) -> None:
    """Of one job: the last long batch took 0.5 s, the last short one none."""
    for batch, response in (("long-1", "hold"), ("short-1", "2")):
        first = asked(service, "one", response, batch)
        await asyncio.sleep(0.5)
        service.workers.gate.set()
        await first
        await until_gone(service, f"one/{batch}")
    service.workers.gate.clear()
    waits = [asked(service, "one", "hold", "busy-1")]
    await arrived(service, 1)
    for number, (response, batch) in enumerate((("l", "long-2"), ("s", "short-2"))):
        waits.append(asked(service, "one", response, batch))
        await arrived(service, number + 2)
    service.workers.gate.set()
    await asyncio.gather(*waits)
    seen = [one.response for one in service.workers.seen if isinstance(one, pipe.TextItem)]
    assert seen[-2:] == ["s", "l"]


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "x" * 101, "ä", "a\n", 3])
async def test_name_of_a_batch_that_is_none_is_refused(service: Service, name: object) -> None:
    status, answer = await service.post("/score", {**item("2", None), "batch": name})
    assert (status, answer["error"]["param"]) == (400, "batch")


async def test_client_without_batches_is_answered_as_before(service: Service) -> None:
    held = [asked(service, "one", "hold", None), asked(service, "one", "hold", None)]
    await arrived(service, 2)
    ((name, batch),) = (await batches(service)).items()
    assert batch["arrived"] == 2
    assert "/" not in name
    service.workers.gate.set()
    assert [status for status, _ in await asyncio.gather(*held)] == [200, 200]
    await until_gone(service, name)


# -- announced batches --


async def announce(service: Service, job: str, batch: str, **of: Any) -> tuple[int, Any]:
    """`POST /batches` of a job."""
    return await service.post("/batches", {"batch": batch, **of}, headers={JOB_HEADER: job})


def test_announced_batch_goes_on_without_items_until_it_is_ended() -> None:
    known = ClientBatches()
    known.announce("one", "one/step-1", 0.0)
    first = known.arrive("k", "one/step-1")
    assert not known.left(first)
    later = known.arrive("k", "one/step-1")
    assert later is first
    known.end("one/step-1")
    known.end("one/step-1")
    again = known.arrive("k", "one/step-1")
    assert (again is first, known.left(later), len(known)) == (False, False, 1)
    assert known.left(again)


def test_item_of_an_ended_batch_does_not_end_the_next_one_of_its_name() -> None:
    known = ClientBatches()
    old = known.arrive("k", "one/step-1")
    known.end("one/step-1")
    new = known.arrive("k", "one/step-1")
    assert not known.left(old)
    assert (len(known), known.left(new)) == (1, True)


def test_batch_with_items_is_announced_later() -> None:
    known = ClientBatches()
    early = known.arrive("k", "one/step-1")
    known.announce("one", "one/step-1", 0.0)
    assert not known.left(early)
    assert len(known) == 1


def test_announcement_is_refused_when_too_many_batches_are_open() -> None:
    known = ClientBatches()
    for number in range(MOST_ANNOUNCED):
        known.announce("one", f"one/step-{number}", 0.0)
    with pytest.raises(QueueFull, match="16 announced batches of job one are open"):
        known.announce("one", "one/step-16", 0.0)
    known.announce("one", "one/step-3", 0.0)
    known.announce("two", "two/step-16", 0.0)
    known.end("one/step-3")
    known.announce("one", "one/step-16", 0.0)
    for number in range(MOST_OF_ALL - len(known)):
        known.announce(f"job-{number}", f"job-{number}/step-1", 0.0)
    with pytest.raises(QueueFull, match="1024 announced batches of all jobs are open"):
        known.announce("last", "last/step-1", 0.0)


def test_announced_batch_is_forgotten_when_its_client_may_be_gone() -> None:
    known = ClientBatches()
    for name in ("idle", "seen", "busy"):
        known.announce("one", f"one/{name}", 0.0)
    known.arrive("k", "one/busy", 1.0)
    known.left(known.arrive("k", "one/seen", 1.0))
    known.arrive("k", "", 0.0)
    assert known.forget_idle(IDLE_S) == []
    assert known.forget_idle(IDLE_S + 1.0) == ["one/idle"]
    assert known.forget_idle(IDLE_S + 2.0) == ["one/seen"]


async def test_announced_batch_is_expected_from_then_on_until_its_end(service: Service) -> None:
    assert await announce(service, "one", "step-1", expected=3) == (200, {"batch": "one/step-1"})
    assert (await announce(service, "one", "step-1", expected=2))[0] == 200
    found = await batches(service)
    assert {name: (batch["expected"], batch["arrived"]) for name, batch in found.items()} == {
        "one/step-1": (3, 0)
    }
    status, _ = await asked(service, "one", "2", "step-1")
    assert status == 200
    (batch,) = (await batches(service)).values()
    assert (batch["expected"], batch["arrived"], batch["scored"]) == (3, 1, 1)
    assert batch["age_s"] >= 0.0
    assert (await announce(service, "two", "step-1", ended=True))[0] == 200
    assert set(await batches(service)) == {"one/step-1"}
    assert await announce(service, "one", "step-1", ended=True) == (200, {"batch": "one/step-1"})
    await until_gone(service, "one/step-1")
    assert service.actor.summary()["batches"] == 0


async def test_end_of_a_batch_cancels_its_items_and_those_alone(service: Service) -> None:
    await announce(service, "one", "step-1", expected=2)
    held = [
        asked(service, job, "hold", batch)
        for job, batch in (("one", "step-1"), ("one", "step-2"), ("two", "step-1"))
    ]
    await arrived(service, 3)
    await announce(service, "one", "step-1", ended=True)
    status, answer = await held[0]
    assert (status, answer["error"]["retryable"]) == (503, True)
    assert "not needed any more" in answer["error"]["message"]
    await arrived(service, 2)
    service.workers.gate.set()
    assert [status for status, _ in await asyncio.gather(*held[1:])] == [200, 200]


async def test_announcement_beyond_the_limit_is_answered_429_until_one_ends(service: Service) -> None:
    for number in range(MOST_ANNOUNCED):
        assert (await announce(service, "one", f"step-{number}", expected=1))[0] == 200
    status, answer = await announce(service, "one", "step-16", expected=1)
    assert (status, answer["error"]["type"]) == (429, "QueueFull")
    assert (await announce(service, "two", "step-16", expected=1))[0] == 200
    await announce(service, "one", "step-0", ended=True)
    assert (await announce(service, "one", "step-16", expected=1))[0] == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"expected": 1}, "batch"),
        ({"batch": "a/b", "expected": 1}, "batch"),
        ({"batch": "b"}, "expected"),
        ({"batch": "b", "expected": -1}, "expected"),
        ({"batch": "b", "expected": MOST_NAMED_ITEMS + 1}, "expected"),
        ({"batch": "b", "ended": 1}, "ended"),
    ],
)
async def test_announcement_that_cannot_be_used_is_refused(
    service: Service, body: dict[str, Any], field: str
) -> None:
    status, answer = await service.post("/batches", body)
    assert (status, answer["error"]["param"]) == (400, field)
    assert not await batches(service)
