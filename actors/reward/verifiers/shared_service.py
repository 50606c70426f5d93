"""`SharedVerifier`: a task's responses are scored by a reward service that several jobs share.

Runs in the reward worker, without a sandbox: nothing of a response is read here. The service's status is the
response's; where it has no score, the status is one of ours.
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
from gleaner.actors.reward.verifiers import http_calls
from gleaner.actors.reward.verifiers.functions import MAX_DETAIL
from gleaner.actors.reward.verifiers.http_calls import Unavailable
from gleaner.actors.reward.verifiers.http_wires import BadAnswer, shown
from gleaner.actors.reward.verifiers.port import BadVerifier
from gleaner.configs.schema import Share

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
"""Between two tries of one call: twice as long each time, and up to as much again by chance."""
ROUTE = "/score"


class _Verdict(msgspec.Struct, frozen=True):
    """The service's answer."""

    score: float
    status: str
    detail: str = ""


class SharedVerifier:
    """A `Verifier`.

    Args:
        task: its name, here and in the service's settings.
        share: the service, whose URL is known.
        job: the name of this job there.
        rng: of the waits between tries.
    """

    def __init__(self, task: str, share: Share, job: str, rng: random.Random | None = None) -> None:
        self._url, self._task, self._job, self._share = share.with_.rstrip("/"), task, job, share
        self._rng = rng or random.Random()
        self._runner: asyncio.Runner | None = None
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Read the key; the service is called by the first score. Raises `BadVerifier`."""
        if not self._url.startswith("http"):
            raise BadVerifier(
                f"task {self._task}: reward.share.with: expected a URL, got {self._share.with_!r}"
            )
        key = http_calls.secret(self._share.key_env, "reward.share.key_env")
        headers = {JOB_HEADER: self._job, **({"Authorization": f"Bearer {key}"} if key else {})}
        self.close()
        self._runner = asyncio.Runner()
        self._session = self._runner.run(http_calls.session(headers, self._share.max_concurrent))

    def close(self) -> None:
        """Close the connections."""
        if self._runner is not None:
            if self._session is not None:
                self._runner.run(self._session.close())
            self._runner.close()
        self._runner = self._session = None

    def check(self, entry: Entry) -> str:
        """See `Verifier`: the service judges it."""
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`: up to `max_concurrent` calls at a time, each response within the deadline."""
        if self._runner is None:
            self.open()
        assert self._runner is not None
        return self._runner.run(self._all(items))

    async def _all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        free = asyncio.Semaphore(self._share.max_concurrent)

        async def one(entry: Entry, response: str) -> Judgement:
            async with free:
                return await self._judged(entry, response)

        return await asyncio.gather(*(one(entry, response) for entry, response in items))

    async def _judged(self, entry: Entry, response: str) -> Judgement:
        body = {"task": self._task, "problem": msgspec.to_builtins(entry), "response": response}
        why = "no try was over"
        wait_s = FIRST_WAIT_S
        try:
            async with asyncio.timeout(self._share.deadline_s):
                while True:
                    try:
                        return await self._asked(body)
                    except Unavailable as problem:
                        why = str(problem)
                        await asyncio.sleep(max(problem.after_s, wait_s * (1 + self._rng.random())))
                        wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        except TimeoutError:
            text = f"{self._url}: no verdict within {self._share.deadline_s:g} s: {why}"
            return Judgement(0.0, verdicts.UNAVAILABLE, text[:MAX_DETAIL])
        except BadAnswer as problem:
            return Judgement(0.0, verdicts.VERIFIER_FAILED, f"{self._url}: {problem}"[:MAX_DETAIL])

    async def _asked(self, body: object) -> Judgement:
        """Raises Unavailable, BadAnswer."""
        assert self._session is not None
        text = await http_calls.sent(self._session, "POST", f"{self._url}{ROUTE}", body)
        try:
            found = msgspec.json.decode(text, type=_Verdict)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BadAnswer(f"it sent no verdict: {shown(text)}") from None
        if found.status not in verdicts.PROGRAMS:
            raise BadAnswer(f"it sent the status {found.status!r:.40}")
        return Judgement(found.score, found.status, found.detail)
