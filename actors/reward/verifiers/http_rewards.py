"""`HttpVerifier`: verifier `http`, an external service that scores responses.

Runs in the reward worker, without a sandbox: nothing of a response is read here. A failure of the service is
a status of ours, never a score.
"""

import asyncio
import random
from collections.abc import Sequence

import aiohttp
import msgspec

from gleaner.actors.protocol.reward import JOB_HEADER
from gleaner.actors.reward import verdicts
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers import http_calls, http_wires
from gleaner.actors.reward.verifiers.call_forms import FunctionResult, Item
from gleaner.actors.reward.verifiers.functions import MAX_DETAIL, item_for
from gleaner.actors.reward.verifiers.http_calls import Unavailable
from gleaner.actors.reward.verifiers.http_wires import BadAnswer
from gleaner.actors.reward.verifiers.port import BadVerifier, VerifierSpec
from gleaner.configs.schema import Http

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
"""Between two tries of one call: twice as long each time, and up to as much again by chance."""
MAX_TRIES = 20
POLL_S = 0.5
"""Between two looks at a task of ROLL's services."""


class HttpVerifier:
    """A `Verifier`; the parameters are the settings `[reward.http]`."""

    def __init__(self, spec: VerifierSpec, rng: random.Random | None = None) -> None:
        """rng: of the waits between tries. Raises BadVerifier."""
        if not spec.params.get("url"):
            raise BadVerifier(f"task {spec.task}: reward.http.url is empty: set it to http://HOST:PORT/PATH")
        try:
            self._settings = msgspec.convert(dict(spec.params), Http)
        except msgspec.ValidationError as error:
            raise BadVerifier(f"task {spec.task}: reward.http: {error}") from None
        self._task, self._rng = spec.task, rng or random.Random()
        self._runner: asyncio.Runner | None = None
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Read the key; the service is called by the first score. Raises `BadVerifier`."""
        headers = self._headers()
        self.close()
        self._runner = asyncio.Runner()
        self._session = self._runner.run(http_calls.session(headers, self._settings.max_concurrent))

    def close(self) -> None:
        """Close the connections."""
        if self._runner is not None:
            if self._session is not None:
                self._runner.run(self._session.close())
            self._runner.close()
        self._runner = self._session = None

    def check(self, entry: Entry) -> str:
        """See `Verifier`: any problem will do."""
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`: up to `max_concurrent` calls at a time, each response within the deadline."""
        if self._runner is None:
            self.open()
        assert self._runner is not None
        return self._runner.run(self._all(items))

    async def _all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        free = asyncio.Semaphore(self._settings.max_concurrent)

        async def one(entry: Entry, response: str) -> Judgement:
            async with free:
                return await self._judged(item_for(entry, response))

        return await asyncio.gather(*(one(entry, response) for entry, response in items))

    async def _judged(self, item: Item) -> Judgement:
        url, deadline_s = self._settings.url, self._settings.deadline_s
        tries: list[str] = []
        try:
            async with asyncio.timeout(deadline_s):
                found = await self._tried(item, tries)
        except TimeoutError:
            why = f"; the last of {len(tries)} tries: {tries[-1]}" if tries else ""
            return _failed(verdicts.UNAVAILABLE, f"{url}: no score within {deadline_s:g} s{why}")
        except Unavailable as problem:
            return _failed(verdicts.UNAVAILABLE, f"{url}: {problem}, {len(tries)} times")
        except BadAnswer as problem:
            return _failed(verdicts.VERIFIER_FAILED, f"{url}: {problem}")
        return Judgement(found.score, parts=found.parts)

    async def _tried(self, item: Item, tries: list[str]) -> FunctionResult:
        """Raises Unavailable, BadAnswer. tries: takes why each try failed."""
        wait_s = FIRST_WAIT_S
        while True:
            try:
                return await self._asked(item)
            except Unavailable as problem:
                tries.append(str(problem))
                if len(tries) == MAX_TRIES:
                    raise
                await asyncio.sleep(max(problem.after_s, wait_s * (1 + self._rng.random())))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _asked(self, item: Item) -> FunctionResult:
        settings = self._settings
        body = http_wires.body(settings.style, item, self._task, settings.deadline_s)
        if settings.style != http_wires.ROLL:
            return http_wires.read(settings.style, await self._sent("POST", settings.url, body))
        base = settings.url.rstrip("/")
        name = http_wires.submitted(await self._sent("POST", f"{base}/v1/submit_task", body))
        while True:
            answer = await self._sent("GET", f"{base}/v1/task_result", {"reward_request_id": name})
            if not http_wires.running(answer):
                return http_wires.read(settings.style, answer)
            await asyncio.sleep(POLL_S)

    async def _sent(self, method: str, url: str, body: object) -> bytes:
        """The answer's body. Raises Unavailable, BadAnswer."""
        assert self._session is not None
        return await http_calls.sent(self._session, method, url, body)

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self._settings.style == http_wires.ROLL:
            headers["BusinessType"] = "online"
        if self._settings.job:
            headers[JOB_HEADER] = self._settings.job
        value = http_calls.secret(self._settings.headers_env, "reward.http.headers_env")
        return {**headers, "Authorization": value} if value else headers


def _failed(status: str, text: str) -> Judgement:
    return Judgement(0.0, status, text[:MAX_DETAIL])
