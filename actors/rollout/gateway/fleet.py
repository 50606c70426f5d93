"""The engines behind the gateway, as the control routes of its wires see them.

Owns the words and the port. Pure. Who fills it decides what may be changed: a job's gateway shows what the
job runs and changes none of it, since its weights are its trainer's; a gateway of its own takes engines by
URL. Everything may be repeated: the second time it changes nothing.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

PauseMode = Literal["abort", "wait", "keep"]
"""What happens to requests under way. abort: they end with what they have; wait: they end by themselves
first; keep: they stay. SGLang says `retract` and `in_place` for the last."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One engine. Its identity is its url with its incarnation: started anew at the same url it is another.

    id: names it here. url: "" for an engine without HTTP. version: of its weights, None before it has any.
    running, waiting: requests that it decodes, and that it has not begun. refused: why it is not used, "" for
    an engine that may be.
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
    """Requests of the gateway's clients: given to engines, waiting on one, and waiting to be begun."""

    running: int
    pending: int
    queued: int

    @property
    def waiting(self) -> int:
        """All that are not decoded."""
        return self.pending + self.queued


@dataclass(frozen=True, slots=True)
class Versions:
    """published: the newest there is; served: by some engine, ascending. None and () before the first."""

    published: int | None
    served: tuple[int, ...]

    @property
    def applied(self) -> int | None:
        """The newest one that is served."""
        return self.served[-1] if self.served else None


class FleetError(Exception):
    """A control call that did nothing; the text says why."""


class NotHere(FleetError):
    """This fleet is not changed through this gateway."""


class UnknownWorker(FleetError):
    """No such id, no such url."""


class OtherModel(FleetError):
    """The engine does not serve the model of this fleet: a response must not go on there."""


class Failed(FleetError):
    """It was tried and did not work; asking again is harmless."""


class CannotLoad(FleetError):
    """Engines cannot load these weights; they serve what they served."""


class VersionTaken(FleetError):
    """This version is another one, or an older one than there is: give these weights a higher number."""


class FleetAway(FleetError):
    """Nobody there to ask; later perhaps."""


class Fleet(Protocol):
    """See the module. Every call raises FleetAway where nobody answers within its own deadline."""

    async def workers(self) -> list[Worker]:
        """Engines that are known, healthy or not."""

    async def loads(self) -> Loads:
        """Requests now."""

    async def versions(self) -> Versions:
        """Versions of the weights now."""

    async def add(self, url: str, api_key: str = "") -> Worker:
        """Use the engine at this url. Known already: nothing changes. Raises NotHere, OtherModel, Failed."""

    async def remove(self, worker: str) -> None:
        """Use this engine (its id or url) no longer; its requests go on elsewhere. Raises NotHere,
        UnknownWorker."""

    async def pause(self, mode: PauseMode) -> int:
        """Begin nothing new until `resume`; how many requests were under way. Raises NotHere."""

    async def resume(self) -> None:
        """Go on. Raises NotHere."""

    async def update_weights(self, path: str, version: int | None) -> int:
        """Have the checkpoint at `path` served as this version (None: the next one); the version. One engine
        loads it first: what it cannot load is never published, and no other engine tries it. Returns when
        that one serves it and what asks for it is answered, not when all do. Raises NotHere, CannotLoad,
        VersionTaken, Failed."""

    async def probe(self) -> None:
        """Return when an engine made a token just now. Raises Failed where none does."""
