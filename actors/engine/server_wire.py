"""What an inference server is to `remote`: the port that the wires of SGLang and vLLM fill.

Owns the words (asks, chunks, errors) and no behaviour. Everything runs on the loop of the worker, which
serves others too: what blocks is for a thread.
"""

from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from actors.rollout.sampling_params import PLAIN, Sampling
from actors.rollout.score_rows import Scores
from actors.weights.messages import Fetched

Finish = Literal["stop", "length", "abort"]
PauseMode = Literal["abort", "retract", "in_place"]
"""What becomes of requests that execute: they end; they wait, and their caches are computed anew; they stand
still and go on with the caches that they have."""


class ServerRefused(Exception):
    """The server did not take a request. never: nor would it at another time. status: of HTTP, or 0."""

    def __init__(self, why: str, never: bool, status: int = 0) -> None:
        super().__init__(why)
        self.never, self.status = never, status


class ServerDied(RuntimeError):
    """The server ended, stands still, or says what no sound server says: it is to be replaced."""


class LoadFailed(Exception):
    """New weights are not served; the server has those that it had before."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `tokens`: prompt, and the `made` tokens that the response holds already; `max_new_tokens`:
    how many more. Temperature 0 is greedy. `rid` is never used twice. `experts`: the last chunk has them;
    `scores`: it has those rows in their place.
    `interval`: so many tokens may be told together, after the first."""

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
    """What is new of a stream. `logprobs` as in `StepOutput`; `finish`: nothing follows. `cached`: tokens of
    the ask whose cache was there already. `version`: what the server calls the weights that made these
    tokens, "" where it does not say. `experts`: of the tokens of ask and stream but the last, in the chunk
    with `finish`, where they were asked for: int32, raw, a row a token (`score_rows` has the other kind)."""

    tokens: list[int]
    logprobs: list[float]
    finish: Finish | None = None
    cached: int = 0
    version: str = ""
    experts: bytes = b""


@dataclass(frozen=True, slots=True)
class Loads:
    """Requests in the server: that it decodes, and that wait."""

    running: int
    waiting: int


class TakesWeights(Protocol):
    """How any engine comes to other weights: the small port that the builtin one has too (`host`, called on
    its thread instead of awaited)."""

    async def stage(self, fetched: Fetched) -> None:
        """Prepare all that can be prepared while the server serves what it has. Starts it if it is ours and
        does not run. Raises `LoadFailed`."""

    async def commit(self) -> str:
        """Have the server serve what was staged; of requests of before none goes on. Returns what it calls
        this version (`Chunk.version`). Raises `LoadFailed`."""

    async def version(self) -> str:
        """What it calls the weights that it serves."""


class ServerWire(TakesWeights, Protocol):
    """Each call has a deadline. All raise `ServerDied` where the server is not what it should be."""

    async def start(self, model: Fetched) -> None:
        """Start it, if it is ours, without weights, for a model whose image is still coming; not where it
        cannot be started so."""

    def stream(self, ask: Ask) -> AsyncIterator[Chunk]:
        """The tokens of a request as they are made; the last chunk has `finish`. Raises `ServerRefused`.
        Closed before its end, it leaves nothing to execute in the server, at once or after `abort`; aborted,
        it has an end as well, if nobody closes it."""

    async def abort(self, rids: list[str]) -> None:
        """End these requests; unknown ones are no error."""

    async def healthy(self) -> None:
        """Returns if the server answers."""

    async def revert(self) -> str | None:
        """After a `commit` of a checkpoint that the server reads by itself: load again what it served before.
        What it calls that; None where nothing is known to go back to, and nothing was done."""

    async def loads(self) -> Loads:
        """What it has to do."""

    async def pause(self, mode: PauseMode) -> None:
        """Decode nothing until `go_on`. Pausing what is paused changes nothing."""

    async def go_on(self) -> None:
        """Decode again."""

    @property
    def keeps(self) -> bool:
        """Whether `hold` can be asked for; known once something was staged."""

    async def hold(self, rids: list[str]) -> dict[str, int]:
        """Decode nothing until `go_on`, not in `commit` either; then requests go on, their caches computed
        anew. Of these requests those that will, and how many tokens the server has made of each: so many,
        and no more, its stream brings meanwhile. Raises `ServerRefused` too; `go_on` is due then as well."""

    async def sleep(self) -> None:
        """Give the accelerator's memory back; the weights are void then, `serve` must follow `wake`."""

    async def wake(self) -> None:
        """Take it again."""

    def close(self) -> None:
        """End a server that is ours, at once; any number of times."""

    async def disconnect(self) -> None:
        """Close what the loop holds."""
