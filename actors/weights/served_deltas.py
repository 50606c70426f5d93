"""The deltas of a host: made from what it published, beside all else, or pulled; kept, and served to askers.

Owns making them on a thread of their own, and having the bulk server serve exactly those that are kept.
"""

import asyncio
from collections.abc import Sequence

from actors.weights.delta import Delta, Mapper
from actors.weights.delta_choice import DELTA_SHARE
from actors.weights.delta_codec import DeltaError
from actors.weights.images import Images, NoSuchImage
from actors.weights.kept_deltas import DELTA, KeptDelta, KeptDeltas
from actors.weights.manifest import Manifest
from actors.weights.messages import Holds
from configs.schema import Weights
from supervisor import Context
from transport.bulk import BulkServer


class ServedDeltas:
    """See the module."""

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
        """Make the delta from one image that is here to another. Nobody waits for it but who wants it."""
        if self._settings.delta:
            self._making[manifest.version] = asyncio.Event()
            self._ctx.background(self._make(base, manifest), f"delta {manifest.version}")

    def being_made(self, version: int) -> asyncio.Event | None:
        """Set when the delta to that version is there, or will not be; None where none is being made."""
        return self._making.get(version)

    async def _make(self, base: Manifest, manifest: Manifest) -> None:
        try:
            with self._store.open(base.version) as old, self._store.open(manifest.version) as new:
                delta = await self._ctx.offload_aside(
                    Delta.build,
                    old.view,
                    new.view,
                    base,
                    manifest,
                    compress=self._settings.compress,
                    most_bytes=int(DELTA_SHARE * manifest.image_bytes),
                    each=self._each,
                )
        except (DeltaError, NoSuchImage) as problem:
            self._ctx.log.info("no delta to version %d: %s", manifest.version, problem)
        else:
            if delta is not None:
                self.keep(delta, memoryview(b"".join(delta.bundles)))
            else:
                self._ctx.log.info("no delta to version %d: too much changed for one", manifest.version)
        finally:
            self._making.pop(manifest.version).set()

    def keep(self, delta: Delta, payload: memoryview) -> None:
        """Serve it, as far as there is room for it; those that make way are not served any more."""
        kept, gone = self._kept.keep(delta, payload)
        for key in gone:
            self._server.retire(key)
        if kept is None:
            self._server.retire(DELTA | delta.table.version)
        else:
            self._server.publish(kept.key, kept.payload)

    def way(self, holds: Sequence[Holds], root: bytes, image_bytes: int) -> tuple[int, tuple[KeptDelta, ...]]:
        """See `KeptDeltas.way`."""
        return self._kept.way(holds, root, image_bytes)

    def chain(self, base: int, root: bytes) -> tuple[KeptDelta, ...]:
        """See `KeptDeltas.chain`; none for base -1."""
        return self._kept.chain(base, root) if base >= 0 else ()
