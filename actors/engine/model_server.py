"""`ModelServer`: the actor of a process that serves a model over HTTP, such as a judge beside the engine.

Owns the life of the server: it is made at the start, and ends with the actor; a failure of the server is one
of the actor, which its supervisor starts again. It has no messages.
"""

from collections.abc import Callable
from typing import Protocol

from gleaner.supervisor import Actor


class Entry(Protocol):
    """A server of a model, not started."""

    async def start(self, ready: Callable[[str], None]) -> None:
        """Load the model and serve it until `close`; `ready` is called with the URL. Raises OSError if it
        cannot listen, and the errors of a model that cannot be served."""

    async def close(self) -> None:
        """End it; requests under way end."""


class ModelServer(Actor):
    """See the module. make: a server that is not started."""

    def __init__(self, make: Callable[[], Entry]) -> None:
        self._make = make
        self._url = ""

    async def on_start(self) -> None:
        entry = self._make()
        self.ctx.at_end(entry.close)
        self.ctx.background(entry.start(self._ready), "serve")

    def _ready(self, url: str) -> None:
        self._url = url
        self.ctx.log.info("serves a model at %s", url)

    def summary(self) -> dict[str, str | int | float]:
        """Where it serves."""
        return {"url": self._url or "loading"}
