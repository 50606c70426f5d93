"""`VersionFetch`: one version on its way to this host, until its image is sealed.

Owns a pull from its first request to the sealed image, whole or as deltas. Sources may disappear at any time.
Verified chunks stay, and the pull resumes at any source that has the rest. However large a version is and
however slow its link, only `ATTEMPTS` attempts in a row without a new chunk are a failure. Chunks are passed
on while the version arrives (`PartialContent`). If anything fails with deltas, the whole image is pulled. The
agent owns the requests of other hosts, and decides which versions are kept.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from gleaner.actors.protocol.weights import EnginePart, Fetch, FindSource, Offer, Offered
from gleaner.actors.weights.delta.cache import KeptDelta
from gleaner.actors.weights.delta.chain import UnusableDelta, chain_of, payloads_of, tables_of
from gleaner.actors.weights.delta.codec import DeltaError
from gleaner.actors.weights.delta.image_delta import Mapper, apply
from gleaner.actors.weights.delta.table import DeltaTable
from gleaner.actors.weights.image.manifest import Manifest, ManifestError
from gleaner.actors.weights.image.port import ImageDraft, Images, ImageStoreError
from gleaner.actors.weights.shards.layout import LayoutError
from gleaner.actors.weights.shards.owners import OFFER_DEADLINE_S, Owners, shares_of_deltas, shares_of_image
from gleaner.actors.weights.shards.subset import chunks_of
from gleaner.actors.weights.transfer.payload import Payload
from gleaner.actors.weights.transfer.pull import Pulls
from gleaner.actors.weights.transfer.pull_state import RunningPull, SourceChanged, Superseded
from gleaner.actors.weights.transfer.source_lookup import ASK_AGAIN_S, BadSource, SourceLookup
from gleaner.actors.weights.transfer.version_index import VersionIndex
from gleaner.configs.schema import Weights
from gleaner.supervisor import AskFailed, Context, Refused, Waiting
from gleaner.transport.bulk import BadHash, BadRange, BulkServer, Chunk, PullError

ATTEMPTS = 20  # in a row without a new chunk, each at least a pause long; then the requester gets the error
FETCH_LATE_S = 60.0  # a fetch without a new chunk for so long is logged, each time again
MOST = 0.5  # of a version: beyond that its pull is ended even though a newer one is wanted


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """The host that versions are pulled to.

    Args:
        images: the store in shared memory.
        served: the versions that are here.
        server: passes chunks on while a version arrives.
        site: where this host is; links between sites are slow.
        each: maps over the chunks of deltas.
    """

    images: Images
    served: VersionIndex
    server: BulkServer
    site: str = ""
    each: Mapper = map


class VersionFetch:
    """Pulls one version to this host.

    Args:
        wanted: the version and its sources; the first source is the publisher, which tracks the receivers.
        target: this host.
        settings: section `weights`.
        down_bytes_s: measured throughput of earlier pulls; 0: not known.
    """

    def __init__(
        self,
        ctx: Context,
        wanted: Fetch,
        target: FetchTarget,
        settings: Weights,
        down_bytes_s: float,
    ) -> None:
        self._ctx, self._wanted, self._store, self._server = ctx, wanted, target.images, target.server
        self._served, self._each = target.served, target.each
        self._began_s = ctx.now()
        self._deltas_tried = not settings.delta or wanted.part is not None
        self._draft: ImageDraft | None = None
        self._payloads: list[Payload] = []
        self._tables: tuple[DeltaTable, ...] = ()
        self._finding = SourceLookup(ctx, wanted, target.site, relay=settings.relay)
        self._under_way = RunningPull(
            lambda source: self._finding.other_than(self._question(source)),
            self._finding.may_change,
            lambda: self.pulled_bytes,
        )
        self.base = -1
        self.sealed = False
        self.begun = asyncio.Event()  # chunks can be passed on, or soon
        self.manifest: Manifest | None = None
        self.model_config = b""
        self.chunks: tuple[Chunk, ...] = ()  # chunks of the image that are wanted here
        self.applied: tuple[KeptDelta, ...] = ()
        self.pulls = Pulls(ctx, settings, down_bytes_s)
        self.relayed = 0
        self.without_room = 0

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._ctx.now() - self._began_s

    @property
    def pulled_bytes(self) -> int:
        """Bytes pulled so far, kept or not."""
        return self.pulls.pulled_bytes

    @property
    def have_bytes(self) -> int:
        """Bytes pulled so far and verified."""
        return sum(one.have_bytes for one in self._payloads)

    @property
    def wanted_part(self) -> EnginePart | None:
        """The part of the image that is wanted here; None for all."""
        return self._wanted.part

    def passes_on(self, base: int) -> list[tuple[DeltaTable, int]] | None:
        """What it can pass on now to a host that wants the image (-1) or the deltas from `base`, those with
        their served keys. None: nothing that such a host could use."""
        if not self._payloads or self.base != base:
            return None
        return [(table, one.key) for table, one in zip(self._tables, self._payloads, strict=False)]

    async def run(self, wait: Waiting, here: Callable[[], bool]) -> Refused | None:
        """Pull until the image is sealed, or `here` already; None then."""
        fruitless, why = 0, "no source gave it"
        for attempt in itertools.count(1):
            if here():
                return None
            if self._under_way.newer is not None:
                return self._refusal()
            if fruitless == ATTEMPTS:
                break
            had, source = self.pulled_bytes, ""
            try:
                source = await self._find()
                await self._attempt(source, wait)
                self._ctx.background(self._finding.tell(self._question()), "report that it is here")
                return None
            except UnusableDelta as problem:
                self._ctx.log.warning(
                    "deltas failed, pulling image: version=%d: %s", self._wanted.version, problem
                )
                self.drop()
            except Superseded:
                return self._refusal()
            except SourceChanged as move:
                self._ctx.log.info("source changed: version=%d: %s", self._wanted.version, move)
            except (AskFailed, PullError, ManifestError, BadSource, ImageStoreError) as problem:
                fruitless = 0 if self.pulled_bytes > had else fruitless + 1
                why = str(problem)
                if isinstance(problem, ImageStoreError):  # not the fault of another host
                    self.without_room += 1
                else:
                    self._finding.failed(source, problem)
                if self.manifest is not None and self.manifest.owners and source in self._wanted.sources:
                    self._finding.incomplete(source)
                here_now = f"{self.have_bytes} bytes are here"
                self._ctx.log.warning(
                    "version %d, attempt %d: %s; %s", self._wanted.version, attempt, why, here_now
                )
                await asyncio.sleep(self._finding.pause_s(fruitless, problem))
        return Refused(f"version {self._wanted.version} could not be pulled: {why}")

    def overtaken_by(self, version: int) -> None:
        """A newer version is wanted: give this one up, unless most of it is here already."""
        whole = sum(chunk.length for one in self._payloads for chunk in one.chunks)
        if version > self._wanted.version and self.have_bytes <= MOST * whole:
            self._under_way.overtake(version)

    def _refusal(self) -> Refused:
        newer = self._under_way.newer
        return Refused(f"version {newer} is wanted here instead of {self._wanted.version}")

    def drop(self) -> None:
        """Discard the partial version, unless it is whole; a second call does nothing."""
        if self.sealed:
            return
        for one in self._payloads:
            one.partial.end()
            self._server.retire(one.key)
        self._payloads, self._tables, self.base = [], (), -1
        if self._draft is not None:
            self._draft.abandon()
            self._draft = None
        self.begun.clear()

    async def _find(self) -> str:
        """The source to pull from, with deltas or whole; that choice is fixed once the pull has begun."""
        while True:
            found = await self._finding.find(self._question())
            if found is not None:
                break
            await asyncio.sleep(ASK_AGAIN_S)
        if not self._payloads:
            self.base = found.base
        return found.source

    def _question(self, current: str = "") -> FindSource:
        begun = bool(self._payloads)
        return self._finding.question(
            holds=() if begun or self._deltas_tried else self._served.holds(),
            base=self.base if begun else -1,
            have_bytes=self.have_bytes,
            down_bytes_s=self.pulls.down_bytes_s,
            current=current,
        )

    # -- pulling --

    async def _attempt(self, source: str, wait: Waiting) -> None:
        """Pull the missing chunks from this source; with the last chunk the version is whole, and sealed."""
        offered = await self._ctx.ask(
            source,
            Offer(version=self._wanted.version, root=self._wanted.root, base=self.base),
            deadline_s=OFFER_DEADLINE_S,
            expect=Offered,
        )
        try:
            manifest = Manifest.decode(offered.manifest)
        except ManifestError as problem:
            raise BadSource(f"{source} offers no manifest: {problem}") from problem
        if manifest.root != self._wanted.root:
            raise BadSource(f"the root that {source} offers is not the one of version {self._wanted.version}")
        self.manifest, self.model_config = manifest, offered.model_config
        self.relayed += source not in self._wanted.sources
        if self.base < 0:
            await self._whole(source, offered, manifest, wait)
        else:
            await self._by_deltas(source, offered, manifest, wait)

    async def _whole(self, source: str, offered: Offered, manifest: Manifest, wait: Waiting) -> None:
        if not self._payloads:
            draft = await self._image_draft(manifest)
            try:
                self.chunks = chunks_of(manifest, self._wanted.part)
            except LayoutError as problem:
                raise Refused(str(problem)) from problem
            payload = Payload(manifest.version, self.chunks, draft.view)
            if draft.left:
                payload.has_all_but(await self._ctx.offload(manifest.missing, draft.view))
            self._begin([payload])
        if manifest.owners and source in self._wanted.sources:
            shares = shares_of_image(manifest, self._payloads[0])
            work = Owners(self._ctx, self.pulls, manifest).pull(shares, wait)
            await self._under_way.finish(source, work)
        else:
            work = self.pulls.all_of(self._payloads, offered.endpoint, [offered.token], wait)
            await self._under_way.finish(source, work)
        self._payloads[0].require_all()
        self._seal()

    async def _by_deltas(self, source: str, offered: Offered, manifest: Manifest, wait: Waiting) -> None:
        self._deltas_tried = True
        await self._image_draft(manifest)  # nothing is pulled if there is no space for the image
        try:
            tables = tables_of(offered, manifest, source)
            if not self._payloads:
                self._begin(payloads_of(offered, tables))
                self._tables = tables
            elif tables != self._tables:
                raise UnusableDelta(f"{source} has other deltas than the one before")
            shares = shares_of_deltas(tables, self._payloads)
            if shares and source in self._wanted.sources:
                work = Owners(self._ctx, self.pulls, manifest, self.base, tables).pull(shares, wait)
            else:
                tokens = [link.token for link in offered.deltas]
                work = self.pulls.all_of(self._payloads, offered.endpoint, tokens, wait)
            await self._under_way.finish(source, work)
            await self._apply(manifest)
        except (DeltaError, ManifestError, ImageStoreError) as problem:
            raise UnusableDelta(str(problem)) from problem
        except (BadHash, BadRange) as problem:
            if source not in self._wanted.sources:
                raise  # other sources have it as it was made
            raise UnusableDelta(str(problem)) from problem

    async def _apply(self, manifest: Manifest) -> None:
        chain = chain_of(self._tables, self._payloads)
        base_manifest = self._served.manifest(self.base)
        with self._store.open(self.base) as base:
            draft = await self._image_draft(manifest)
            await self._ctx.offload(
                apply, chain, base.view, draft.view, base_manifest, manifest, each=self._each
            )
        self._seal()
        self.applied = tuple(
            KeptDelta(table, one.into) for table, one in zip(self._tables, self._payloads, strict=True)
        )

    def _begin(self, payloads: list[Payload]) -> None:
        """From here on this host passes on what it has."""
        self._payloads = payloads
        for one in payloads:
            self._server.publish(one.key, one.partial)
        self.begun.set()

    async def _image_draft(self, manifest: Manifest) -> ImageDraft:
        """Allocate the draft. The part whose time grows with the size runs off the event loop."""
        if self._draft is None:
            size, tensors = manifest.image_bytes, manifest.tensors
            self._draft = await self._ctx.offload(self._store.create, manifest.version, size, tensors)
        return self._draft

    def _seal(self) -> None:
        assert self._draft is not None
        self._draft.seal()
        self._draft, self.sealed = None, True
