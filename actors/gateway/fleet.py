"""Fleet: the engines behind the gateway, as the control routes see them.

Owns the types and the port. Pure. The implementation decides what may be changed. A job's gateway shows what
the job runs and changes none of it, since its weights are its trainer's. A gateway of its own takes engines
by URL. Every call is idempotent.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

PauseMode = Literal["abort", "wait", "keep"]
"""The effect of a pause on running requests. abort: they end with the tokens they have; wait: they end by
themselves first; keep: they stay. SGLang's names for keep are `retract` and `in_place`."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One engine. Its url and its incarnation identify it: restarted at the same url it is another one.

    id: names it here. url: "" for an engine without HTTP. version: of its weights, None before it has any.
    running, waiting: requests that it decodes, and that it has not started. refused: why it is not used, ""
    for an engine that may be.
    """

    id: str
    url: str
    incarnation: int
    kind: str
    healthy: bool
    version: int | None
    running: int
    waiting: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Loads:
    """Requests of the gateway's clients: given to engines, waiting on one, and waiting to be started."""

    running: int
    pending: int
    queued: int

    @property
    def waiting(self) -> int:
        """All requests that are not decoded."""
        return self.pending + self.queued


@dataclass(frozen=True, slots=True)
class Versions:
    """published: the newest version; served: by some engine, ascending. None and () before the first."""

    published: int | None
    served: tuple[int, ...]

    @property
    def applied(self) -> int | None:
        """The newest version that is served."""
        return self.served[-1] if self.served else None


class FleetError(Exception):
    """A control call that did nothing; the text has the reason."""


class NotHere(FleetError):
    """This fleet is not changed through this gateway."""


class UnknownWorker(FleetError):
    """No such id, no such url."""


class OtherModel(FleetError):
    """The engine does not serve the model of this fleet: a response must not continue there."""


class Failed(FleetError):
    """The call was tried and failed; a retry is harmless."""


class CannotLoad(FleetError):
    """Engines cannot load these weights; they serve what they served."""


class VersionTaken(FleetError):
    """This version is another one, or older than the newest: give these weights a higher number."""


class FleetAway(FleetError):
    """No manager answers; it may answer later."""


class Fleet(Protocol):
    """See the module. Every call raises FleetAway if it gets no answer within its own deadline."""

    async def workers(self) -> list[Worker]:
        """Engines that are known, healthy or not."""

    async def loads(self) -> Loads:
        """The present requests."""

    async def versions(self) -> Versions:
        """The present versions of the weights."""

    async def add(self, url: str, api_key: str = "") -> Worker:
        """Use the engine at this url. A known one changes nothing. Raises NotHere, OtherModel, Failed."""

    async def remove(self, worker: str) -> None:
        """Stop using this engine (its id or url); its requests go on elsewhere. Raises NotHere,
        UnknownWorker."""

    async def pause(self, mode: PauseMode) -> int:
        """Start nothing new until `resume`; returns the number of running requests. Raises NotHere."""

    async def resume(self) -> None:
        """End the pause. Raises NotHere."""

    async def update_weights(self, path: str, version: int | None) -> int:
        """Have the checkpoint at `path` served as this version (None: the next one); returns the version. One
        engine loads it first: a checkpoint that it cannot load is never published, and no other engine tries
        it. Returns when that engine serves the version and requests for it are answered, not when all engines
        serve it. Raises NotHere, CannotLoad, VersionTaken, Failed."""

    async def probe(self) -> None:
        """Return once an engine has made a token just now. Raises Failed if none does."""
