"""Publishing weights from a user's trainer, through its host's shared memory.

Owns the way from tensors to a served version: find the host's TransferAgent, write an image where the agent
reads it, and notify the agent. The trainer waits for the copy only. The agent hashes, serves and announces,
also when the trainer has ended meanwhile.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.instances import InstancesAre, ListInstances
from gleaner.actors.protocol.weights import (
    MayPublish,
    OpenPart,
    PartIsOpen,
    PartWritten,
    Publish,
    Published,
)
from gleaner.actors.weights.image.draft import Draft
from gleaner.actors.weights.image.port import ImageStoreError, VersionConflict
from gleaner.actors.weights.image.store import ImageStore
from gleaner.rlctl.client_waits import WAIT_S
from gleaner.rlctl.sharded_publisher import OwnParts, Ranks, is_sharded, shards_of, write_shards
from gleaner.rlctl.transfer_agent import ASK_S, Asks, CannotPublish, HostTransferAgent, find_home
from gleaner.supervisor import Done, Refused

if TYPE_CHECKING:
    from torch import Tensor

    from gleaner.actors.model.named_tensors import NamedTensors

READERS_S = 10.0
"""Longest wait until instances release a version that is to be replaced."""
OPEN_S = 60.0
"""Longest wait until there is space for an image."""
MAX_MINE = 64
"""Versions of this client that are tracked; the oldest are forgotten."""
DESCRIBE_S = 900.0
"""Longest wait until the agent has hashed and announced an image: 1 TB at 2 GB/s; of a sharded trainer, until
all ranks have written, which is the longer part."""

State = Mapping[str, "Tensor"]
ModelConfig = bytes | str | Path | Mapping[str, object] | object | None
"""A checkpoint's config.json: its bytes, the file or its folder, a mapping, or what has `to_dict`."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A published version. `host`: its agent's host. `copy_s`: time that the trainer waited for the copy."""

    version: int
    host: str
    tensors: int
    nbytes: int
    copy_s: float
    announced: "asyncio.Task[Published]"

    async def known(self) -> Published:
        """Wait until the manager has registered it, so that instances pull it from here on. Raises
        CannotPublish, or the errors of an ask."""
        try:
            return await asyncio.shield(self.announced)
        except Refused as refusal:
            raise CannotPublish(str(refusal)) from refusal


class WeightPublisher:
    """Publishes one version after the other; one for each client. See the module."""

    def __init__(self, cluster: Asks) -> None:
        self._cluster = cluster
        self._one = asyncio.Lock()
        self._home: HostTransferAgent | None = None
        self._before: Publication | None = None
        self._config = b""
        self._mine: dict[int, None] = {}  # versions that were published here and may still fail

    async def publish(
        self,
        weights: State | Path | str,
        version: int,
        *,
        config: ModelConfig = None,
        host: str = "",
        wait_s: float = WAIT_S,
        progress: Callable[[int, int], None] | None = None,
        ranks: Ranks | None = None,
        parts: OwnParts | None = None,
        model_changed: bool = False,
    ) -> Publication:
        """See `Cluster.publish`."""
        async with self._one:
            before, self._before = self._before, None
            if before is not None:  # one image is hashed at a time: two more may be in the store
                await before.known()
            home = await self._at_home(host, wait_s)
            await self._require_new(version)
            self._mine[version] = None
            if len(self._mine) > MAX_MINE:
                del self._mine[next(iter(self._mine))]
            if not isinstance(weights, Path | str) and (parts is not None or is_sharded(weights)):
                self._before = await self._publish_part(
                    home, weights, version, config, ranks, parts, model_changed
                )
                return self._before
            try:
                source, found = await asyncio.to_thread(
                    _source, weights, config, self._config or home.model_config
                )
                may = MayPublish(version=version, tensors=source.specs, model_changed=model_changed)
                await self._cluster.ask(home.agent, may, expect=Done, deadline_s=ASK_S)
                began_s = time.monotonic()
                await asyncio.to_thread(_write, home.store, version, source, progress)
            except (Refused, ImageStoreError, ValueError, OSError) as problem:
                raise CannotPublish(str(problem)) from problem
            self._config = found
            message = Publish(
                version=version,
                tensors=source.specs,
                model_config=found,
                announce=True,
                model_changed=model_changed,
            )
            published = self._cluster.ask(home.agent, message, expect=Published, deadline_s=DESCRIBE_S)
            self._before = Publication(
                version=version,
                host=home.node,
                tensors=len(source.specs),
                nbytes=source.nbytes,
                copy_s=time.monotonic() - began_s,
                announced=_watched(published),
            )
            return self._before

    async def _publish_part(
        self,
        home: HostTransferAgent,
        weights: State,
        version: int,
        config: ModelConfig,
        ranks: Ranks | None,
        parts: OwnParts | None,
        model_changed: bool,
    ) -> Publication:
        """This rank's part; the version is complete when all ranks have handed over theirs."""
        try:
            own = ranks if ranks is not None else Ranks.of_this_process()
            self._config = _config_of(config, self._config or home.model_config)
            shards = await asyncio.to_thread(shards_of, weights, parts, own)
        except (ValueError, OSError) as problem:
            raise CannotPublish(str(problem)) from problem
        whole = OpenPart(
            version=version, tensors=shards.specs, image_bytes=shards.nbytes, model_changed=model_changed
        )
        try:
            opened = await self._cluster.ask(home.agent, whole, expect=PartIsOpen, deadline_s=OPEN_S)
            began_s = time.monotonic()
            await asyncio.to_thread(write_shards, Path(opened.path), shards)
        except Refused as refusal:
            raise CannotPublish(str(refusal)) from refusal
        except OSError as problem:
            raise CannotPublish(str(problem)) from problem
        written = PartWritten(
            version=version,
            tensors=shards.specs,
            image_bytes=shards.nbytes,
            model_config=self._config,
            rank=own.rank,
            ranks=own.ranks,
            here=own.here,
            runs=shards.runs,
            join=home.join,
        )
        published = self._cluster.ask(home.agent, written, expect=Published, deadline_s=DESCRIBE_S)
        return Publication(
            version=version,
            host=home.node,
            tensors=len(shards.pieces),
            nbytes=sum(run.length for run in shards.runs),
            copy_s=time.monotonic() - began_s,
            announced=_watched(published),
        )

    async def _at_home(self, host: str, wait_s: float) -> HostTransferAgent:
        if self._home is None or (host and self._home.node != host) or not self._home.store.is_dir():
            self._home = await find_home(self._cluster, host, wait_s)
        return self._home

    async def _require_new(self, version: int) -> None:
        """Raises CannotPublish where a higher version exists, and, once, where instances could not load a
        version that this client has published since. Runs before any copy."""
        if version < 0:
            raise CannotPublish(f"version {version}: versions are numbers from 0 up")
        seen = await self._cluster.ask(MANAGER, ListInstances(), expect=InstancesAre, deadline_s=ASK_S)
        if fault := failure_of(seen, self._mine):
            self._mine.clear()
            raise CannotPublish(f"{fault}. Nothing was published now: the next call does it")
        known = [] if seen.published is None else [seen.published]
        newest = max([*known, *(one.version for one in seen.failed)], default=None)
        if newest is not None and version < newest:
            raise CannotPublish(
                f"version {version} cannot be published, version {newest} is the newest: versions go up, "
                f"go on with {newest + 1}"
            )


