"""Reward service over HTTP: each wire, and what is refused, cancelled or has no score."""

import asyncio
import contextlib
from typing import Any

import aiohttp
import msgspec
import pytest
from small_service import Service

from gleaner.actors.protocol.reward import JobState, RewardState
from gleaner.actors.reward import pipe
from gleaner.actors.reward.assignment.jobs import JobLimits, RewardJobs
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward_service import client_jobs

SLIME = {"prompt": "1+1?", "response": "2", "label": "2"}
RM = "/rm?task=sums"


async def test_every_wire_is_answered_in_its_own_form(service: Service) -> None:
    assert await service.post(RM, SLIME) == (200, 1.0)
    status, answer = await service.post(f"{RM}&form=object", SLIME)
    assert (status, answer) == (200, {"score": 1.0, "status": "ok", "detail": ""})
    query = {"query": ["1+1?2", "1+2?2"], "prompts": ["1+1?", "1+2?"], "labels": ["2", "3"]}
    status, answer = await service.post("/get_reward?task=words", query)
    assert (status, answer["rewards"], answer["scores"]) == (200, [1.0, 0.0], [1.0, 0.0])
    verl = {"data_source": "words", "solution_str": "2", "ground_truth": "2", "extra_info": {"index": 1}}
    status, answer = await service.post("/compute_score", verl)
    assert (status, answer["score"]) == (200, 1.0)
    seen = [item for item in service.workers.seen if isinstance(item, pipe.TextItem)]
    assert [item.task for item in seen] == ["sums", "sums", "words", "words", "words"]
    entry = msgspec.json.decode(seen[-1].entry, type=Entry)
    assert (entry.answer, entry.info) == ("2", {"index": 1})


async def test_label_of_a_program_task_is_its_tests(service: Service) -> None:
    body = {"data_source": "programs", "solution_str": "r", "ground_truth": '{"inputs": ["1"]}'}
    assert (await service.post("/compute_score", body))[0] == 200
    (item,) = service.workers.seen
    assert isinstance(item, pipe.TextItem)
    assert msgspec.json.decode(item.entry, type=Entry).tests == ({"inputs": ["1"]},)
    status, answer = await service.post("/compute_score", {**body, "ground_truth": "no tests"})
    assert (status, answer["error"]["param"]) == (400, "body")


async def test_roll_task_is_submitted_then_polled_or_awaited(service: Service) -> None:
    task = {"prompt": "1+1?", "response": "hold", "reward_info": {"answer": "hold"}, "reward_manager": "sums"}
    status, submitted = await service.post(
        "/v1/submit_task", {**task, "experiment_id": "e", "global_step": 3}
    )
    assert (status, submitted["errcode"]) == (200, 0)
    asked = {"reward_request_id": submitted["reward_request_id"]}
    status, answer = await service.post("/v1/task_result", asked)
    assert (status, answer["errcode"]) == (200, 1)
    waiting = asyncio.create_task(service.post("/v1/task_result", {**asked, "wait_s": 30.0}))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    service.workers.gate.set()
    status, answer = await waiting
    assert (status, answer["errcode"], answer["reward_score"]) == (200, 0, 1.0)
    assert answer["end_time"] >= answer["start_time"] > 0
    body = msgspec.json.encode(asked)
    async with service.http.get(f"{service.url}/v1/task_result", data=body) as again:
        assert msgspec.json.decode(await again.read()) == answer, "ROLL polls by GET with a body"
    assert (await service.post("/v1/task_result", {"reward_request_id": "x"}))[0] == 404


