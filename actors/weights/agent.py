"""TransferAgent: one on every host that trains or rolls out. Has versions of the weights, gives and gets
them.

Owns the host's image store and its bulk server. The trainer writes an image and goes on; the agent
describes it (manifest) and makes the delta from the version before; other agents pull either by verified
chunks into their own shared memory, whenever they want it (RLBoost 4.3), and pass on what has come. An image
becomes visible whole and verified, or not at all; a pull that broke off goes on from its last chunk
(`fetching`). The agent that published also tells who pulls from whom (`tracking`). What was published
survives the agent: manifests lie beside the images; deltas do not, who misses one pulls the whole image.
"""

import asyncio
from collections.abc import Callable

import msgspec

from actors.weights.disk_publishing import DiskPublishing, DiskVersions
from actors.weights.fetching import FETCH_LATE_S, Fetching
from actors.weights.images import Images, ImageStoreFull, NoSuchImage, OpenImage
from actors.weights.manifest import Manifest, ManifestError
from actors.weights.messages import (
    DeltaLink,
    Fetch,
    Fetched,
    FindSource,
    Holds,
    HostLeaves,
    Offer,
    Offered,
    Publish,
    Published,
    ReceiverLeaves,
    SourceFound,
)
from actors.weights.served_deltas import ServedDeltas
from actors.weights.tracking import Tracking
from configs.schema import Config
from supervisor import Actor, Deferred, Refused, Terminated, handles

DELTA_LATE_S = 3.0  # who wants a delta that is still being made pulls the whole image then
BEGIN_LATE_S = 2.0  # who is told to pull from us before we know the manifest waits so long for it
MAX_PUBLISHERS = 8  # that are told when this host has notice


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """What lies beside an image."""

    manifest: bytes
    model_config: bytes


