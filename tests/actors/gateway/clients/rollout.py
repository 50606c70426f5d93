"""Result of every client: one rollout of an endpoint, read as that client reads it.

A client is a function of a base URL, so that the same one runs against a server in a test and against a
gateway whose engines are being killed.
"""

import json
import math
from dataclasses import dataclass

import httpx


@dataclass(frozen=True)
class Rollout:
    """Response tokens with their log-probs; reason as the client's trainer sees it. text: "" where it reads
    none; version: of the weights, None where it reads none."""

    tokens: list[int]
    logprobs: list[float]
    reason: str
    text: str = ""
    version: str | None = None

    def check(self, limit: int) -> "Rollout":
        """Check the properties that a trainer relies on."""
        assert len(self.tokens) == len(self.logprobs) <= limit
        assert all(math.isfinite(logprob) and -9999.0 < logprob <= 0.0 for logprob in self.logprobs)
        assert self.reason in ("stop", "length"), self.reason
        assert self.reason == "stop" or len(self.tokens) == limit
        return self


async def post(url: str, body: object, headers: dict[str, str] | None = None, spaced: bool = False) -> bytes:
    """POST as httpx writes JSON (compact), or as aiohttp and requests do (`spaced`); the body of a 200."""
    separators = None if spaced else (",", ":")
    content = json.dumps(body, separators=separators, ensure_ascii=spaced, allow_nan=False).encode()
    headers = {"Content-Type": "application/json", **(headers or {})}
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.post(url, content=content, headers=headers)
    assert response.status_code == 200, f"{response.status_code}: {response.text}"
    return response.content
