"""FolderWeights: weights of engines run by others, loaded from folders.

No image is pulled. Owns the notation of such weights in `Weights.sources`, and the actor that replaces a
host's TransferAgent: to a worker that fetches a version it names the folder, and the engine loads it by
itself.
"""

import asyncio
import hashlib
import json
import posixpath
from collections.abc import Awaitable, Callable

from gleaner.actors.protocol.rollout import Weights
from gleaner.actors.protocol.weights import DropVersion, Fetch, Fetched
from gleaner.supervisor import Actor, Refused, handles

AS_FOUND = "found:"
"""As the source: whatever the engine served when it was found."""
FOLDER = "folder:"
"""Prefix of the source of a checkpoint (Hugging Face format) that every engine can read at this path."""
AGAIN_S = 1.0
"""Seconds between two checks of an engine that is away or refused."""

Check = Callable[[str], Awaitable[str]]


def as_found(version: int) -> Weights:
    """The weights that engines had when they were added."""
    return Weights(version=version, root=_root(version, AS_FOUND), sources=(AS_FOUND,))


def in_folder(version: int, path: str) -> Weights:
    """The weights of a checkpoint at this path, under this number."""
    source = f"{FOLDER}{posixpath.normpath(path)}"
    return Weights(version=version, root=_root(version, source), sources=(source,))


def _root(version: int, source: str) -> bytes:
    """Distinguishes these weights from others of the same number. No component here has read the files, so it
    identifies their place, not their contents."""
    return hashlib.sha256(f"{version} {source}".encode()).digest()


class FolderWeights(Actor):
    """See the module. `<node>/transfer` of an engine by URL.

    Args:
        vocabulary: tokens that its model knows; 0 if unknown here.
        check: returns why the engine must not serve now, "": it may. Argument: the folder of the weights,
            "" for those that it was found with. Called before each version, so also after the engine was
            away: another server may be at its URL. None: it always may.
    """

    def __init__(self, vocabulary: int, check: Check | None = None) -> None:
        self._config = json.dumps({"vocab_size": vocabulary}).encode() if vocabulary else b""
        self._check = check

    @handles(Fetch)
    async def fetch(self, message: Fetch) -> Fetched:
        source = next(iter(message.sources), "")
        if not source.startswith((AS_FOUND, FOLDER)):
            raise Refused(f"weights {message.version} from {source!r}: engines by URL load from folders")
        path = source.removeprefix(FOLDER) if source.startswith(FOLDER) else ""
        if self._check is not None and (why := await self._check(path)):
            await asyncio.sleep(AGAIN_S)  # the worker repeats its request at once
            raise Refused(why)
        return Fetched(
            version=message.version,
            root=message.root,
            path=path,
            tensors=(),
            model_config=self._config,
            pulled_bytes=0,
            seconds=0.0,
        )

    @handles(DropVersion)
    async def drop_version(self, message: DropVersion) -> None:
        """Nothing to drop: the folders belong to the user."""
