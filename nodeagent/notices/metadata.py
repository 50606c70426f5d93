"""Metadata service over HTTP: one request at a time, with deadline and size limit.

Owns the edge: an invalid answer (no connection, too slow, too large, cut off, no text) becomes PollFailed.
Redirects are not followed, proxies not used, compression not requested: none of the services needs them, and
each could lead to another server. Times in answers are read by the service's own clock, from its `Date`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import aiohttp
import msgspec

from gleaner.nodeagent.notices.cloud import PollFailed
from gleaner.transport.http_body import BodyTooLong, whole_body

LINK_LOCAL = "http://169.254.169.254"
"""Address of the service in all three clouds."""
MAX_BYTES = 256 * 1024
"""Longest answer. The largest is Azure's list of events, of some hundred bytes each."""
CONNECT_S = 2.0  # it is on the same machine, as far as a network goes
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; `server_s`: the service's wall clock in s since 1970."""

    status: int
    text: str
    headers: Mapping[str, str]
    server_s: float

    def decode(self, type_: type[T]) -> T:
        """The text as JSON of this type. Raises PollFailed."""
        try:
            return msgspec.json.decode(self.text, type=type_)
        except msgspec.MsgspecError as problem:
            raise PollFailed(f"no JSON as documented: {problem}") from problem


class Metadata:
    """See the module. `base`: "http://host:port", without a path."""

    def __init__(self, base: str = LINK_LOCAL) -> None:
        self._base = base.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        within_s: float,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        """One request, over within `within_s`. Raises PollFailed for anything but a valid answer."""
        timeout = aiohttp.ClientTimeout(total=within_s, connect=min(CONNECT_S, within_s))
        try:
            async with self._open().request(
                method,
                f"{self._base}{path}",
                headers={"Accept-Encoding": "identity", **headers},
                params=params,
                data=body,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                data = await whole_body(response, MAX_BYTES)
                return Reply(
                    response.status,
                    data.decode("utf-8").strip(),
                    {name.lower(): value for name, value in response.headers.items()},
                    _server_s(response.headers.get("Date", "")),
                )
        except TimeoutError as problem:
            raise PollFailed(f"{path}: no answer within {within_s:g} s") from problem
        except (aiohttp.ClientError, OSError, ValueError, BodyTooLong) as problem:
            text = str(problem)[:200] or type(problem).__name__
            raise PollFailed(f"{path}: {text}") from problem

    async def close(self) -> None:
        """Release connections; a later request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=4),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session


def utc_s(text: str) -> float:
    """A time of an answer ("2017-09-18T08:22:00Z" or "Mon, 19 Sep 2016 18:29:47 GMT") in s since 1970.
    Raises PollFailed."""
    try:
        when = parsedate_to_datetime(text) if "," in text else datetime.fromisoformat(text)
        return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError) as problem:
        raise PollFailed(f"{text[:60]!r} is no time") from problem


def _server_s(date: str) -> float:
    """Time from the `Date` of an answer; this host's clock if it is missing or invalid."""
    try:
        return utc_s(date) if date else time.time()
    except PollFailed:
        return time.time()