async def test_outage_is_503_with_reason_never_a_score(service: Service) -> None:
    async with service.http.post(f"{service.url}{RM}", json={**SLIME, "response": "fail"}) as answer:
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1
        error = msgspec.json.decode(await answer.read())["error"]
    assert error["message"] == "unavailable: the judge is away"
    assert error["retryable"] is True
    query = {"query": ["a2", "afail"], "prompts": ["a", "a"], "labels": ["2", "2"]}
    assert (await service.post("/get_reward?task=sums", query))[0] == 503, "none of a list is made up"
    roll = {"response": "fail", "reward_manager": "sums"}
    _, submitted = await service.post("/v1/submit_task", roll)
    asked = {"reward_request_id": submitted["reward_request_id"], "wait_s": 30.0}
    assert (await service.post("/v1/task_result", asked))[0] == 503


async def test_program_is_run_and_its_output_returned(service: Service) -> None:
    status, answer = await service.post("/run_code", {"code": "c", "language": "py", "stdin": "42"})
    assert (status, answer["status"], answer["run_result"]["stdout"]) == (200, "Success", "42")
    assert answer["run_result"]["execution_time"] == 0.5
    assert (await service.post("/run_code", {"code": "fail", "language": "py"}))[0] == 503
    with contextlib.suppress(TimeoutError):
        body = {"code": "hold", "language": "py"}
        await service.post("/run_code", body, timeout=aiohttp.ClientTimeout(total=0.2))
    async with asyncio.timeout(30):
        while "programs" in service.proxy.summary():
            await asyncio.sleep(0.01)
    assert service.actor.summary()["items"] == 0


async def test_full_queue_is_429_with_retry_after(service: Service) -> None:
    holding = [asyncio.create_task(service.post(RM, {**SLIME, "response": "hold"})) for _ in range(100)]
    done, _ = await asyncio.wait(holding, timeout=30.0, return_when=asyncio.FIRST_COMPLETED)
    status, answer = done.pop().result()
    assert (status, answer["error"]["type"]) == (429, "QueueFull"), answer
    assert "at most 4 may" in answer["error"]["message"]
    service.workers.gate.set()
    statuses = {status for status, _ in await asyncio.gather(*holding)}
    assert statuses == {200, 429}


async def test_client_that_disconnects_cancels_its_item(service: Service) -> None:
    with contextlib.suppress(TimeoutError):
        await service.post(RM, {**SLIME, "response": "hold"}, timeout=aiohttp.ClientTimeout(total=0.2))
    async with asyncio.timeout(30):
        while service.proxy.summary()["running"] or service.actor.summary()["batches"]:
            await asyncio.sleep(0.01)
    assert service.actor.summary()["cancelled"] == 1
    service.workers.gate.set()
    assert await service.post(RM, SLIME) == (200, 1.0)


async def test_key_is_required_but_for_health_and_document(service: Service) -> None:
    async with aiohttp.ClientSession() as stranger:
        async with stranger.post(f"{service.url}{RM}", json=SLIME) as answer:
            assert answer.status == 401
            assert "this reward service needs an API key" in await answer.text()
        for path in ("/health", "/openapi.json"):
            async with stranger.get(f"{service.url}{path}") as answer:
                assert answer.status == 200


