"""Completion of a multi-owner version at its first owner, for disk publishing.

The first owner pulls the other owners' parts in the background, one version at a time. It pulls deltas if it
holds the previous version whole and every owner has its part of a delta, else full parts. This happens only
if a folder is configured (`weights.disk`), because receivers pull from all owners and need no host with the
whole image. The first owner does it because it is a single agent on a host that stays, so the folder has one
writer as always.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from gleaner.actors.weights.delta.cache import KeptDelta
from gleaner.actors.weights.delta.chain import UnusableDelta, chain_of
from gleaner.actors.weights.delta.codec import DeltaError
from gleaner.actors.weights.delta.image_delta import Mapper, apply
from gleaner.actors.weights.delta.service import JOIN_DELTA_S
from gleaner.actors.weights.image.manifest import Manifest, ManifestError
from gleaner.actors.weights.image.port import ImageDraft, ImageStoreError
from gleaner.actors.weights.shards.owners import Owners, shares_of_deltas, shares_of_image
from gleaner.actors.weights.transfer.host_versions import HostVersions
from gleaner.actors.weights.transfer.payload import Payload
from gleaner.actors.weights.transfer.publication import VersionPublisher
from gleaner.actors.weights.transfer.pull import Pulls
from gleaner.actors.weights.transfer.source_lookup import BadSource
from gleaner.configs.schema import Weights
from gleaner.supervisor import AskFailed, Context, Waiting
from gleaner.transport.bulk import Chunk, PullError

MAX_DUE = 2  # versions: owners serve no older ones
TRIES = 10  # of one version; an owner that restarts is back by then
RETRY_S = 1.0
LATE_S = 60.0  # a version without new chunks for so long is logged, each time again


class VersionAssembly:
    """Pulls the parts of other owners so that the version can be written to disk. `each`: has the chunks of
    deltas applied.
    """

    def __init__(
        self,
        ctx: Context,
        versions: HostVersions,
        publisher: VersionPublisher,
        settings: Weights,
        each: Mapper,
    ) -> None:
        self._ctx, self._store = ctx, versions.images
        self._served, self._deltas = versions.served, versions.deltas
        self._publisher, self._settings, self._each = publisher, settings, each
        self._due: deque[tuple[Manifest, tuple[Chunk, ...]]] = deque(maxlen=MAX_DUE)
        self._busy = False

    def begin(self, manifest: Manifest, part: tuple[Chunk, ...]) -> None:
        """Queue a version for the disk, if one is configured: its part is here, and other hosts own the
        rest.
        """
        if not self._settings.disk:
            return
        self._due.append((manifest, part))
        if not self._busy:
            self._busy = True
            self._ctx.background(self._all(), "versions of several owners")

    async def _all(self) -> None:
        try:
            while self._due:
                manifest, part = self._due.popleft()
                try:
                    await self._one(manifest, part)
                except (
                    AskFailed,
                    DeltaError,
                    ImageStoreError,
                    BadSource,
                    ManifestError,
                    PullError,
                ) as problem:
                    self._ctx.log.error("version %d is not on disk: %s", manifest.version, problem)
        finally:
            self._busy = False

    async def _one(self, manifest: Manifest, part: Sequence[Chunk]) -> None:
        making = self._deltas.being_made(manifest.version)
        if making is not None:
            await self._ctx.idle(making, JOIN_DELTA_S)
        size, tensors = manifest.image_bytes, manifest.tensors
        draft = await self._ctx.offload(self._store.create, manifest.version, size, tensors)
        try:
            on = manifest.owners[0].source
            async with self._ctx.wait("a version of weights", on=on, deadline_s=LATE_S, go_on=True) as wait:
                await self._fill(manifest, part, draft, wait)
            if self._served.has(manifest.version, manifest.root):  # the version was not evicted meanwhile
                self._store.discard(manifest.version)
                draft.seal()
                self._served.is_whole(manifest.version)
                self._publisher.to_disk(manifest)
        finally:
            draft.abandon()

    async def _fill(
        self, manifest: Manifest, part: Sequence[Chunk], draft: ImageDraft, wait: Waiting
    ) -> None:
        delta, base = self._deltas.to(manifest.version), self._served.before(manifest.version)
        if delta is not None and base is not None and delta.table.base_root == base.root:
            try:
                await self._by_delta(delta, base, manifest, draft, wait)
                return
            except (AskFailed, DeltaError, UnusableDelta, PullError) as problem:
                self._ctx.log.info("version %d is pulled whole for the disk: %s", manifest.version, problem)
        payload = Payload(manifest.version, manifest.chunks, draft.view)
        await self._ctx.offload(self._copy, manifest.version, part, draft.view)
        for chunk in part:
            payload.landed(chunk)
        owners = Owners(self._ctx, Pulls(self._ctx, self._settings, 0.0), manifest)
        for attempt in range(1, TRIES + 1):
            try:
                await owners.pull(shares_of_image(manifest, payload), wait)
                break
            except (AskFailed, PullError, BadSource):
                if attempt == TRIES or not self._served.has(manifest.version, manifest.root):
                    raise
                await asyncio.sleep(RETRY_S)
        await self._ctx.offload(manifest.verify, draft.view)

    async def _by_delta(
        self, delta: KeptDelta, base: Manifest, manifest: Manifest, draft: ImageDraft, wait: Waiting
    ) -> None:
        table = delta.table
        payload = Payload(delta.key, table.bundles, memoryview(bytearray(table.nbytes)))
        for bundle in delta.part if delta.part is not None else table.bundles:
            place = slice(bundle.offset, bundle.offset + bundle.length)
            payload.into[place] = delta.payload[place]
            payload.landed(bundle)
        pulls = Pulls(self._ctx, self._settings, 0.0)
        owners = Owners(self._ctx, pulls, manifest, base.version, (table,))
        await owners.pull(shares_of_deltas([table], [payload]), wait)
        with self._store.open(base.version) as image:
            await self._ctx.offload(
                apply, chain_of([table], [payload]), image.view, draft.view, base, manifest, each=self._each
            )

    def _copy(self, version: int, part: Sequence[Chunk], into: memoryview) -> None:
        with self._store.open(version) as image:
            for chunk in part:
                place = slice(chunk.offset, chunk.offset + chunk.length)
                into[place] = image.view[place]
