"""Calls of services over HTTP: one request, its answer or the reason why there is none.

Owns the session, the limits of an answer, which status is no answer, and the secret of a header. Does not own
retries or deadlines, and does not know what an answer means (`http_rewards`, `judge`).
"""

import asyncio
import email.utils
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from gleaner.actors.reward.verifiers.functions import MAX_DETAIL
from gleaner.actors.reward.verifiers.http_wires import BadAnswer, shown
from gleaner.actors.reward.verifiers.port import BadVerifier

MAX_ANSWER_BYTES = 2**20
LONGEST_REST_S = 3600.0
"""Longest `Retry-After` that is believed."""
JSON = {"Content-Type": "application/json"}
TOO_MANY = 429
PASSING = frozenset({408, 425, TOO_MANY})
"""Statuses below 500 of a service that is up and overloaded."""


class Unavailable(Exception):
    """The service did not answer, or is unavailable now; the text gives details. after_s: when to retry, if
    it gave a time. full: it is up, and its queues have no room."""

    def __init__(self, text: str, after_s: float = 0.0, *, full: bool = False) -> None:
        super().__init__(text)
        self.after_s, self.full = after_s, full


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a service sent. retry_after: that header, "" for none."""

    status: int
    retry_after: str
    body: bytes


async def session(headers: Mapping[str, str], connections: int) -> aiohttp.ClientSession:
    """A session that sends these headers; its caller closes it, and bounds each call in time."""
    return aiohttp.ClientSession(
        headers={"Accept-Encoding": "identity", **headers},
        connector=aiohttp.TCPConnector(limit=connections),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,  # none is asked for, and a small one may be large
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def sent(session: aiohttp.ClientSession, method: str, url: str, body: object) -> bytes:
    """The body of the answer to one request. body: JSON as bytes, or what JSON is made of. Raises
    Unavailable, BadAnswer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        async with session.request(method, url, data=data, headers=JSON, allow_redirects=False) as answer:
            text = await _bounded(answer.content)
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        raise Unavailable(f"{type(error).__name__}: {error}"[:MAX_DETAIL]) from None
    found = HttpAnswer(answer.status, answer.headers.get("Retry-After", ""), text)
    return accepted(found, time.time(), session.headers.get("Authorization", ""))


def accepted(answer: HttpAnswer, now_s: float, authorization: str = "") -> bytes:
    """The body of an answer that is one. now_s: since 1970. authorization: the header of the request, whose
    key is not repeated. Pure. Raises Unavailable, BadAnswer."""
    status, words = answer.status, _shown(answer.body, authorization)
    if status >= 500 or status in PASSING:
        after_s = retry_after_s(answer.retry_after, now_s)
        raise Unavailable(f"answered {status} {words}", after_s, full=status == TOO_MANY)
    if 300 <= status < 400:
        raise BadAnswer(f"answered {status}, and redirects are not followed: give the address itself")
    if status != 200:
        raise BadAnswer(f"answered {status} {words}")
    return answer.body


def retry_after_s(text: str, now_s: float) -> float:
    """Seconds until the time of a `Retry-After` (RFC 9110, 10.2.3: seconds or a date), from 0 to
    `LONGEST_REST_S`; 0 for any other text. now_s: since 1970. Pure."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text[:12]), LONGEST_REST_S))
    try:
        at_s = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(at_s - now_s, 0.0), LONGEST_REST_S)


def secret(variable: str, setting: str) -> str:
    """The value of a variable of the environment that a setting names, for a header; "" for no name. Raises
    BadVerifier, without the value."""
    if not variable:
        return ""
    value = os.environ.get(variable, "").strip()
    if not value:
        raise BadVerifier(
            f"{setting}: the reward worker has no variable {variable}: export it where the job's head is "
            "started"
        )
    if not value.isprintable():
        raise BadVerifier(f"{setting}: {variable} holds characters that no header can have")
    return value


def _shown(text: bytes, authorization: str) -> str:
    """The beginning of an answer, without the key that services may repeat in it."""
    key = authorization.rpartition(" ")[2].encode()
    return shown(text.replace(key, b"***") if key else text)


class HttpConnections:
    """Connections to a service, for `shared_service`. Use it on one loop."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], most: int) -> bytes:
        """See `shared_service.Connections`."""
        if self._session is None:
            self._session = await session(headers, most)
        return await sent(self._session, "POST", url, body)

    async def close(self) -> None:
        """Close them."""
        closing, self._session = self._session, None
        if closing is not None:
            await closing.close()


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    async for chunk in content.iter_chunked(2**16):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise BadAnswer(f"answered more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)
