"""`TransferAgent`: publishes and fetches weight versions, one per host.

Every host that trains or rolls out runs one agent. It owns the host's image store and its bulk server. The
trainer writes an image and goes on. The agent describes the image (`transfer.publication`) and makes the
delta from the previous version. Other agents pull image or delta by verified chunks into their own shared
memory, at any time (RLBoost 4.3), and pass on the chunks that they have. An image becomes visible whole and
verified, or not at all. A pull that broke off resumes at its last chunk (`transfer.fetch`). The publishing
agent also assigns a source to each receiver (`transfer.tracker`). Published versions survive the agent,
because manifests are stored beside the images. Deltas do not: a receiver that misses one pulls the whole
image.
"""

import asyncio
from collections.abc import Callable

import msgspec

from gleaner.actors.protocol.weights import (
    DropVersion,
    Fetch,
    Fetched,
    FindSource,
    FindStore,
    HostLeaves,
    JoinDelta,
    JoinPart,
    MayPublish,
    Offer,
    Offered,
    OpenPart,
    PartIsOpen,
    PartLost,
    PartWritten,
    Publish,
    Published,
    ReceiverLeaves,
    SourceFound,
    StoreIs,
    WhatComes,
)
from gleaner.actors.weights.delta.image_delta import Mapper
from gleaner.actors.weights.delta.service import ServedDeltas
from gleaner.actors.weights.delta.sharded import DeltaParts
from gleaner.actors.weights.disk.publication import DiskVersions
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.actors.weights.image.port import Images
from gleaner.actors.weights.settings import TransferSettings
from gleaner.actors.weights.shards.assembly import VersionAssembly
from gleaner.actors.weights.shards.sharded_publication import ShardedPublication
from gleaner.actors.weights.shards.subset import tensors_of
from gleaner.actors.weights.transfer.departure import Publishers
from gleaner.actors.weights.transfer.fetch import FETCH_LATE_S, FetchTarget, VersionFetch
from gleaner.actors.weights.transfer.host_versions import HostVersions
from gleaner.actors.weights.transfer.offers import OfferService
from gleaner.actors.weights.transfer.publication import VersionPublisher
from gleaner.actors.weights.transfer.tracker import SourceTracker
from gleaner.actors.weights.transfer.version_index import VersionIndex
from gleaner.supervisor import Actor, Deferred, Done, Refused, Terminated, handles

MANIFEST_LATE_S = 50.0  # from the request for a version that is being fetched until its first bytes
DELTA_LATE_S = 3.0  # wait for a delta that is still being made; then the receiver pulls the whole image


