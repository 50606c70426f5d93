"""Processes as a user starts them: engines of the builtin kind, and `rlctl gateway` in front of them."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.actors.gateway.clients.everyone import ALL, Client
from tests.actors.gateway.clients.rollout import Rollout

WAIT_S = 240.0


class Processes:
    """Processes of one test; all end with the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start `rlctl ARGUMENTS`; its output goes into a file."""
        with (self.directory / f"{name}.out").open("ab") as out:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "gleaner.rlctl", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def printed(self, name: str) -> str:
        return (self.directory / f"{name}.out").read_text()

    def url(self, name: str) -> str:
        """The URL at which the process reports to serve."""
        self.wait(lambda: "http://" in self.serving(name), f"{name} to serve")
        found = re.search(r"http://[0-9.]+:\d+", self.serving(name))
        assert found is not None
        return found[0]

    def serving(self, name: str) -> str:
        lines = [line for line in self.printed(name).splitlines() if line.startswith("serving")]
        return lines[-1] if lines else ""

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def end(self, name: str) -> int:
        """Send SIGTERM and return the exit code."""
        self._running[name].terminate()
        return self._running[name].wait(WAIT_S)

    def alive(self, name: str) -> bool:
        return self._running[name].poll() is None

    def wait(self, condition: Callable[[], object], what: str) -> None:
        until_s = time.monotonic() + WAIT_S
        while not condition():
            ended = [name for name, one in self._running.items() if one.poll() not in (None, -9)]
            assert not ended, f"{what}: {ended} ended: {[self.printed(name) for name in ended]}"
            assert time.monotonic() < until_s, f"{what}: {[self.printed(name) for name in self._running]}"
            time.sleep(0.05)

    def close(self) -> None:
        for process in self._running.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                for below in psutil.Process(process.pid).children(recursive=True):
                    below.kill()
            process.kill()
            process.wait()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return json.loads(answer.read() or b"null")


def healthy(url: str) -> list[str]:
    """URLs of the engines that serve."""
    try:
        listed = get(f"{url}/workers?engines=1")
    except (urllib.error.URLError, OSError):
        return []
    return [worker["url"] for worker in listed["workers"] if worker["is_healthy"]]


def loads(url: str) -> dict[str, int]:
    """Requests by the URL of the engine that has them."""
    listed = get(f"{url}/workers?engines=1")
    return {worker["url"]: worker["load"] for worker in listed["workers"]}


def refused(url: str) -> dict[str, str]:
    """Reasons of refused engines, by their URLs."""
    listed = get(f"{url}/workers?engines=1")["workers"]
    return {worker["url"]: worker["refused"] for worker in listed if worker["refused"]}


def post(url: str, body: object, method: str = "POST") -> Any:
    """Raises HTTPError."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


async def greedy(url: str, prompt: list[int], limit: int, whole: bool = False, rid: str | None = None) -> Any:
    """Tokens and log-probs of a greedy response, or the whole answer."""
    body: dict[str, object] = {"input_ids": prompt, "return_logprob": True}
    body["sampling_params"] = {"max_new_tokens": limit, "temperature": 0}
    if rid is not None:
        body["rid"] = rid
    answer = await asyncio.to_thread(post, f"{url}/generate", body)
    rows = answer["meta_info"]["output_token_logprobs"]
    return answer if whole else (answer["output_ids"], [row[0] for row in rows])


class Streamed:
    """A greedy response as it arrives: `chunk` is the newest chunk and contains all earlier ones."""

    def __init__(self, url: str, prompt: list[int], limit: int) -> None:
        self.chunk: Any = {"output_ids": []}
        self._body = {
            "input_ids": prompt,
            "stream": True,
            "sampling_params": {"max_new_tokens": limit, "temperature": 0},
        }
        self.task = asyncio.create_task(self._read(f"{url}/generate"))

    async def begun(self, least: int = 5) -> None:
        """Wait until so many tokens arrived."""
        async with asyncio.timeout(WAIT_S):
            while len(self.chunk["output_ids"]) < least:
                await asyncio.sleep(0.01)

    async def _read(self, url: str) -> Any:
        async with (
            httpx.AsyncClient(timeout=WAIT_S) as client,
            client.stream("POST", url, json=self._body) as response,
        ):
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self.chunk = json.loads(line[6:])
        return self.chunk


STEADY_S = 5.0
"""After this time without more requests under way, the maximum is reached."""


async def all_clients(
    url: str,
    model: str,
    prompts: Sequence[list[int]],
    limit: int,
    strike: Callable[[], object] | None = None,
    clients: dict[str, Client] = ALL,
) -> dict[str, list[Rollout]]:
    """Roll out every prompt with every client at once; call `strike` when all requests are under way."""
    asked = {
        name: [asyncio.create_task(client(url, model, prompt, limit)) for prompt in prompts]
        for name, client in clients.items()
    }
    if strike is not None:
        await _under_way(url, len(clients) * len(prompts))
        await asyncio.to_thread(strike)
    return {name: [(await one).check(limit) for one in tasks] for name, tasks in asked.items()}


async def _under_way(url: str, count: int) -> None:
    """Wait until so many requests are with engines, or fewer than before, or for a while no more than before.

    On a busy machine the first requests end before the last ones start."""
    most, most_s, until_s = 0, 0.0, time.monotonic() + WAIT_S
    while (now_s := time.monotonic()) < until_s:
        now = sum((await asyncio.to_thread(loads, url)).values())
        if now > most:
            most, most_s = now, now_s
        fewer = now < most and 4 * most >= count
        if now >= 0.8 * count or fewer or (now and now_s - most_s > STEADY_S):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the requests were never under way")