def failure_of(seen: InstancesAre, mine: Container[int]) -> str:
    """The failure of the newest of these versions that instances could not load; "" where they could."""
    failed = [one for one in seen.failed if one.version in mine]
    if not failed:
        return ""
    served = "they serve none" if seen.published is None else f"they serve version {seen.published}"
    last = failed[-1]
    return f"instances could not load version {last.version}, {served}: {last.why}"


def _watched(reply: Awaitable[Published]) -> "asyncio.Task[Published]":
    async def answer() -> Published:
        return await reply

    task = asyncio.create_task(answer())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # a waiter gets the exception
    return task


def _source(weights: State | Path | str, config: ModelConfig, known: bytes) -> "tuple[NamedTensors, bytes]":
    """Tensors and config.json. Raises ValueError, OSError."""
    from gleaner.actors.model.named_tensors import config_of_folder, of_folder, of_state

    if isinstance(weights, Path | str):
        folder = Path(weights)
        found = config_of_folder(folder) if config is None else encoded_config(config)
        return of_folder(folder), found
    found = _config_of(config, known)
    tied = json.loads(found).get("tie_word_embeddings", True)
    return of_state(weights, tied=bool(tied)), found


def _config_of(config: ModelConfig, known: bytes) -> bytes:
    found = known if config is None else encoded_config(config)
    if not found:
        raise CannotPublish(
            "the first version needs config=, the model's config.json: engines need the model's shape"
        )
    return found


def encoded_config(config: ModelConfig) -> bytes:
    """config.json of a model. Raises ValueError, OSError."""
    from gleaner.actors.model.named_tensors import config_of_folder

    if isinstance(config, bytes):
        return config
    if isinstance(config, str | Path):
        path = Path(config)
        return config_of_folder(path if path.is_dir() else path.parent)
    if not isinstance(config, Mapping):
        as_dict = getattr(config, "to_dict", None)
        if as_dict is None:
            raise CannotPublish(
                f"config is {type(config).__name__}: give a folder, a mapping or a model's config"
            )
        config = as_dict()
    return json.dumps(config, default=str, sort_keys=True).encode()


def _write(
    directory: Path, version: int, source: "NamedTensors", progress: Callable[[int, int], None] | None
) -> None:
    """The sealed image. Raises ImageStoreError, ValueError, OSError."""
    copied = 0

    def more(nbytes: int) -> None:
        nonlocal copied
        copied += nbytes
        if progress is not None:
            progress(copied, source.nbytes)

    store = ImageStore(directory)
    with store.create(version, source.nbytes, source.specs, patience_s=READERS_S) as draft:
        source.write(draft.view, more)
        _seal(store, draft)


def _seal(store: ImageStore, draft: Draft) -> None:
    """Removes an image that a trainer wrote under this number and never published."""
    try:
        draft.seal()
    except VersionConflict:
        if store.noted(draft.version) is not None:
            raise VersionConflict(
                f"version {draft.version} was published before with other bytes: give these a higher number"
            ) from None
        store.discard(draft.version)
        draft.seal()
