"""A gateway's HTTP server on a loopback port, in front of fake requests and a fake fleet."""

import asyncio
import itertools
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import aiohttp

from gleaner.actors.gateway.access import OPEN, Access
from gleaner.actors.gateway.ask import Ask, AskError, End, Piece, Vocabulary
from gleaner.actors.gateway.calls import HandlerContext, Route, ServedModel
from gleaner.actors.gateway.connections import IDLE_S, UNREAD_S
from gleaner.actors.gateway.fleet import Loads, NotHere, PauseMode, UnknownWorker, Versions, Worker
from gleaner.actors.gateway.server import HttpServer
from gleaner.configs.schema import Gateway

Script = Sequence[Piece | End | AskError | float]
"""Items of a response in order; a number is a pause in seconds."""


@dataclass
class FakeRequests:
    """Answers every request with `script`, or with the script of its id in `scripts`."""

    script: Script = ()
    scripts: dict[str, Script] = field(default_factory=dict)
    asked: list[Ask] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    aborted: list[list[str] | None] = field(default_factory=list)

    async def stream(self, ask: Ask) -> AsyncGenerator[Piece | End, None]:
        self.asked.append(ask)
        ended = False
        try:
            for item in self.scripts.get(ask.id, self.script):
                if isinstance(item, AskError):
                    ended = True
                    raise item
                if isinstance(item, float):
                    await asyncio.sleep(item)
                else:
                    ended = isinstance(item, End)
                    yield item
        finally:
            if not ended:
                self.left.append(ask.id)

    async def abort(self, ids: Iterable[str] | None) -> int:
        self.aborted.append(None if ids is None else list(ids))
        return 0 if ids is None else len(self.aborted[-1] or ())


@dataclass
class FakeFleet:
    """Engines in a dictionary; changes are allowed where `open`."""

    known: dict[str, Worker] = field(default_factory=dict)
    open: bool = True
    published: int | None = 3
    paused: list[str] = field(default_factory=list)
    updates: list[tuple[str, int | None]] = field(default_factory=list)

    async def workers(self) -> list[Worker]:
        return list(self.known.values())

    async def loads(self) -> Loads:
        running = sum(worker.running for worker in self.known.values())
        return Loads(running, sum(worker.waiting for worker in self.known.values()), 0)

    async def versions(self) -> Versions:
        return Versions(self.published, () if self.published is None else (self.published,))

    async def add(self, url: str, api_key: str = "") -> Worker:
        self._may()
        found = next((worker for worker in self.known.values() if worker.url == url), None)
        if found is None:
            id = f"w{len(self.known) + 1}"
            found = self.known[id] = Worker(id, url, 1, "sglang", True, self.published, 0, 0)
        return found

    async def remove(self, worker: str) -> None:
        self._may()
        for id, one in list(self.known.items()):
            if worker in (id, one.url):
                del self.known[id]
                return
        raise UnknownWorker(f"no worker {worker}")

    async def pause(self, mode: PauseMode) -> int:
        self._may()
        self.paused.append(mode)
        return 0

    async def resume(self) -> None:
        self._may()
        self.paused.append("resumed")

    async def update_weights(self, path: str, version: int | None) -> int:
        self._may()
        self.updates.append((path, version))
        self.published = (self.published or 0) + 1 if version is None else version
        return self.published

    async def probe(self) -> None:
        return None

    def _may(self) -> None:
        if not self.open:
            raise NotHere("the weights are the trainer's")


class Letters:
    """A tokenizer whose token n is the n-th character of Unicode; 0 is special and has no text."""

    special = frozenset([0])
    template = "<tool_call>"

    @property
    def tokenizer(self) -> "Letters":
        return self

    def encode_text(self, text: str, special: bool = False) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(token) for token in tokens if token and self.id_to_token(token))

    def token_to_id(self, token: str) -> int | None:
        return ord(token) if len(token) == 1 else None

    def id_to_token(self, id: int) -> str | None:
        return chr(id) if id < 0xD800 or 0xE000 <= id < 0x110000 else None

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        generation_prompt: bool = True,
        names: Mapping[str, object] | None = None,
    ) -> str:
        turns = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return turns + ("assistant: " if generation_prompt else "")


SERVED = ServedModel(model="tiny", max_prompt_tokens=64, max_new_tokens=128, run="test")


@dataclass
class World:
    """The gateway under test and its client."""

    url: str
    client: aiohttp.ClientSession
    requests: FakeRequests
    fleet: FakeFleet
    server: HttpServer


@asynccontextmanager
async def serving(
    routes: Sequence[Route],
    script: Script = (),
    *,
    settings: Gateway | None = None,
    fleet: FakeFleet | None = None,
    access: Access = OPEN,
    idle_s: float = IDLE_S,
    unread_s: float = UNREAD_S,
    words: bool = True,
    vocabulary: Vocabulary | None = None,
    requests: FakeRequests | None = None,
    served: ServedModel = SERVED,
) -> AsyncIterator[World]:
    """Serve `routes` and a client of them."""
    requests, fleet = requests or FakeRequests(script), fleet or FakeFleet()
    desk = HandlerContext(
        requests, fleet, settings or Gateway(), served, vocabulary or (Letters() if words else None)
    )
    server = HttpServer(desk, routes, access, idle_s=idle_s, unread_s=unread_s)
    url = await server.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as client:
            yield World(url, client, requests, fleet, server)
    finally:
        await server.close()


def pieces(tokens: Sequence[int], cuts: Sequence[int], version: int = 3) -> list[Piece | End]:
    """Pieces of these tokens, cut at those places, then their end; the n-th token has the log-prob -n/8."""
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(tokens)}), len(tokens)]
    logprobs = [-(index + 1) / 8 for index in range(len(tokens))]
    made: list[Piece | End] = [
        Piece(tokens[start:end], logprobs[start:end], version)
        for start, end in itertools.pairwise(bounds)
        if end > start
    ]
    spans = ((version, len(tokens)),) if tokens else ()
    first = version if tokens else None
    return [*made, End("stop", spans, first, first)]


def with_status(script: Sequence[Piece | End], status: str) -> list[Piece | End]:
    """The same items with another end."""
    assert status in ("stop", "length", "deadline", "abort")
    return [replace(item, status=status) if isinstance(item, End) else item for item in script]


__all__ = ["FakeFleet", "FakeRequests", "Letters", "World", "array", "pieces", "serving", "with_status"]