class TransferAgent(Actor):
    """Publishes, serves and fetches the weight versions of one host.

    Args:
        images: those of this host, in shared memory.
        settings: sections `weights` and `training` (whether the job has a trainer of its own).
        site: where this host is; links between sites are slow.
        disk: opens the folder where what is published here is written too, if there is one.
        each: maps over the chunks of deltas, on as many threads as the host gives.
    """

    def __init__(
        self,
        images: Images,
        settings: TransferSettings,
        site: str = "",
        disk: Callable[[], DiskVersions | None] = lambda: None,
        each: Mapper = map,
    ) -> None:
        self._sections = settings
        self._settings = settings.weights
        self._site = site
        self._store = images
        self._open_disk = disk
        self._each = each
        self._fetching: dict[tuple[int, bytes], list[Deferred]] = {}
        self._coming: dict[tuple[int, bytes], VersionFetch] = {}
        self._down_bytes_s = 0.0
        self._pulled_bytes = 0
        self._applied = 0
        self._resumed = 0
        self._relayed = 0
        self._bad_chunks = 0
        self._without_room = 0

    async def on_start(self) -> None:
        self._server = await self.ctx.network.bulk_server()
        self.ctx.at_end(self._server.close)
        self._deltas = ServedDeltas(self.ctx, self._store, self._server, self._settings, self._each)
        self._publishers = Publishers(self.ctx)
        self._tracker = SourceTracker(self.ctx, self._deltas, self._settings, self._site)
        self._served = VersionIndex(self.ctx, self._store, self._server, self._tracker.forget)
        self._offers = OfferService(self.ctx, self._server, self._served, self._deltas, self._coming)
        versions = HostVersions(self._store, self._served, self._deltas)
        self._publisher = VersionPublisher(self.ctx, versions, self._sections, self._open_disk)
        assembly = VersionAssembly(self.ctx, versions, self._publisher, self._settings, self._each)
        self._parts = ShardedPublication(self.ctx, versions, self._publisher, assembly, self._settings)
        self._target = FetchTarget(self._store, self._served, self._server, self._site, self._each)
        self._delta_parts = DeltaParts(self.ctx, self._served)
        await self._served.find_again()

    # -- publishing --

    @handles(OpenPart)
    async def open_part(self, message: OpenPart) -> PartIsOpen:
        return await self._parts.open(message)

    @handles(PartWritten)
    async def part_written(self, message: PartWritten) -> Deferred:
        return await self._parts.written(message)

    @handles(JoinPart)
    async def join_part(self, message: JoinPart) -> Deferred:
        return self._parts.join(message)

    @handles(PartLost)
    async def part_lost(self, message: PartLost) -> None:
        self._parts.lost(message)

    @handles(JoinDelta)
    async def join_delta(self, message: JoinDelta) -> Deferred:
        return self._delta_parts.join(message)

    @handles(FindStore)
    async def find_store(self, message: FindStore) -> StoreIs:
        return self._publisher.store(message)

    @handles(MayPublish)
    async def may_publish(self, message: MayPublish) -> Done:
        self._publisher.may(message)
        return Done()

    @handles(Publish)
    async def publish(self, message: Publish) -> Published | Deferred:
        return await self._publisher.publish(message)

    # -- requests of other actors --

    @handles(FindSource)
    async def find_source(self, message: FindSource) -> SourceFound | Deferred:
        self._served.require(message.version, message.root)
        making = self._deltas.being_made(message.version)
        if making is None or not message.holds:
            return self._source_for(message)
        deferred = Deferred()
        self.ctx.background(self._find_later(message, making, deferred), f"source of {message.version}")
        return deferred

    async def _find_later(self, message: FindSource, making: asyncio.Event, deferred: Deferred) -> None:
        await self.ctx.idle(making, DELTA_LATE_S)
        try:
            deferred.answer(self._source_for(message))
        except Refused as refusal:
            deferred.answer(refusal)

    def _source_for(self, message: FindSource) -> SourceFound:
        return self._tracker.source_for(message, self._served.require(message.version, message.root)[0])

    async def on_terminated(self, event: Terminated) -> None:
        self._tracker.ended(event)

    @handles(HostLeaves)
    async def host_leaves(self, message: HostLeaves) -> None:
        await self._publishers.tell(leaves=message.leaves)

    @handles(ReceiverLeaves)
    async def receiver_leaves(self, message: ReceiverLeaves) -> None:
        self._tracker.leaves(message)

    @handles(Offer)
    async def offer(self, message: Offer) -> Offered | Deferred:
        return self._offers.answer(message)

    # -- fetching --

    @handles(Fetch)
    async def fetch(self, message: Fetch) -> Deferred:
        coming = self._coming.get((message.version, message.root))
        differs = coming is not None and coming.wanted_part != message.part
        if differs or not self._served.suffices(message.version, message.part):
            raise Refused(f"{self.ctx.name} has another part of version {message.version} than is wanted")
        deferred = Deferred()
        for other in self._coming.values():
            other.overtaken_by(message.version)
        key = (message.version, message.root)
        waiting = self._fetching.setdefault(key, [])
        waiting.append(deferred)
        if len(waiting) == 1:
            self.ctx.background(self._fetch(message), f"fetch {message.version}")
        return deferred

    async def _fetch(self, message: Fetch) -> None:
        key = (message.version, message.root)
        self._publishers.remember(message.sources[0])
        fetching = self._coming[key] = VersionFetch(
            self.ctx, message, self._target, self._settings, self._down_bytes_s
        )
        on = message.sources[0]
        async with self.ctx.wait("a version of weights", on=on, deadline_s=FETCH_LATE_S, go_on=True) as wait:
            try:
                await self._served.look_again(*key)
                refusal = await fetching.run(wait, lambda: self._served.has(*key))
                if fetching.sealed:
                    self._take(fetching)
            finally:
                del self._coming[key]
                if not fetching.sealed:
                    fetching.drop()
                    self._served.serve_again(*key)  # the trainer may have published it here meanwhile
        self._without_room += fetching.without_room
        outcome = refusal if refusal is not None else self._fetched(message, fetching)
        for deferred in self._fetching.pop(key, []):
            deferred.answer(outcome)

    @handles(DropVersion)
    async def drop_version(self, message: DropVersion) -> None:
        self._served.drop(message.version, message.root)

    @handles(WhatComes)
    async def what_comes(self, message: WhatComes) -> Deferred:
        deferred = Deferred()
        self.ctx.background(self._tell_what_comes(message, deferred), f"what is {message.version}")
        return deferred

    async def _tell_what_comes(self, message: WhatComes, deferred: Deferred) -> None:
        coming = self._coming.get((message.version, message.root))
        if coming is not None:
            await self.ctx.idle(coming.begun, MANIFEST_LATE_S)
        if coming is not None and coming.manifest is not None:
            deferred.answer(self._here(coming.manifest, coming.model_config))
            return
        try:
            deferred.answer(self._here(*self._served.require(message.version, message.root)))
        except Refused as refusal:
            deferred.answer(refusal)

    def _take(self, fetching: VersionFetch) -> None:
        """The version is whole: serve it, and the deltas that led to it."""
        manifest = fetching.manifest
        assert manifest is not None
        part = None if fetching.wanted_part is None else fetching.chunks
        self._served.add(manifest, fetching.model_config, part)
        way = f"{len(fetching.applied)} deltas" if fetching.applied else "whole"
        self.ctx.log.info(
            "version fetched: version=%d: %s, %d of its %d bytes pulled in %.3f s",
            manifest.version,
            way,
            fetching.pulled_bytes,
            manifest.image_bytes,
            fetching.seconds,
        )
        for delta in fetching.applied:
            self._deltas.keep(delta)

    def _fetched(self, message: Fetch, fetching: VersionFetch) -> Fetched:
        self._pulled_bytes += fetching.pulled_bytes
        self._applied += len(fetching.applied)
        self._resumed += fetching.pulls.resumed
        self._relayed += fetching.relayed
        self._bad_chunks += fetching.pulls.bad_chunks
        self._down_bytes_s = fetching.pulls.down_bytes_s
        manifest, model_config = self._served.hand_out(message.version, message.root)
        return msgspec.structs.replace(
            self._here(manifest, model_config),
            tensors=tensors_of(manifest, message.part),
            pulled_bytes=fetching.pulled_bytes,
            seconds=fetching.seconds,
            deltas=len(fetching.applied),
        )

    def _here(self, manifest: Manifest, model_config: bytes) -> Fetched:
        return Fetched(
            version=manifest.version,
            root=manifest.root,
            path=self._store.place(manifest.version),
            tensors=manifest.tensors,
            model_config=model_config,
            pulled_bytes=0,
            seconds=0.0,
        )

    def summary(self) -> dict[str, str | int | float]:
        return {
            "versions": ",".join(map(str, self._served.versions)) or "-",
            "pulled_bytes": self._pulled_bytes,
            "deltas_applied": self._applied,
            "deltas_kept": len(self._deltas),
            "on_disk": self._publisher.disk_state,
            "pulls_resumed": self._resumed,
            "chunks_pulled_again": self._bad_chunks,
            "pulls_from_relays": self._relayed,
            "pulls_without_room": self._without_room,
            "served_bytes": self._server.served_bytes,
            "refused": sum(self._server.refused.values()),
        }
