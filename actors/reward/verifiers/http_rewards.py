"""`HttpVerifier`: verifier `http`, an external service that scores responses.

Runs in the reward worker, without a sandbox: nothing of a response is read here. A failure of the service is
a status of ours, never a score.
"""

import asyncio
import random

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
from gleaner.actors.reward.verifiers.service_verifier import ServiceVerifier
from gleaner.configs.schema import Http

MAX_TRIES = 20
POLL_S = 0.5
"""Between two looks at a task of ROLL's services."""


class HttpVerifier(ServiceVerifier):
    """A `Verifier`; the parameters are the settings `[reward.http]`."""

    def __init__(self, spec: VerifierSpec, rng: random.Random | None = None) -> None:
        """rng: of the waits between tries. Raises BadVerifier."""
        if not spec.params.get("url"):
            raise BadVerifier(f"task {spec.task}: reward.http.url is empty: set it to http://HOST:PORT/PATH")
        try:
            self._settings = msgspec.convert(dict(spec.params), Http)
        except msgspec.ValidationError as error:
            raise BadVerifier(f"task {spec.task}: reward.http: {error}") from None
        self._task = spec.task
        super().__init__(self._settings.max_concurrent, rng)

    async def judged(self, entry: Entry, response: str) -> Judgement:
        """See `ServiceVerifier`."""
        item = item_for(entry, response)
        url, deadline_s = self._settings.url, self._settings.deadline_s
        tries: list[str] = []
        try:
            async with asyncio.timeout(deadline_s):
                found = await self.tried(lambda: self._asked(item), tries, MAX_TRIES)
        except TimeoutError:
            why = f"; the last of {len(tries)} tries: {tries[-1]}" if tries else ""
            return _failed(verdicts.UNAVAILABLE, f"{url}: no score within {deadline_s:g} s{why}")
        except Unavailable as problem:
            return _failed(verdicts.UNAVAILABLE, f"{url}: {problem}, {len(tries)} times")
        except BadAnswer as problem:
            return _failed(verdicts.VERIFIER_FAILED, f"{url}: {problem}")
        return Judgement(found.score, parts=found.parts)

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
        assert self.session is not None
        return await http_calls.sent(self.session, method, url, body)

    def headers(self) -> dict[str, str]:
        """See `ServiceVerifier`."""
        headers: dict[str, str] = {}
        if self._settings.style == http_wires.ROLL:
            headers["BusinessType"] = "online"
        if self._settings.job:
            headers[JOB_HEADER] = self._settings.job
        value = http_calls.secret(self._settings.headers_env, "reward.http.headers_env")
        return {**headers, "Authorization": value} if value else headers


def _failed(status: str, text: str) -> Judgement:
    return Judgement(0.0, status, text[:MAX_DETAIL])
