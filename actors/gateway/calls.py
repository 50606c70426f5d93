"""Call: one HTTP call as a route's handler sees it, and the table of routes.

Owns what all wires share: how a body is read and refused, the request's id, session and versions, and the
form of answers. Adapter: knows aiohttp, and no wire.
"""

import asyncio
import time
import uuid
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from gleaner.actors.gateway.access import Kind
from gleaner.actors.gateway.ask import MAX_ID, Ask, BadAsk, Requests, Vocabulary, seed_of
from gleaner.actors.gateway.fleet import Fleet
from gleaner.actors.gateway.metrics import Figures
from gleaner.actors.protocol.sampling_params import PLAIN, Sampling
from gleaner.actors.protocol.score_rows import Scores
from gleaner.configs.schema import Gateway

T = TypeVar("T", bound=msgspec.Struct)

BODY_S = 60.0
"""Seconds for a client to send its body."""
SESSION_HEADERS = ("X-SMG-Routing-Key", "X-Session-ID", "X-data-parallel-rank")
"""Headers with the session of a request, of slime and miles, of prime-rl and SkyRL, of vLLM."""
ID_HEADER = "X-Request-ID"
DEADLINE_HEADER = "X-Request-Deadline-S"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is served: the model's name, the longest prompt and the longest response in tokens, and the run
    that the versions belong to. `info`: more keys of `/server_info`. `routed_experts`: whether the engines
    report which experts tokens are routed to; `experts_shape`: the layers of such a row and experts in each,
    (0, 0) if unknown.

    context_tokens: of prompt and response together, as the engines report it; room_tokens: of both, so that
    another engine can continue the response at any token (`EngineFacts`). 0: the sum of the longest ones.
    """

    model: str
    max_prompt_tokens: int
    max_new_tokens: int
    run: str = ""
    info: Mapping[str, object] = field(default_factory=dict)
    routed_experts: bool = False
    experts_shape: tuple[int, int] = (0, 0)
    context_tokens: int = 0
    room_tokens: int = 0

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt with its response, at most."""
        return self.context_tokens or self.max_prompt_tokens + self.max_new_tokens

    def response_tokens(self, prompt_tokens: int, asked: int | UnsetType | None, usual: int | None) -> int:
        """The limit of a response to a prompt of `prompt_tokens` tokens. asked: None for as many as fit;
        UNSET if the client left it out: then `usual`, if that fits. A response that fits into
        `context_tokens` but not into `room_tokens` ends at the latter, as with SGLang. Raises ValueError with
        the reason."""
        room = (self.room_tokens or self.max_model_len) - prompt_tokens
        if room < 1:
            raise ValueError(
                f"this model's maximum context length is {self.max_model_len} tokens: a prompt of "
                f"{prompt_tokens} leaves no room for a response"
            )
        most = min(self.max_new_tokens, room)
        if asked is None or asked is UNSET:
            return most if asked is None or usual is None else min(usual, most)
        if not 0 <= asked <= self.max_new_tokens:
            raise ValueError(f"expected 0 to {self.max_new_tokens}, got {asked}")
        if prompt_tokens + asked > self.max_model_len:
            raise ValueError(
                f"this model's maximum context length is {self.max_model_len} tokens: the prompt has "
                f"{prompt_tokens}, and {asked} more are asked for"
            )
        return min(asked, most)


def random_id() -> str:
    """An id that no other request has."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """The objects that handlers use. vocabulary: None if the model has no tokenizer. wall_s: the date, in
    seconds since 1970. new_id: makes the id of a request whose client gave none."""

    requests: Requests
    fleet: Fleet
    settings: Gateway
    served: ServedModel
    vocabulary: Vocabulary | None = None
    figures: Figures = field(default_factory=Figures)
    wall_s: Callable[[], float] = time.time
    new_id: Callable[[], str] = random_id


class Operation(Protocol):
    """A row of a table of routes, as far as a server and its document need it. See `Route`."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def body(self) -> type[msgspec.Struct] | None: ...
    @property
    def query(self) -> type[msgspec.Struct] | None: ...
    @property
    def answer(self) -> type[msgspec.Struct] | None: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def many(self) -> bool: ...
    @property
    def status(self) -> int: ...
    @property
    def down(self) -> type[msgspec.Struct] | None: ...


@dataclass(frozen=True, slots=True)
class Route:
    """A row of the table of routes. `description` is one line of the OpenAPI document. `body`, `query` and
    `answer` (None: an empty one) are the structs that it is generated from, and that are read. many: the
    answer is a list of such structs. status: of the answer. down: the body of a 503, if that is not a
    problem."""

    method: str
    path: str
    does: "Callable[[Call], Awaitable[web.StreamResponse]]"
    description: str
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    kind: Kind = "control"
    many: bool = False
    status: int = 200
    down: type[msgspec.Struct] | None = None


class VersionGate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`weight_version` of a request's body, as in Stitch."""

    min_version: int | None = None
    exact_version: int | None = None


NO_GATE = VersionGate()


