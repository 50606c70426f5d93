"""`ServerWire`: port to an inference server, implemented for SGLang and vLLM.

`host` uses it. Owns the types (requests, chunks, errors) and no behaviour. Everything runs on the shared
loop of the worker, so blocking calls need a thread.
"""

from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from gleaner.actors.protocol.sampling_params import PLAIN, Sampling
from gleaner.actors.protocol.score_rows import Scores
from gleaner.actors.protocol.weights import Fetched

Finish = Literal["stop", "length", "abort"]
PauseMode = Literal["abort", "retract", "in_place"]
"""Effect of a pause on executing requests: they end; they wait, and their caches are computed anew; they stop
and continue with their caches."""


class ServerRefused(Exception):
    """The server did not take a request. never: it would never accept it. status: of HTTP, or 0."""

    def __init__(self, why: str, never: bool, status: int = 0) -> None:
        super().__init__(why)
        self.never, self.status = never, status


class ServerDied(RuntimeError):
    """The server ended, stalled, or sent a reply that no sound server sends; it must be replaced."""


class LoadFailed(Exception):
    """New weights are not served; the server has its previous ones."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `tokens`: prompt, and the first `made` tokens of the response; `max_new_tokens`: how many
    more. Temperature 0 is greedy. `rid` is never used twice. `experts`: the last chunk has them; `scores`:
    the last chunk has those rows in place of the experts. `interval`: so many tokens may be sent together,
    after the first."""

    rid: str
    tokens: "array[int]"
    max_new_tokens: int
    temperature: float
    seed: int
    made: int = 0
    sampling: Sampling = PLAIN
    experts: bool = False
    interval: int = 1
    scores: Scores | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of a stream. `logprobs` as in `StepOutput`; `finish`: nothing follows. `cached`: tokens of
    the ask whose cache existed already. `version`: the server's name for the weights that made these tokens,
    "" if it gives none. `experts`: of the tokens of ask and stream but the last, in the chunk with `finish`,
    if requested: int32, raw, a row a token (`score_rows` has the other kind). `retracted`: how often the
    request lost its cache to others in this server so far."""

    tokens: list[int]
    logprobs: list[float]
    finish: Finish | None = None
    cached: int = 0
    version: str = ""
    experts: bytes = b""
    retracted: int = 0


@dataclass(frozen=True, slots=True)
class Loads:
    """Requests in the server: that it decodes, and that wait."""

    running: int
    waiting: int


class TakesWeights(Protocol):
    """How any engine changes its weights: the small port that the builtin engine has too (`host`, called on
    its thread instead of awaited)."""

    async def stage(self, fetched: Fetched) -> None:
        """Prepare as much as possible while the server serves its present weights. Starts it if it is ours
        and does not run. Raises `LoadFailed`."""

    async def commit(self) -> str:
        """Have the server serve the staged weights; earlier requests do not go on. Returns its name for this
        version (`Chunk.version`). Raises `LoadFailed`."""

    async def version(self) -> str:
        """Its name for the weights that it serves."""


class ServerWire(TakesWeights, Protocol):
    """A connection to one server. Each call has a deadline. All raise `ServerDied` if the server fails or is
    another one.
    """

    async def start(self, model: Fetched) -> None:
        """Start it, if it is ours, without weights, for a model whose image is still arriving; does nothing
        if it cannot be started so."""

    def stream(self, ask: Ask) -> AsyncIterator[Chunk]:
        """The tokens of a request as they are made; the last chunk has `finish`. Raises `ServerRefused`. A
        stream that is closed before its end leaves nothing to execute in the server, at once or after
        `abort`. An aborted stream that is not closed has an end as well."""

    async def abort(self, rids: list[str]) -> None:
        """End these requests; unknown ones are no error."""

    async def healthy(self) -> None:
        """Returns if the server answers."""

    async def revert(self) -> str | None:
        """After a `commit` of a checkpoint that the server reads by itself: load its previous weights again.
        Returns its name for them; None if none are known, and nothing was done."""

    async def loads(self) -> Loads:
        """The load of the server."""

    async def pause(self, mode: PauseMode) -> None:
        """Decode nothing until `go_on`. Pausing what is paused changes nothing."""

    async def go_on(self) -> None:
        """Decode again."""

    @property
    def keeps(self) -> bool:
        """Whether `hold` is available; known once weights were staged."""

    async def hold(self, rids: list[str]) -> dict[str, int]:
        """Decode nothing until `go_on`, not in `commit` either; then requests go on, their caches computed
        anew. Returns those of these requests that will go on, with the number of tokens that the server has
        made of each. Its stream delivers exactly so many meanwhile. Raises `ServerRefused` too; `go_on` is
        due then as well."""

    async def sleep(self) -> None:
        """Give the accelerator's memory back; the weights are void then, so `serve` must follow `wake`."""

    async def wake(self) -> None:
        """Take it again."""

    def close(self) -> None:
        """End a server that is ours, at once; any number of times."""

    async def disconnect(self) -> None:
        """Close what the loop holds."""
