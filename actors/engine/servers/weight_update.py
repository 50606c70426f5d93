"""`WeightUpdate`: switch of a server to other weights, with revert on failure.

Owns the staged and the previous weights, with a lease on the image of either, so that no image needed for a
revert is overwritten. The wire of a server implements loading. Adapter: files.
"""

from collections.abc import Awaitable, Callable

from gleaner.actors.engine.servers.port import LoadFailed, ServerDied, ServerRefused
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.weights.image.reader_locks import ReaderLock

Load = Callable[[Fetched], Awaitable[None]]
"""Makes a paused server load these weights. Raises `ServerRefused` if it did not: its present weights are
then unknown."""
Held = tuple[Fetched, ReaderLock | None]


class WeightUpdate:
    """The weight switches of one server."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._staged: Held | None = None
        self._served: Held | None = None

    @property
    def staged(self) -> Fetched:
        """The weights of the next commit."""
        assert self._staged is not None, "stage comes first"
        return self._staged[0]

    def stage(self, fetched: Fetched) -> None:
        """Stage these weights. Raises `LoadFailed`."""
        try:  # weights without tensors are no image, but a checkpoint that the server reads itself
            lease = ReaderLock(fetched.path) if fetched.tensors else None
        except OSError as problem:
            raise LoadFailed(f"version {fetched.version} was not staged: {problem}") from problem
        self._change(self._served, (fetched, lease))

    def began(self) -> None:
        """The server was started on the staged weights, or has loaded them."""
        self._change(self._staged, self._staged)

    def forget(self) -> None:
        """The server's weights are no image now, so no revert is possible."""
        self._change(None, self._staged)

    def close(self) -> None:
        """The server has ended."""
        self._change(None, None)

    async def commit(self) -> None:
        """Load the staged weights. Raises `LoadFailed` if the server has its previous weights, `ServerDied`
        if it has neither."""
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
