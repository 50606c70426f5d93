"""The flip of a server to other weights, and the way back where it does not take them.

Owns which weights are staged and which the server had before, with a lease on the image of either: what it
may have to go back to is not written again. How a server loads is its wire's. Adapter: files.
"""

from collections.abc import Awaitable, Callable

from actors.engine.server_wire import LoadFailed, ServerDied, ServerRefused
from actors.weights.lease import Lease
from actors.weights.messages import Fetched

Load = Callable[[Fetched], Awaitable[None]]
"""Has a paused server load these weights. Raises `ServerRefused` where it did not: what it has now is in
doubt."""
Held = tuple[Fetched, Lease | None]


class Flip:
    """Of one server."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._staged: Held | None = None
        self._served: Held | None = None

    @property
    def staged(self) -> Fetched:
        """What the next commit is about."""
        assert self._staged is not None, "stage comes first"
        return self._staged[0]

    def stage(self, fetched: Fetched) -> None:
        """These next. Raises `LoadFailed`."""
        try:  # without tensors it is no image, but what the server reads by itself
            lease = Lease(fetched.path) if fetched.tensors else None
        except OSError as problem:
            raise LoadFailed(f"version {fetched.version} was not staged: {problem}") from problem
        self._change(self._served, (fetched, lease))

    def began(self) -> None:
        """The server was started on what is staged, or has loaded it."""
        self._change(self._staged, self._staged)

    def forget(self) -> None:
        """The server has weights now that are no image: there is no way back."""
        self._change(None, self._staged)

    def close(self) -> None:
        """The server is gone."""
        self._change(None, None)

    async def commit(self) -> None:
        """The server has what is staged. Raises `LoadFailed` where it has what it had before, `ServerDied`
        where it has neither."""
        staged = self.staged
        try:
            await self._load(staged)
        except ServerRefused as refused:
            raise await self._back(f"version {staged.version} was not loaded: {refused}") from refused
        self.began()

    async def _back(self, why: str) -> LoadFailed | ServerDied:
        if self._served is None:
            return ServerDied(f"{why}; there is no version to go back to")
        before = self._served[0]
        try:
            await self._load(before)
        except ServerRefused as refused:
            return ServerDied(f"{why}; nor was version {before.version} again: {refused}")
        return LoadFailed(f"{why}; version {before.version} was loaded again")

    def _change(self, served: Held | None, staged: Held | None) -> None:
        for held in (self._served, self._staged):
            if held is not None and held[1] is not None and held not in (served, staged):
                held[1].close()
        self._served, self._staged = served, staged
