"""`OfferService`: versions that a host serves, also while it still pulls them.

Owns the replies to `Offer`: capabilities to read an image, or the deltas that lead to it.
"""

import asyncio
from collections.abc import Mapping

from gleaner.actors.protocol.weights import DeltaLink, Offer, Offered
from gleaner.actors.weights.delta.service import ServedDeltas
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.actors.weights.transfer.fetch import VersionFetch
from gleaner.actors.weights.transfer.version_index import VersionIndex
from gleaner.supervisor import Context, Deferred, Refused
from gleaner.transport.bulk import BulkServer

BEGIN_LATE_S = 2.0  # a receiver that was sent here before we know the manifest waits so long for it


class OfferService:
    """Answers `Offer`. coming: the pulls of this host, by version and root."""

    def __init__(
        self,
        ctx: Context,
        server: BulkServer,
        served: VersionIndex,
        deltas: ServedDeltas,
        coming: Mapping[tuple[int, bytes], VersionFetch],
    ) -> None:
        self._ctx, self._server, self._served = ctx, server, served
        self._deltas, self._coming = deltas, coming

    def answer(self, message: Offer) -> Offered | Deferred:
        """Raises Refused if there is nothing to offer."""
        coming = self._coming.get((message.version, message.root))
        begun = self._deltas.being_made(message.version) if message.base >= 0 else None
        if message.version not in self._served:
            begun = coming.begun if coming is not None else None
        if begun is None or begun.is_set():
            return self._offer(message)
        deferred = Deferred()
        self._ctx.background(self._later(message, begun, deferred), f"offer of {message.version}")
        return deferred

    async def _later(self, message: Offer, begun: asyncio.Event, deferred: Deferred) -> None:
        """Answer once the pull has begun.

        The receiver was sent here just as this host began to pull, or another owner learned before this one
        that all owners have their part of a delta."""
        await self._ctx.idle(begun, BEGIN_LATE_S)
        try:
            deferred.answer(self._offer(message))
        except Refused as refusal:
            deferred.answer(refusal)

    def _offer(self, message: Offer) -> Offered:
        coming = self._coming.get((message.version, message.root))
        if message.version not in self._served and coming is not None and coming.manifest is not None:
            passed_on = coming.passes_on(message.base)
            if passed_on is None:
                raise Refused(f"{self._ctx.name} pulls version {message.version} in another way: ask again")
            links = tuple(self._link(table.encode(), key) for table, key in passed_on)
            return self._offered(coming.manifest, coming.model_config, links, whole=message.base < 0)
        manifest, model_config = self._served.require(message.version, message.root)
        chain = self._deltas.chain(message.base, message.root)
        links = tuple(self._link(one.table.encode(), one.key) for one in chain)
        return self._offered(manifest, model_config, links, whole=message.base < 0)

    def _link(self, table: bytes, key: int) -> DeltaLink:
        return DeltaLink(table=table, key=key, token=self._server.issue_token(key))

    def _offered(
        self, manifest: Manifest, model_config: bytes, links: tuple[DeltaLink, ...], *, whole: bool
    ) -> Offered:
        return Offered(
            manifest=manifest.encode(),
            model_config=model_config,
            endpoint=self._server.endpoint,
            token=self._server.issue_token(manifest.version) if whole else b"",
            deltas=links,
        )
