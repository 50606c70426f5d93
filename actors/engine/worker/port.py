"""`EngineHost`: interface between RolloutWorker and engine (orders in, turn out).

Owns the types and the port. Pure: it uses neither the model nor its files, so the worker runs on any engine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import msgspec

from gleaner.actors.engine.worker.engine_port import StepOutput
from gleaner.actors.engine.worker.expert_routing import ExpertPiece
from gleaner.actors.protocol.device import Device
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.weights import Fetched


@dataclass(frozen=True, slots=True)
class Refusal:
    """These tickets were refused. never: they would be refused at any time, under any weights."""

    tickets: list[int]
    why: str
    never: bool = False


@dataclass(slots=True)
class StepCommands:
    """Commands of the worker before the next decode step, carried out in this order."""

    half: bool | None = None
    """Half of its engines decode from now on (True), or all of them (False); None: as before. Requests of
    engines that leave end as aborted ones."""
    load: Fetched | None = None
    keep: bool = False
    """Keep executing requests at `load`; the turn then makes no token. Otherwise they end there."""
    aborts: list[int] = field(default_factory=list)
    adds: list[tuple[int, list[Work]]] = field(default_factory=list)  # (weights version, work)

    def abort(self, tickets: Iterable[int]) -> None:
        """End these; of these, requests that wait to be added are not added any more."""
        ended = dict.fromkeys(tickets)
        waiting = [(version, [one for one in work if one.ticket not in ended]) for version, work in self.adds]
        self.adds = [(version, work) for version, work in waiting if work]
        self.aborts += ended

    def __bool__(self) -> bool:
        return bool(self.load or self.aborts or self.adds or self.half is not None)


class StepWork(msgspec.Struct, frozen=True, gc=False):
    """The work of the engine in a turn, in tokens of messages; the worker measures the duration.

    `steps`: decode steps. `tokens`: generated, so tokens / steps requests were decoded together. `attended`:
    tokens in the cache of those requests, summed over the steps. `prefilled`: those whose cache was computed.
    If several engines decode side by side, a step of one counts as that fraction of a step. `retracted`:
    requests whose caches the engine gave up for others.
    """

    steps: float = 0.0
    tokens: float = 0.0
    attended: float = 0.0
    prefilled: float = 0.0
    retracted: int = 0

    def plus(self, other: "StepWork", steps: float = 1.0) -> "StepWork":
        """The sum of this and the other, whose steps count `steps` each."""
        return StepWork(
            self.steps + other.steps * steps,
            self.tokens + other.tokens,
            self.attended + other.attended,
            self.prefilled + other.prefilled,
            self.retracted + other.retracted,
        )

    def less(self, other: "StepWork") -> "StepWork":
        """This minus the other."""
        return StepWork(
            self.steps - other.steps,
            self.tokens - other.tokens,
            self.attended - other.attended,
            self.prefilled - other.prefilled,
            self.retracted - other.retracted,
        )


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a turn: rows to stream, refusals to report, the served weights, whether work is left, and
    the amount computed, if the host reports it. load_failed: why the previous weights are still served; "":
    no load failed. experts: of requests that ended and want them. kept: tickets that go on under the new
    weights; None: keeping was not wanted, or this engine keeps nothing. vocabulary: tokens that the served
    model has; 0: not known here."""

    output: StepOutput | None
    refusals: list[Refusal]
    version: int | None
    root: bytes
    idle: bool
    work: StepWork | None = None
    load_failed: str = ""
    experts: list[ExpertPiece] = field(default_factory=list)
    kept: list[int] | None = None
    vocabulary: int = 0


class EngineHost(Protocol):
    """An engine and the images that it loads. Calls arrive from one thread at a time."""

    @property
    def engines(self) -> int:
        """Copies of the model that serve side by side in it."""

    @property
    def cache_tokens(self) -> int:
        """Capacity of each copy's cache, in tokens of messages; 0: enough for its slots, or not known before
        it serves."""

    @property
    def weight_tokens(self) -> int:
        """Size of the weights in tokens of the cache; 0: not known."""

    @property
    def device(self) -> Device | None:
        """The device that it shares with the engines of other instances; None: none."""

    @property
    def halves(self) -> bool:
        """Whether half of its engines can decode while the others have left their devices."""

    def stage(self, fetched: Fetched) -> None:
        """Prepare as much as possible of these weights while the engine decodes, before the order to load
        them. Called from another thread than `turn`, which may be running. Without it the load takes longer.
        Raises `server_wire.LoadFailed`, as the load would then; the served weights are unchanged."""

    def turn(self, commands: StepCommands) -> StepResult:
        """Carry the orders out, then one decode step if there is anything to decode. Blocks meanwhile.

        Without weights all work is refused; work of another version than the one that is served is refused;
        loading a version ends the remaining requests of the previous one and reports them as aborted. Kept
        requests do not end; then the rows of the turn are all that the previous version made. A failed load
        reverts to the previous weights and is reported; if it cannot revert, it raises.
        """

    def hurry(self) -> None:
        """Orders wait: a turn that waits for its engine ends now. Called from another thread than `turn`."""

    def close(self) -> None:
        """Release its resources, such as a server. Called from another thread than `turn`; a running turn
        ends then. Does not block. No turn follows."""


@runtime_checkable
class AwaitedHost(Protocol):
    """The host of an engine elsewhere, such as behind HTTP: as `EngineHost`, but nothing is computed here, so
    its turns are awaited on the worker's loop. All calls are made on it."""

    @property
    def engines(self) -> int:
        """See `EngineHost`."""

    @property
    def cache_tokens(self) -> int:
        """See `EngineHost`."""

    @property
    def weight_tokens(self) -> int:
        """See `EngineHost`."""

    @property
    def device(self) -> Device | None:
        """See `EngineHost`."""

    @property
    def halves(self) -> bool:
        """See `EngineHost`."""

    async def prepare(self, model: Fetched) -> None:
        """Start what takes long to start, for the model of these first weights, whose image is still
        arriving; `stage` waits for it. Without it `stage` starts it."""

    async def stage(self, fetched: Fetched) -> None:
        """See `EngineHost.stage`."""

    async def awaited_turn(self, commands: StepCommands) -> StepResult:
        """See `EngineHost.turn`."""

    def hurry(self) -> None:
        """See `EngineHost`."""

    def close(self) -> None:
        """See `EngineHost`."""

    async def closed(self) -> None:
        """After `close`: wait until all resources are released."""


AnyHost = EngineHost | AwaitedHost
