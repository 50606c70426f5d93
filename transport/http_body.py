"""The body of an HTTP answer: read to its end, up to a limit.

Owns the one way in which this project reads bodies of answers. `StreamReader.read(n)` of aiohttp returns what
has arrived, which for a body of several TCP segments is its beginning; `ClientResponse.read` has no limit.
"""

import aiohttp

PART_BYTES = 1 << 16


class BodyTooLong(Exception):
    """The body is longer than its limit: it was not read to its end."""


async def whole_body(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """All of the body. Raises BodyTooLong, and aiohttp's error for a body that is cut off."""
    announced = response.content_length
    if announced is not None and announced > most_bytes:
        raise BodyTooLong(_words(response, most_bytes, f" ({announced} are announced)"))
    body = bytearray()
    async for part in response.content.iter_chunked(PART_BYTES):
        body += part
        if len(body) > most_bytes:
            raise BodyTooLong(_words(response, most_bytes))
    return bytes(body)


async def body_start(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The first bytes of the body, at most so many: for error texts."""
    body = bytearray()
    async for part in response.content.iter_chunked(PART_BYTES):
        body += part
        if len(body) >= most_bytes:
            break
    return bytes(body[:most_bytes])


def _words(response: aiohttp.ClientResponse, most_bytes: int, announced: str = "") -> str:
    what = f"more than {most_bytes} bytes{announced}, which is the limit"
    return f"{response.method} {response.url.path} answers with {what}"
