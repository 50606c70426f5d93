"""`rlctl reward ps`, `top` and `tap` of a service that runs: its real routes, service and proxy."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from small_service import KEY, Service

from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import NOTHING, OK

Command = Callable[..., Awaitable[tuple[int, str]]]
"""Runs `rlctl reward` with these words against the service; exit code and output."""


@pytest.fixture
def reward(service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("GLEANER_API_KEY", KEY)

    async def command(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["reward", *words, "--url", service.url])
        return code, capsys.readouterr().out

    return command


async def held(service: Service, job: str, count: int) -> "list[asyncio.Task[tuple[int, object]]]":
    """Responses of a job that the only worker takes, or that wait for it."""
    body = {"prompt": "1+1?", "response": "hold", "label": "2"}
    before = service.proxy.summary()
    open_ = int(before["queued"]) + int(before["running"])
    asked = [
        asyncio.create_task(service.post("/rm?task=sums", body, headers={"X-Gleaner-Job": job}))
        for _ in range(count)
    ]
    async with asyncio.timeout(30):
        while True:
            now = service.proxy.summary()
            if int(now["queued"]) + int(now["running"]) == open_ + count:
                return asked
            await asyncio.sleep(0.01)


async def test_commands_show_what_runs_and_why_the_rest_waits(service: Service, reward: Command) -> None:
    service.proxy._dispatch.hosts.took("score", 10.0)  # one item a worker
    asked = await held(service, "math", 1) + await held(service, "code-2", 2)

    code, shown = await reward("ps")
    assert code == OK
    for text in ("the reward workers", "WORKER TIME", "math", "code-2"):
        assert text in shown
    code, shown = await reward("top", "--once", "--json")
    (stage,) = json.loads(shown)["stages"]
    assert (code, stage["queued"], stage["running"]) == (OK, 2, 1)
    assert (await reward("top", "--once"))[1].count("code-2") == 1

    code, shown = await reward("tap", "code-2", "--json")
    first = json.loads(shown)
    assert (code, first["state"], first["job"], first["ahead"]) == (OK, "waits", "code-2", 0)
    assert first["why"] == "all workers of score (1) have as many items as they take"
    code, shown = await reward("tap", first["request"])
    assert (code, first["why"] in shown) == (OK, True)
    code, shown = await reward("tap", "math")
    assert (code, "runs in score on the reward workers" in shown) == (OK, True)
    assert await reward("tap", "step-1/0/0") == (NOTHING, "step-1/0/0 is not here\n")

    service.workers.gate.set()
    assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 3
    code, shown = await reward("ps", "--json")
    assert (code, {job["name"]: job["scored"] for job in json.loads(shown)["jobs"]}) == (
        OK,
        {"math": 1, "code-2": 2},
    )