DEEP = b'{"prompt": "a", "response": "r", "label": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (RM, b"no json", 400, "body"),
        (RM, b"\xff\xfe", 400, "body"),
        (RM, b"[]", 400, "body"),
        (RM, b'{"prompt": "a", "response": "r", "label": NaN}', 400, "body"),
        (RM, DEEP, 400, "body"),
        (RM, {"prompt": "a", "response": 3}, 400, "response"),
        (RM, {"prompt": 3, "response": "r"}, 400, "prompt"),
        (RM, {"prompt": "a"}, 400, "response"),
        (RM, {"prompt": "a", "response": "r", "info": {"tests": 3}}, 400, "tests"),
        (RM, {"prompt": "a", "response": "r", "info": {"refused": 1}}, 400, "body"),
        (RM, {"prompt": "a", "response": "r" * (2**20 + 1)}, 413, "response"),
        (RM, b" " * (17 * 2**20), 413, None),
        ("/rm", SLIME, 400, "task"),
        ("/rm?task=none", SLIME, 400, "task"),
        ("/rm?form=text", SLIME, 400, "form"),
        ("/v1/submit_task?task=sums", {"response": "r", "timeout": 0}, 400, "timeout"),
        ("/v1/task_result", {"reward_request_id": "a", "wait_s": 1e9}, 400, "wait_s"),
        ("/v1/task_result", {}, 400, "reward_request_id"),
        ("/run_code", {"code": "c", "language": "rust"}, 400, "language"),
        ("/run_code", {"code": "c", "language": "py", "files": {"a": "b"}}, 400, "files"),
        ("/run_code", {"code": "c", "language": "py", "run_timeout": 1e9}, 400, "run_timeout"),
        ("/run_code", {"code": "c" * (2**20 + 1), "language": "py"}, 413, "code"),
        ("/get_reward", {"query": "a", "prompts": []}, 400, "query"),
    ],
)
async def test_garbage_is_refused_with_the_field_and_reason(
    service: Service, path: str, body: Any, status: int, param: str | None
) -> None:
    got, answer = await service.post(path, body)
    assert (got, answer["error"].get("param")) == (status, param)
    assert answer["error"]["message"]
    assert not service.workers.seen, "nothing of it reaches a worker"


def job(name: str) -> dict[str, Any]:
    return {"headers": {"X-Gleaner-Job": name}}


async def test_jobs_have_accounts_of_their_own(service: Service) -> None:
    assert await service.post(RM, SLIME, **job("math")) == (200, 1.0)
    assert await service.post(RM, SLIME, **job("math")) == (200, 1.0)
    assert await service.post(RM, SLIME) == (200, 1.0)
    assert (await service.post(RM, {**SLIME, "response": "fail"}, **job("sick")))[0] == 503
    async with service.http.get(f"{service.url}/state") as answer:
        state = msgspec.json.decode(await answer.read(), type=RewardState)
    scored = {one.name: one.scored for one in state.jobs}
    (own,) = {name for name in scored if name.startswith("key-")}
    assert scored == {"math": 2, own: 1, "sick": 0}
    async with service.http.get(f"{service.url}/metrics") as answer:
        text = await answer.text()
    assert 'gleaner_reward_job_scored_items{job="math"} 2.0' in text
    assert 'gleaner_reward_job_items{job="math",state="queued"} 0.0' in text
    assert "gleaner_gateway_calls_total" in text


def test_metrics_have_the_guaranteed_workers_of_each_job() -> None:
    shared = JobState(
        name="code", weight=1.0, queued=0, running=0, scored=0, worker_s={}, lost=0, refused=0,
        sick_for_s=0.0, guaranteed=4,
    )  # fmt: skip
    text = client_jobs.metrics([shared, msgspec.structs.replace(shared, name="math", guaranteed=0)]).decode()
    assert 'gleaner_reward_job_guaranteed_workers{job="code"} 4.0' in text
    assert 'gleaner_reward_job_guaranteed_workers{job="math"} 0.0' in text


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "../up"])
async def test_job_that_is_no_name_is_refused(service: Service, name: str) -> None:
    status, answer = await service.post(RM, SLIME, **job(name))
    assert (status, answer["error"]["param"]) == (400, "X-Gleaner-Job")
    assert not service.workers.seen


async def test_full_queue_of_a_job_is_429_for_it_alone(service: Service) -> None:
    service.proxy._dispatch.jobs = service.proxy._dispatch.items._jobs = RewardJobs(JobLimits(max_queued=1))
    held = {**SLIME, "response": "hold"}
    many = [asyncio.create_task(service.post(RM, held, **job("many"))) for _ in range(12)]
    done, waiting = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
    assert {one.result()[0] for one in done} == {429}
    other = asyncio.create_task(service.post(RM, held, **job("other")))
    await asyncio.sleep(0.05)
    assert not other.done()
    service.workers.gate.set()
    assert (await other)[0] == 200
    assert {(await one)[0] for one in waiting} <= {200, 429}
