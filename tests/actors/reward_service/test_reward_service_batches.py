"""Batches that clients of a reward service name: which items they have, their order and their end."""

import asyncio
from typing import Any

import pytest
from small_service import Service

from gleaner.actors.protocol.reward import JOB_HEADER
from gleaner.actors.reward import pipe
from gleaner.actors.reward_service.client_batches import MOST_NAMED_ITEMS, ClientBatches, named


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