class TransferAgent(Actor):
    """See the module.

    Args:
        images: those of this host, in shared memory.
        config: `weights`.
        site: where this host is; links between sites are slow.
        disk: opens the folder where what is published here is written too, if there is one.
    """

    def __init__(
        self,
        images: Images,
        config: Config,
        site: str = "",
        disk: Callable[[], DiskVersions | None] = lambda: None,
    ) -> None:
        self._config = config
        self._settings = config.weights
        self._site = site
        self._store = images
        self._open_disk = disk
        self._disk: DiskPublishing | None = None
        self._have: dict[int, tuple[Manifest, bytes]] = {}
        self._fetching: dict[tuple[int, bytes], list[Deferred]] = {}
        self._coming: dict[tuple[int, bytes], Fetching] = {}
        self._publishers: dict[str, None] = {}  # of what was pulled here, the newest last
        self._down_bytes_s = 0.0
        self._pulled_bytes = 0
        self._applied = 0
        self._resumed = 0
        self._relayed = 0
        self._bad_chunks = 0

    async def on_start(self) -> None:
        self._server = await self.ctx.network.bulk_server()
        self.ctx.at_end(self._server.close)
        self._deltas = ServedDeltas(self.ctx, self._store, self._server, self._settings)
        self._tracking = Tracking(self.ctx, self._deltas, self._settings, self._site)
        for version in self._store.versions():
            try:
                await self._find_again(version)
            except NoSuchImage:  # it made way meanwhile
                continue

    async def _find_again(self, version: int) -> None:
        """Serve a version that an earlier life had, if it is what it was: memory outlives its owner, and who
        ended that may have spoilt it. A damaged image is discarded; whoever wants it pulls it again."""
        noted = self._store.noted(version)
        if noted is None:
            return
        note = msgspec.msgpack.decode(noted, type=_Note)
        manifest = Manifest.decode(note.manifest)
        try:
            with self._store.open(version) as image:
                await self.ctx.offload(manifest.verify, image.view)
        except ManifestError as damage:
            self.ctx.log.warning("what was left of an earlier life is discarded: %s", damage)
            self._store.discard(version)
            return
        self._serve(manifest, note.model_config)

    # -- publishing --

    @handles(Publish)
    async def publish(self, message: Publish) -> Published:
        """Describe the image that the trainer sealed in the store, and serve it."""
        try:
            image = self._store.open(message.version)
        except NoSuchImage as absent:
            raise Refused(f"version {message.version} cannot be published: {absent}") from absent
        with image:
            manifest = await self.ctx.offload(self._describe, message, image)
        known = self._have.get(message.version)
        if known is not None and known[0].root != manifest.root:
            raise Refused(f"version {message.version} was published before with other bytes")
        self._serve(manifest, message.model_config)
        before = max((version for version in self._have if version < message.version), default=None)
        if known is None and before is not None:  # receivers that are behind are to need only what changed
            self._deltas.begin(self._have[before][0], manifest)
        if known is None:
            self._to_disk(manifest)
        return Published(version=message.version, root=manifest.root)

    def _to_disk(self, manifest: Manifest) -> None:
        if self._disk is None:
            self._disk = DiskPublishing(
                self.ctx, self._store, self._open_disk, self._settings.disk_whole_every
            )
        before = self._have.get(manifest.version - 1)
        self._disk.publish(manifest, before[0] if before is not None else None)

    def _describe(self, message: Publish, image: OpenImage) -> Manifest:
        return Manifest.build(
            message.version, image.view, message.tensors, chunk_bytes=self._settings.chunk_bytes
        )

    # -- what others ask --

    @handles(FindSource)
    async def find_source(self, message: FindSource) -> SourceFound | Deferred:
        self._require(message.version, message.root)
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
        return self._tracking.source_for(message, self._require(message.version, message.root)[0])

    async def on_terminated(self, event: Terminated) -> None:
        self._tracking.ended(event)

    @handles(HostLeaves)
    async def host_leaves(self, message: HostLeaves) -> None:
        for publisher in self._publishers:
            await self.ctx.tell(publisher, ReceiverLeaves(receiver=self.ctx.name, leaves=message.leaves))

    @handles(ReceiverLeaves)
    async def receiver_leaves(self, message: ReceiverLeaves) -> None:
        self._tracking.leaves(message)

    @handles(Offer)
    async def offer(self, message: Offer) -> Offered | Deferred:
        coming = self._coming.get((message.version, message.root))
        if coming is None or coming.begun.is_set() or message.version in self._have:
            return self._offer(message)
        deferred = Deferred()
        self.ctx.background(self._offer_later(message, coming, deferred), f"offer of {message.version}")
        return deferred

    async def _offer_later(self, message: Offer, coming: Fetching, deferred: Deferred) -> None:
        """It was told to pull from us in the moment in which we began to."""
        await self.ctx.idle(coming.begun, BEGIN_LATE_S)
        try:
            deferred.answer(self._offer(message))
        except Refused as refusal:
            deferred.answer(refusal)

    def _offer(self, message: Offer) -> Offered:
        coming = self._coming.get((message.version, message.root))
        if message.version not in self._have and coming is not None and coming.manifest is not None:
            passed_on = coming.passes_on(message.base)
            if passed_on is None:
                raise Refused(f"{self.ctx.name} pulls version {message.version} in another way: ask again")
            links = tuple(self._link(table.encode(), key) for table, key in passed_on)
            return self._offered(coming.manifest, coming.model_config, links, whole=message.base < 0)
        manifest, model_config = self._require(message.version, message.root)
        chain = self._deltas.chain(message.base, message.root)
        links = tuple(self._link(one.delta.table.encode(), one.key) for one in chain)
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

    def _require(self, version: int, root: bytes) -> tuple[Manifest, bytes]:
        known = self._have.get(version)
        if known is None or known[0].root != root:
            raise Refused(f"{self.ctx.name} does not have version {version} with that root")
        return known

    # -- fetching --

    @handles(Fetch)
    async def fetch(self, message: Fetch) -> Deferred:
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
        self._remember(message.sources[0])
        fetching = self._coming[key] = Fetching(
            self.ctx,
            message,
            self._store,
            self._server,
            self._config,
            holds=self._holds,
            base_manifest=self._manifest_of,
            site=self._site,
            down_bytes_s=self._down_bytes_s,
        )
        on = message.sources[0]
        async with self.ctx.wait("a version of weights", on=on, deadline_s=FETCH_LATE_S, go_on=True) as wait:
            try:
                refusal = await fetching.run(wait, lambda: self._is_here(*key))
                if fetching.sealed:
                    self._take(fetching)
            finally:
                del self._coming[key]
                fetching.drop()
        outcome = refusal if refusal is not None else self._fetched(message, fetching)
        for deferred in self._fetching.pop(key, []):
            deferred.answer(outcome)

    def _remember(self, publisher: str) -> None:
        self._publishers.pop(publisher, None)
        self._publishers[publisher] = None
        if len(self._publishers) > MAX_PUBLISHERS:
            del self._publishers[next(iter(self._publishers))]

    def _take(self, fetching: Fetching) -> None:
        """The version is whole: serve it, and the deltas that led to it."""
        manifest = fetching.manifest
        assert manifest is not None
        self._serve(manifest, fetching.model_config)
        way = f"{len(fetching.applied)} deltas" if fetching.applied else "whole"
        self.ctx.log.info(
            "version %d is here: %s, %d of its %d bytes pulled in %.3f s",
            manifest.version,
            way,
            fetching.pulled_bytes,
            manifest.image_bytes,
            fetching.seconds,
        )
        for delta, payload in fetching.applied:
            self._deltas.keep(delta, payload)

    def _fetched(self, message: Fetch, fetching: Fetching) -> Fetched:
        self._pulled_bytes += fetching.pulled_bytes
        self._applied += len(fetching.applied)
        self._resumed += fetching.resumed
        self._relayed += fetching.relayed
        self._bad_chunks += fetching.bad_chunks
        self._down_bytes_s = fetching.down_bytes_s
        manifest, model_config = self._have[message.version]
        return Fetched(
            version=manifest.version,
            root=manifest.root,
            path=self._store.place(manifest.version),
            tensors=manifest.tensors,
            model_config=model_config,
            pulled_bytes=fetching.pulled_bytes,
            seconds=fetching.seconds,
            deltas=len(fetching.applied),
        )

    def _manifest_of(self, version: int) -> Manifest:
        if version not in self._have:
            raise NoSuchImage(f"version {version} made way meanwhile")
        return self._have[version][0]

    def _is_here(self, version: int, root: bytes) -> bool:
        known = self._have.get(version)
        return known is not None and known[0].root == root

    def _holds(self) -> tuple[Holds, ...]:
        return tuple(Holds(version, manifest.root) for version, (manifest, _) in self._have.items())

    def _serve(self, manifest: Manifest, model_config: bytes) -> None:
        version = manifest.version
        note = msgspec.msgpack.encode(_Note(manifest.encode(), model_config))
        try:
            self._store.note(version, note)
        except ImageStoreFull as full:
            self.ctx.log.warning(
                "version %d is served; whoever starts here again pulls it: %s", version, full
            )
        self._server.publish(version, self._store.content(version))
        self._have[version] = (manifest, model_config)
        for old in sorted(self._have.keys() - self._store.versions()):
            self._tracking.forget(self._have.pop(old)[0].root)
            self._server.retire(old)

    def summary(self) -> dict[str, str | int | float]:
        return {
            "versions": ",".join(map(str, sorted(self._have))) or "-",
            "pulled_bytes": self._pulled_bytes,
            "deltas_applied": self._applied,
            "deltas_kept": len(self._deltas),
            "on_disk": self._disk.state if self._disk is not None else "-",
            "pulls_resumed": self._resumed,
            "chunks_pulled_again": self._bad_chunks,
            "pulls_from_relays": self._relayed,
            "served_bytes": self._server.served_bytes,
            "refused": sum(self._server.refused.values()),
        }
