"""`HttpWire`: HTTP client of an inference server, shared by all wires.

Owns one session, deadlines of single calls, streams of server-sent events, and the meaning of each status. A
redirect is not followed: prompts, weights and keys go to the server that was named and to no other. Knows no
route and no body. Adapter: aiohttp.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import aiohttp
import msgspec

from gleaner.actors.engine.servers.port import ServerDied, ServerRefused
from gleaner.transport.http_body import BodyTooLong, body_start, whole_body

CALL_S = 10.0
MAX_EVENT_BYTES = 256 << 20  # one event of the longest response with everything that may be requested
MAX_BODY_BYTES = 64 << 20  # of an answer that is no stream; SGLang's longest, `/server_info`, has some 40 kB
MAX_SAID = 2000  # characters of a server's text in an error
_AGAIN = {408, 409, 425, 429}  # of the 4xx: may succeed at another time

Answer = TypeVar("Answer")


class HttpWire:
    """A client of one server; every call is for its loop.

    Args:
        url: `http://host:port`.
        api_key: sent as a bearer token, "" for none.
    """

    def __init__(self, url: str, api_key: str = "") -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, answer: type[Answer], deadline_s: float = CALL_S) -> Answer:
        """Decode the answer's JSON. Raises `ServerDied`, `ServerRefused`."""
        return self._decode(path, await self._call("GET", path, None, deadline_s), answer)

    async def post(
        self, path: str, body: msgspec.Struct, answer: type[Answer], deadline_s: float = CALL_S
    ) -> Answer:
        """Send JSON, decode JSON. Raises `ServerDied`, `ServerRefused`."""
        return self._decode(path, await self._call("POST", path, body, deadline_s), answer)

    async def tell(self, path: str, body: msgspec.Struct, deadline_s: float = CALL_S) -> None:
        """Send JSON; any successful reply is accepted. Raises `ServerDied`, `ServerRefused`."""
        await self._call("POST", path, body, deadline_s)

    async def text(self, path: str, deadline_s: float = CALL_S) -> str:
        """The answer as it is. Raises `ServerDied`, `ServerRefused`."""
        return (await self._call("GET", path, None, deadline_s)).decode(errors="replace")

    async def look(self, path: str, deadline_s: float = CALL_S) -> None:
        """Require a successful reply. Raises `ServerDied`, `ServerRefused`."""
        await self._call("GET", path, None, deadline_s)

    async def events(self, path: str, body: msgspec.Struct) -> AsyncIterator[list[bytes]]:
        """The data of server-sent events, in lists of those that arrived together; `[DONE]` is left out.
        Comments, which servers send as keep-alives, are no events. Raises `ServerDied`, `ServerRefused`."""
        try:
            async with self._open().post(
                self.url + path, data=msgspec.json.encode(body), headers=_JSON, allow_redirects=False
            ) as reply:
                if reply.status != 200:
                    reply_body = await body_start(reply, MAX_SAID)
                    raise refusal(reply.status, reply_body.decode(errors="replace"))
                rest = bytearray()
                while data := await reply.content.readany():
                    looked = max(0, len(rest) - 3)
                    rest += data
                    if rest.find(b"\n\n", looked) < 0 and rest.find(b"\n\r\n", looked) < 0:
                        if len(rest) > MAX_EVENT_BYTES:
                            what = f"sends an event of more than {MAX_EVENT_BYTES} bytes, which is the limit"
                            raise ServerDied(f"{self.url}{path} {what}")
                        continue  # a long event is not looked through again with each of its parts
                    found, left = events_of(bytes(rest))
                    rest = bytearray(left)
                    if found:
                        yield found
        except (aiohttp.ClientError, OSError) as problem:
            raise ServerDied(f"{self.url}{path}: {problem!r}") from problem

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # A stream a ticket; tickets are limited elsewhere. No connection is used twice: uvicorn
                # closes one after a 500 without notice, and a later request on it then looks like a dead
                # server.
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CALL_S),
                headers=self._headers,
                read_bufsize=1 << 16,
            )
        return self._session

    async def _call(self, method: str, path: str, body: msgspec.Struct | None, deadline_s: float) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._open().request(
                    method, self.url + path, data=data, headers=_JSON, allow_redirects=False
                ) as reply,
            ):
                reply_body = await whole_body(reply, MAX_BODY_BYTES)
        except TimeoutError as late:
            raise ServerDied(f"{self.url}{path} was not answered within {deadline_s:g} s") from late
        except BodyTooLong as problem:
            raise ServerDied(f"{self.url}: {problem}") from problem
        except (aiohttp.ClientError, OSError) as problem:
            raise ServerDied(f"{self.url}{path}: {problem!r}") from problem
        if reply.status // 100 != 2:
            raise refusal(reply.status, reply_body.decode(errors="replace"))
        return reply_body

    def _decode(self, path: str, reply_body: bytes, answer: type[Answer]) -> Answer:
        try:
            return msgspec.json.decode(reply_body, type=answer)
        except msgspec.MsgspecError as problem:
            raise ServerDied(
                f"{self.url}{path} answered what it should not: {problem}: {reply_body[:300]!r}"
            ) from problem


_JSON = {"Content-Type": "application/json"}


def events_of(data: bytes) -> tuple[list[bytes], bytes]:
    """The data of the complete events, and the start of the next one."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    *whole, rest = data.split(b"\n\n")
    found = [event[5:].strip() for event in whole if event.startswith(b"data:")]
    return [event for event in found if event != b"[DONE]"], rest


def refusal(status: int, reply_body: str) -> ServerRefused:
    """The error for a status other than success; a wrong request is wrong for every server."""
    never = 400 <= status < 500 and status not in _AGAIN
    return ServerRefused(f"HTTP {status}: {reply_body[:MAX_SAID]}", never, status)