class Call:
    """See the module."""

    def __init__(self, desk: HandlerContext, request: web.Request) -> None:
        self.desk = desk
        self.request = request

    async def body(self, kind: type[T]) -> T:
        """The body, read as JSON; an empty one as {}. Raises BadAsk with the name of the invalid field."""
        return await read_body(self.request, kind)

    def query(self, kind: type[T]) -> T:
        """The query string. Raises BadAsk."""
        return read_query(self.request, kind)

    def id(self, given: str | None = None) -> tuple[str, bool]:
        """The request's id, from the body or else a header, and whether the client chose it. Raises
        BadAsk."""
        name = given or self.request.headers.get(ID_HEADER, "")
        if not name:
            return self.desk.new_id(), False
        if "/" in name or len(name) > MAX_ID:
            raise BadAsk(f"expected 1 to {MAX_ID} characters without a slash", "rid")
        return name, True

    def session(self, given: str | None = None) -> str:
        """The session of the request, from the body or else a header; "" for none."""
        headers = self.request.headers
        return given or next((headers[name] for name in SESSION_HEADERS if name in headers), "")

    def deadline_s(self) -> float:
        """Seconds of this request. Raises BadAsk."""
        settings, given = self.desk.settings, self.request.headers.get(DEADLINE_HEADER)
        if given is None:
            return settings.deadline_s
        try:
            asked_s = float(given)
        except ValueError:
            asked_s = 0.0
        if not asked_s > 0:
            raise BadAsk(f"expected a number of seconds above 0, got {given!r}", DEADLINE_HEADER)
        return min(asked_s, settings.max_deadline_s)

    def ask(
        self,
        id: tuple[str, bool],
        prompt: Sequence[int],
        max_new_tokens: int | UnsetType | None,
        *,
        usual: int | None = None,
        temperature: float = 1.0,
        seed: int | None = None,
        sampling: Sampling = PLAIN,
        gate: VersionGate | None = None,
        session: str | None = None,
        experts: bool = False,
        scores: Scores | None = None,
        whole: bool = False,
        names: tuple[str, str] = ("input_ids", "sampling_params.max_new_tokens"),
    ) -> Ask:
        """The request, checked. max_new_tokens, usual: see `ServedModel.response_tokens`; 0: the prompt is
        read, and no token is returned. names: the wire's names of the prompt and that limit. Raises
        BadAsk."""
        served, gate = self.desk.served, gate or NO_GATE
        if not 1 <= len(prompt) <= served.max_prompt_tokens:
            raise BadAsk(f"expected 1 to {served.max_prompt_tokens} tokens, got {len(prompt)}", names[0])
        try:
            limit = served.response_tokens(len(prompt), max_new_tokens, usual)
        except ValueError as problem:
            raise BadAsk(str(problem), names[1]) from None
        if gate.min_version is not None and gate.exact_version is not None:
            raise BadAsk("min_version and exact_version exclude each other", "weight_version")
        if not 0 <= temperature < float("inf"):
            raise BadAsk(f"expected a number from 0, got {temperature}", "temperature")
        for fault in sampling.faults():
            name, _, why = fault.partition(": ")
            raise BadAsk(why, name)
        try:
            tokens = array("I", prompt)
        except (OverflowError, TypeError):
            raise BadAsk("expected token ids, numbers from 0 of 32 bits", names[0]) from None
        return Ask(
            id=id[0],
            prompt=tokens,
            max_new_tokens=limit or 1,
            prompt_only=limit == 0,
            temperature=temperature,
            seed=seed_of(id[0]) if seed is None else seed,
            sampling=sampling,
            min_version=gate.min_version,
            exact_version=gate.exact_version,
            wait_s=self.desk.settings.version_wait_s,
            deadline_s=self.deadline_s(),
            session=self.session(session),
            named=id[1],
            experts=experts,
            scores=scores,
            whole=whole,
        )

    @property
    def url(self) -> str:
        """The gateway's URL as this client sees it: the URL of the one worker that is listed to the
        client."""
        return f"{self.request.scheme}://{self.request.host}"


async def read_body(request: web.Request, kind: type[T]) -> T:
    """The body, read as JSON; an empty one as {}. Raises BadAsk with the name of the invalid field."""
    try:
        async with asyncio.timeout(BODY_S):
            raw = await request.read()
    except TimeoutError:
        raise BadAsk(f"the body did not come within {BODY_S:g} s") from None
    return read(raw or b"{}", kind)


def read_query(request: web.Request, kind: type[T]) -> T:
    """The query string. Raises BadAsk."""
    given: dict[str, str | list[str]] = {}
    for key, value in request.query.items():
        given[key] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as problem:
        raise bad(problem) from None


def read(raw: bytes, kind: type[T]) -> T:
    """JSON as `kind`. Raises BadAsk."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as problem:
        raise bad(problem) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise BadAsk(f"no JSON: {problem}", "body") from None


def bad(problem: msgspec.ValidationError) -> BadAsk:
    """A refusal of msgspec, with the name of the field: "Expected `int`, got `str` - at `$.a.b`"."""
    why, _, where = str(problem).partition(" - at `$")
    name = where.rstrip("`").lstrip(".")
    if "unknown field" in why or "required field" in why:
        inner = why.rpartition(" `")[2].rstrip("`")
        name = f"{name}.{inner}" if name else inner
        why = "is not known here" if "unknown field" in why else "is required"
    return BadAsk(why, name or "body")


def json(answer: msgspec.Struct | Sequence[msgspec.Struct], status: int = 200) -> web.Response:
    """An answer with a JSON body, compact."""
    return web.Response(body=msgspec.json.encode(answer), status=status, content_type="application/json")
