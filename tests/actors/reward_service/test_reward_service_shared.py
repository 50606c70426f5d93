"""A reward service that jobs of Gleaner share: verdicts with their statuses, waits, accounts by job."""

import asyncio

import pytest
from small_service import KEY, Service

from gleaner.actors.reward import pipe
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.service_pool import READ_S
from gleaner.actors.reward.stage_pools import StageLimits, _own_limits
from gleaner.actors.reward.stages import SCORE, Pipelines
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.port import BadVerifier
from gleaner.actors.reward.verifiers.shared_service import SharedVerifier
from gleaner.configs.load import load
from gleaner.configs.schema import Share

TWO = Entry(question="1+1?", answer="2", info={"level": 3})


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY)


def share(url: str, deadline_s: float = 30.0) -> Share:
    return Share(with_=url, key_env="THE_KEY", deadline_s=deadline_s)


async def scored(verifier: SharedVerifier, *responses: str) -> list[Judgement]:
    """On a thread, as in a worker: the service is on this loop."""

    def score() -> list[Judgement]:
        try:
            return verifier.score_all([(TWO, response) for response in responses])
        finally:
            verifier.close()

    return await asyncio.to_thread(score)


async def test_jobs_share_a_service_with_an_account_each(service: Service) -> None:
    one, two = (SharedVerifier("sums", share(service.url), name) for name in ("one", "two"))
    assert [found.score for found in await scored(one, "2", "3")] == [1.0, 0.0]
    assert [found.score for found in await scored(two, "2")] == [1.0]
    (_, _, last) = service.workers.seen
    assert isinstance(last, pipe.TextItem)
    assert (last.task, last.response) == ("sums", "2")
    state = await service.http.get(f"{service.url}/state")
    jobs = {job["name"]: job["scored"] for job in (await state.json())["jobs"]}
    assert jobs == {"one": 2, "two": 1}


async def test_full_queue_of_the_service_is_waited_for(service: Service) -> None:
    """Its limit is 4 items; the job has 12."""
    waits = asyncio.create_task(scored(SharedVerifier("sums", share(service.url), "one"), *["hold"] * 12))
    await asyncio.sleep(0.5)
    assert not waits.done()
    service.workers.gate.set()
    assert [found.status for found in await waits] == ["ok"] * 12


async def test_service_without_a_verdict_gives_one_of_ours(service: Service) -> None:
    away = SharedVerifier("sums", share(service.url, deadline_s=1.0), "one")
    (found,) = await scored(away, "fail")
    assert found.status == "unavailable"
    assert "no verdict within 1 s: answered 503" in found.detail
    (unknown,) = await scored(SharedVerifier("none", share(service.url), "one"), "2")
    assert unknown.status == "verifier_failed"
    assert "no task is named" in unknown.detail
    (gone,) = await scored(SharedVerifier("sums", share("http://127.0.0.1:9", 1.0), "one"), "2")
    assert gone.status == "unavailable"


async def test_unusable_share_is_refused_at_the_start(service: Service) -> None:
    with pytest.raises(BadVerifier, match="expected a URL"):
        SharedVerifier("sums", Share(with_="cluster"), "one").open()
    with pytest.raises(BadVerifier, match="no variable NO_KEY"):
        SharedVerifier("sums", Share(with_=service.url, key_env="NO_KEY"), "one").open()


@pytest.mark.parametrize(("deadline_s", "reads_s"), [(2.0, 8.0), (60.0, READ_S)])
def test_worker_that_makes_texts_has_no_more_time_than_for_a_problem(
    deadline_s: float, reads_s: float
) -> None:
    settings = ["reward.share.with=http://127.0.0.1:1", f"reward.deadline_s={deadline_s:g}"]
    config = load("quickstart", [*settings, "reward.share.deadline_s=600"])
    limits = StageLimits.of(config.reward, Pipelines(config.task, config.reward), {SCORE: 4})
    reader = _own_limits(limits, SCORE, served=True)
    assert (reader.workers, reader.deadline_s) == (1, reads_s)


async def test_problem_of_a_job_arrives_whole(service: Service) -> None:
    body = {
        "task": "sums",
        "problem": {"question": "?", "answer": "2", "info": {"level": 3}},
        "response": "2",
    }
    assert await service.post("/score", body) == (200, {"score": 1.0, "status": "ok", "detail": ""})
    status, answer = await service.post("/score", {**body, "problem": {"question": 1}})
    assert (status, answer["error"]["param"]) == (400, "problem.question")
    status, answer = await service.post("/score", {**body, "response": "x" * 2**21})
    assert (status, answer["error"]["param"]) == (413, "response")
    tasks = await service.http.get(f"{service.url}/tasks")
    assert await tasks.json() == {"tasks": ["sums", "words", "programs"]}
