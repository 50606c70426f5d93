"""What a worker and the host of its engine say to each other: orders in, a turn out.

Owns the words and the port. Pure: neither the model nor its files are known here, so that the worker runs on
any engine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from actors.engine.engine import StepOutput
from actors.engine.expert_piece import ExpertPiece
from actors.rollout.device import Device
from actors.rollout.instance_messages import Work
from actors.weights.messages import Fetched


@dataclass(frozen=True, slots=True)
class Refusal:
    """These tickets were not taken. never: nor could they be at another time, whatever is served."""

    tickets: list[int]
    why: str
    never: bool = False


@dataclass(slots=True)
class Orders:
    """What the worker wants done before the next decode step, in this order."""

    load: Fetched | None = None
    keep: bool = False
    """With what is executed: it stays where it is, and the turn makes no token. Else it ends there."""
    aborts: list[int] = field(default_factory=list)
    adds: list[tuple[int, list[Work]]] = field(default_factory=list)  # (weights version, work)

    def abort(self, tickets: Iterable[int]) -> None:
        """These are to end; what of them waits to be added is not added any more."""
        ended = dict.fromkeys(tickets)
        waiting = [(version, [one for one in work if one.ticket not in ended]) for version, work in self.adds]
        self.adds = [(version, work) for version, work in waiting if work]
        self.aborts += ended

    def __bool__(self) -> bool:
        return bool(self.load or self.aborts or self.adds)


@dataclass(frozen=True, slots=True)
class TurnWork:
    """What the engine computed in a turn, in tokens of messages; its duration is measured by who drives it.

    `steps`: decode steps. `tokens`: generated, so tokens / steps requests were decoded together. `attended`:
    tokens in the cache of those requests, summed over the steps. `prefilled`: those whose cache was computed.
    Where several engines decode side by side, a step of one of them is as much less than a step.
    """

    steps: float = 0.0
    tokens: float = 0.0
    attended: float = 0.0
    prefilled: float = 0.0

    def plus(self, other: "TurnWork", steps: float = 1.0) -> "TurnWork":
        """This and the other, whose steps count `steps` each."""
        return TurnWork(
            self.steps + other.steps * steps,
            self.tokens + other.tokens,
            self.attended + other.attended,
            self.prefilled + other.prefilled,
        )

    def less(self, other: "TurnWork") -> "TurnWork":
        """What this has beyond the other."""
        return TurnWork(
            self.steps - other.steps,
            self.tokens - other.tokens,
            self.attended - other.attended,
            self.prefilled - other.prefilled,
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn did: rows to stream, refusals to report, the weights that are served, whether work is
    left; how much it computed, where the host tells. load_failed: why it does not serve what it was to load,
    but what it served before; "": it does. experts: of requests that ended and want them. kept: tickets that
    go on under what was loaded; None: nothing was to be kept, or this engine keeps nothing."""

    output: StepOutput | None
    refusals: list[Refusal]
    version: int | None
    root: bytes
    idle: bool
    work: TurnWork | None = None
    load_failed: str = ""
    experts: list[ExpertPiece] = field(default_factory=list)
    kept: list[int] | None = None


class EngineHost(Protocol):
    """An engine and the images that it loads. Calls come from one thread at a time."""

    @property
    def engines(self) -> int:
        """Copies of the model that serve side by side in it."""

    @property
    def cache_tokens(self) -> int:
        """Tokens, in those of messages, that the cache of each copy holds; 0: what its slots may need."""

    @property
    def device(self) -> Device | None:
        """What it shares with the engines of other instances; None: nothing."""

    def stage(self, fetched: Fetched) -> None:
        """Prepare all that can be prepared of these weights while the engine decodes, before they are ordered
        to be loaded; from another thread than that of `turn`, which may be in one. Without it the load takes
        longer. Raises `server_wire.LoadFailed`, as the load would then; what is served is as before."""

    def turn(self, orders: Orders) -> Turn:
        """Carry the orders out, then one decode step if there is anything to decode. Blocks meanwhile.

        Without weights all work is refused; work of another version than the one that is served is refused;
        loading a version ends what is left of the one before, which is told as aborted, unless it is to be
        kept: then the rows of the turn are all that the version before made. A load that fails
        goes back to what was served, and is told; where there is no way back it raises.
        """

    def hurry(self) -> None:
        """Orders wait: a turn that waits for its engine ends now. From another thread than that of `turn`."""

    def close(self) -> None:
        """Let go of what it holds, such as a server; from another thread than that of `turn`, which may be in
        one and ends then. Does not block. No turn follows."""


@runtime_checkable
class AwaitedHost(Protocol):
    """The host of an engine elsewhere, such as behind HTTP: as `EngineHost`, but nothing is computed here, so
    its turns are awaited on the worker's loop. All calls come on it."""

    @property
    def engines(self) -> int:
        """See `EngineHost`."""

    @property
    def cache_tokens(self) -> int:
        """See `EngineHost`."""

    @property
    def device(self) -> Device | None:
        """What it shares with the engines of other instances; None: nothing."""

    async def prepare(self, model: Fetched) -> None:
        """Start what takes long to start, for the model of these first weights, whose image is still coming;
        `stage` waits for it. Without it `stage` starts it."""

    async def stage(self, fetched: Fetched) -> None:
        """See `EngineHost.stage`."""

    async def awaited_turn(self, orders: Orders) -> Turn:
        """See `EngineHost.turn`."""

    def hurry(self) -> None:
        """See `EngineHost`."""

    def close(self) -> None:
        """See `EngineHost`."""

    async def closed(self) -> None:
        """After `close`: until nothing is held any longer."""


AnyHost = EngineHost | AwaitedHost
