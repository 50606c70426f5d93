"""`ServedDeltas`: makes, keeps and serves the deltas of a host.

Deltas are made in the background from published versions, or pulled. Owns making them on a thread of their
own. The bulk server serves exactly those that are kept. If several hosts publish a version, each makes and
serves the part that it owns, under one table for all.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

import numpy as np

from gleaner.actors.protocol.weights import DeltaJoined, Holds, JoinDelta
from gleaner.actors.weights.delta.cache import KeptDelta, KeptDeltas
from gleaner.actors.weights.delta.choice import DELTA_SHARE
from gleaner.actors.weights.delta.codec import DeltaError
from gleaner.actors.weights.delta.image_delta import Delta, Mapper
from gleaner.actors.weights.delta.sharded import own_part
from gleaner.actors.weights.delta.table import DeltaTable
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.actors.weights.image.port import Images, NoSuchImage
from gleaner.configs.schema import Weights
from gleaner.supervisor import AskFailed, Context
from gleaner.transport.bulk import BulkServer, Chunk, PartialContent

_Make = Callable[[], Coroutine[object, object, KeptDelta | None]]
JOIN_DELTA_S = 60.0  # until the slowest owner has made its part; a dead one is known by then


class ServedDeltas:
    """See the module docstring."""

    def __init__(
        self, ctx: Context, images: Images, server: BulkServer, settings: Weights, each: Mapper = map
    ) -> None:
        self._ctx, self._store, self._server, self._settings = ctx, images, server, settings
        self._each = each
        self._kept = KeptDeltas(settings.kept_delta_bytes)
        self._making: dict[int, asyncio.Event] = {}  # by the version that they lead to

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, base: Manifest, manifest: Manifest) -> None:
        """Make the delta from one image that is here to another, in the background. Only its consumer waits
        for it.
        """
        self._begin(manifest.version, partial(self._whole, base, manifest))

    def begin_part(
        self, base: Manifest | None, manifest: Manifest, part: Sequence[Chunk], first: str
    ) -> None:
        """The same of the part of them that is here; None: there is no base of it. The agent `first` makes
        one delta of all parts."""
        self._begin(manifest.version, partial(self._part, base, manifest, part, first))

    def being_made(self, version: int) -> asyncio.Event | None:
        """Set when the delta to that version is there, or failed; None if none is being made."""
        return self._making.get(version)

    def _begin(self, version: int, make: _Make) -> None:
        if self._settings.delta:
            self._making[version] = asyncio.Event()
            self._ctx.background(self._make(version, make), f"delta {version}")

    async def _make(self, version: int, make: _Make) -> None:
        try:
            made = await make()
        except (AskFailed, DeltaError, NoSuchImage) as problem:
            self._ctx.log.info("delta not made: version=%d: %s", version, problem)
        else:
            if made is not None:
                self.keep(made)
            else:
                self._ctx.log.info("delta not made: version=%d: too much changed", version)
        finally:
            self._making.pop(version).set()

    async def _whole(self, base: Manifest, manifest: Manifest) -> KeptDelta | None:
        delta = await self._built(base, manifest, None, manifest.image_bytes)
        return None if delta is None else KeptDelta(delta.table, memoryview(b"".join(delta.bundles)))

    async def _part(
        self, base: Manifest | None, manifest: Manifest, part: Sequence[Chunk], first: str
    ) -> KeptDelta:
        """Raises AskFailed, DeltaError."""
        delta = None
        try:
            if base is not None:
                delta = await self._built(base, manifest, part, sum(chunk.length for chunk in part))
        except (DeltaError, NoSuchImage) as problem:
            self._ctx.log.info("delta of own part not made: version=%d: %s", manifest.version, problem)
        request = JoinDelta(
            version=manifest.version,
            root=manifest.root,
            source=self._ctx.name,
            table=delta.table.encode() if delta is not None else b"",
        )
        reply = await self._ctx.ask(first, request, deadline_s=JOIN_DELTA_S, expect=DeltaJoined)
        joined = DeltaTable.decode(reply.table)
        assert delta is not None  # else it was refused
        at = own_part(joined, delta.table, self._ctx.name)
        payload = await self._ctx.offload_aside(_placed, delta, at, joined.nbytes)
        return KeptDelta(joined, payload, joined.shares()[self._ctx.name])

    async def _built(
        self, base: Manifest, manifest: Manifest, part: Sequence[Chunk] | None, of_bytes: int
    ) -> Delta | None:
        """Raises DeltaError, NoSuchImage."""
        with self._store.open(base.version) as old, self._store.open(manifest.version) as new:
            return await self._ctx.offload_aside(
                Delta.build,
                old.view,
                new.view,
                base,
                manifest,
                compress=self._settings.compress,
                most_bytes=int(DELTA_SHARE * of_bytes),
                part=part,
                each=self._each,
            )

    def keep(self, made: KeptDelta) -> None:
        """Serve the delta, as far as it fits; evicted ones are not served any more."""
        kept, gone = self._kept.keep(made)
        for key in gone:
            self._server.retire(key)
        if not kept:
            self._server.retire(made.key)
        elif made.part is None:
            self._server.publish(made.key, made.payload)
        else:
            content = PartialContent(made.payload)
            for bundle in made.part:
                content.landed(bundle.offset, bundle.length)
            self._server.publish(made.key, content)

    def to(self, version: int) -> KeptDelta | None:
        """The delta to a version, as far as it is here; None for none."""
        return self._kept.to(version)

    def way(self, holds: Sequence[Holds], root: bytes, image_bytes: int) -> tuple[int, tuple[KeptDelta, ...]]:
        """See `KeptDeltas.way`."""
        return self._kept.way(holds, root, image_bytes)

    def chain(self, base: int, root: bytes) -> tuple[KeptDelta, ...]:
        """See `KeptDeltas.chain`; none for base -1."""
        return self._kept.chain(base, root) if base >= 0 else ()


def _placed(delta: Delta, at: int, nbytes: int) -> memoryview:
    """A part's payload at its offset in the joint one. The others' bytes are never written, so the system
    allocates no memory for them."""
    payload = np.zeros(nbytes, np.uint8).data
    for bundle in delta.bundles:
        payload[at : at + len(bundle)] = bundle
        at += len(bundle)
    return payload
