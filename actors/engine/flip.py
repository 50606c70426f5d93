"""The flip of a server to other weights, and the way back where it does not take them. Pure.

Owns which weights are staged and which the server had before. How a server loads is its wire's.
"""

from collections.abc import Awaitable, Callable

from actors.engine.server_wire import LoadFailed, ServerDied, ServerRefused
from actors.weights.messages import Fetched

Load = Callable[[Fetched], Awaitable[None]]
"""Has a paused server load these weights. Raises `ServerRefused` where it did not: what it has now is in
doubt."""


class Flip:
    """Of one server."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._staged: Fetched | None = None
        self._served: Fetched | None = None

    @property
    def staged(self) -> Fetched:
        """What the next commit is about."""
        assert self._staged is not None, "stage comes first"
        return self._staged

    def stage(self, fetched: Fetched) -> None:
        """These next."""
        self._staged = fetched

    def began(self) -> None:
        """The server was started on what is staged."""
        self._served = self._staged

    def forget(self) -> None:
        """The server has weights now that are no image: there is no way back."""
        self._served = None

    async def commit(self) -> None:
        """The server has what is staged. Raises `LoadFailed` where it has what it had before, `ServerDied`
        where it has neither."""
        staged = self.staged
        try:
            await self._load(staged)
        except ServerRefused as refused:
            raise await self._back(f"version {staged.version} was not loaded: {refused}") from refused
        self._served = staged

    async def _back(self, why: str) -> LoadFailed | ServerDied:
        if self._served is None:
            return ServerDied(f"{why}; there is no version to go back to")
        try:
            await self._load(self._served)
        except ServerRefused as refused:
            return ServerDied(f"{why}; nor was version {self._served.version} again: {refused}")
        return LoadFailed(f"{why}; version {self._served.version} was loaded again")
