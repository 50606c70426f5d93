"""Scores by a reward service that several jobs share.

`SharedService` is the service for a job's reward proxy, one call a response; `SharedVerifier` a `Verifier`
for a caller that scores in turn, such as a check of a task's solutions. The service's status is that of the
response; where it has no score, the status is one of ours.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from gleaner.actors.protocol.reward import JOB_HEADER
from gleaner.actors.reward import pipe, verdicts
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.service_pool import ServiceUnusable
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers import http_calls
from gleaner.actors.reward.verifiers.batch_announcements import BatchAnnouncements, named
from gleaner.actors.reward.verifiers.functions import MAX_DETAIL
from gleaner.actors.reward.verifiers.http_calls import Unavailable
from gleaner.actors.reward.verifiers.http_wires import BadAnswer, shown
from gleaner.actors.reward.verifiers.port import BadVerifier
from gleaner.actors.reward.verifiers.service_verifier import ServiceVerifier, tried
from gleaner.configs.schema import Share

MOST = 32
"""Responses of a `SharedVerifier` that are at the service at a time."""
ROUTE, BATCHES = "/score", "/batches"
NOTICES = 2
"""Connections for announcements of batches, beside those of the responses."""


Post = Callable[[str, bytes], Awaitable[bytes]]
"""Posts JSON to a URL; the body of the answer. Raises Unavailable, BadAnswer."""


class Connections(Protocol):
    """Connections to a service. Use them on one loop."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], most: int) -> bytes:
        """The body of the answer to JSON. Cancelled, it ends its connection. headers, most: of all calls;
        most: connections at a time. Raises Unavailable, BadAnswer."""

    async def close(self) -> None:
        """Close them."""


class _Verdict(msgspec.Struct, frozen=True):
    """The service's answer."""

    score: float
    status: str
    detail: str = ""


class _Calls:
    """Calls of one service.

    Args:
        share: the service, whose URL is known.
        job: the name of this job there.
        rng: of the waits between tries.
    """

    def __init__(self, share: Share, job: str, rng: random.Random) -> None:
        self._url = share.with_.rstrip("/")
        self._job, self._share, self._rng = job, share, rng

    def headers(self) -> dict[str, str]:
        """Of each call. Raises `BadVerifier`."""
        if not self._url.startswith("http"):
            raise BadVerifier(f"reward.share.with: expected a URL, got {self._share.with_!r}")
        key = http_calls.secret(self._share.key_env, "reward.share.key_env")
        return {JOB_HEADER: self._job, **({"Authorization": f"Bearer {key}"} if key else {})}

    async def judged(
        self, post: Post, item: pipe.TextItem, batch: str = "", full: Callable[[], None] | None = None
    ) -> Judgement:
        """The score of one response, within the deadline of the settings. batch: its name there, "" for
        none. full: called each time that the service has no room for it."""
        body = msgspec.json.encode(
            {
                "task": item.task,
                "problem": msgspec.Raw(item.entry),
                "response": item.response,
                **({"batch": batch} if batch else {}),
            }
        )
        failures: list[str] = []
        try:
            async with asyncio.timeout(self._share.deadline_s):
                return await tried(lambda: self._asked(post, body, full), failures, self._rng)
        except TimeoutError:
            why = f": {failures[-1]}" if failures else ""
            text = f"{self._url}: no verdict within {self._share.deadline_s:g} s{why}"
            return Judgement(0.0, verdicts.UNAVAILABLE, text[:MAX_DETAIL])
        except BadAnswer as problem:
            return Judgement(0.0, verdicts.VERIFIER_FAILED, f"{self._url}: {problem}"[:MAX_DETAIL])

    async def announced(self, post: Post, body: dict[str, object]) -> None:
        """Announce a batch or its end. Raises Unavailable, BadAnswer."""
        await post(f"{self._url}{BATCHES}", msgspec.json.encode(body))

    async def _asked(self, post: Post, body: bytes, full: Callable[[], None] | None) -> Judgement:
        """Raises Unavailable, BadAnswer."""
        try:
            text = await post(f"{self._url}{ROUTE}", body)
        except Unavailable as problem:
            if problem.full and full is not None:
                full()
            raise
        try:
            found = msgspec.json.decode(text, type=_Verdict)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BadAnswer(f"it sent no verdict: {shown(text)}") from None
        if found.status not in verdicts.PROGRAMS:
            raise BadAnswer(f"it sent the status {found.status!r:.40}")
        return Judgement(found.score, found.status, found.detail)


class SharedService:
    """A `ScoringService`.

    Args:
        share: the service, whose URL is known.
        job: the name of this job there.
        most: calls at a time.
        rng: of the waits between tries.
        connections: to it; None: of the machine.
        batches: whether the service gets the batches of this job. Without them it has each response alone,
            and responses that are at it together are a batch.
    """

    def __init__(
        self,
        share: Share,
        job: str,
        most: int,
        rng: random.Random | None = None,
        connections: Connections | None = None,
        *,
        batches: bool = True,
    ) -> None:
        rng = rng or random.Random()
        self._calls, self._most = _Calls(share, job, rng), most + NOTICES * batches
        self._batches = BatchAnnouncements(self._announce, rng) if batches else None
        self._headers: dict[str, str] = {}
        self._connections = connections or http_calls.HttpConnections()

    def open(self) -> None:
        """See `ScoringService`."""
        try:
            self._headers = self._calls.headers()
        except BadVerifier as problem:
            raise ServiceUnusable(str(problem)) from problem

    async def score(self, item: pipe.TextItem, batch: str, full: Callable[[], None]) -> Judgement:
        """See `ScoringService`."""
        name = named(batch) if self._batches is not None else ""
        return await self._calls.judged(self._post, item, name, full)

    def opened(self, batch: str, items: int, kind: str = "") -> None:
        """See `ScoringService`."""
        if self._batches is not None:
            self._batches.opened(batch, items, kind)

    def ended(self, batch: str) -> None:
        """See `ScoringService`."""
        if self._batches is not None:
            self._batches.ended(batch)

    async def _announce(self, body: dict[str, object]) -> None:
        await self._calls.announced(self._post, body)

    async def _post(self, url: str, body: bytes) -> bytes:
        return await self._connections.post(url, body, self._headers, self._most)

    async def close(self) -> None:
        """See `ScoringService`."""
        if self._batches is not None:
            await self._batches.close()
        await self._connections.close()


class SharedVerifier(ServiceVerifier):
    """A `Verifier`. task: its name, here and in the service's settings. The others: see `SharedService`."""

    def __init__(self, task: str, share: Share, job: str, rng: random.Random | None = None) -> None:
        super().__init__(MOST, rng)
        self._task, self._calls = task, _Calls(share, job, rng or random.Random())

    def headers(self) -> dict[str, str]:
        """See `ServiceVerifier`."""
        try:
            return self._calls.headers()
        except BadVerifier as problem:
            raise BadVerifier(f"task {self._task}: {problem}") from problem

    async def judged(self, entry: Entry, response: str) -> Judgement:
        """See `ServiceVerifier`."""
        assert self.session is not None
        item = pipe.TextItem(self._task, msgspec.json.encode(entry), response)
        return await self._calls.judged(partial(http_calls.sent, self.session, "POST"), item)
