"""TransferAgent: one on every host that trains or rolls out. Has versions of the weights, gives and gets
them.

Owns the host's image store and its bulk server. The trainer writes an image and goes on; the agent
describes it (manifest), and other agents pull it by verified chunks into their own shared memory, whenever
they want it (RLBoost 4.3). An image becomes visible whole and verified, or not at all; a pull that broke off
goes on from its last chunk. What was published survives the agent: manifests lie beside the images.
"""

import asyncio
import itertools
from dataclasses import dataclass, field

import msgspec

from actors.weights.images import ImageDraft, Images, ImageStoreError, NoSuchImage, OpenImage
from actors.weights.manifest import Manifest, ManifestError
from actors.weights.messages import Fetch, Fetched, Offer, Offered, Publish, Published
from configs.schema import Config
from supervisor import Actor, AskFailed, Deferred, Refused, Waiting, handles
from transport.bulk import BulkSource, Chunk, PullError, SourceGone

OFFER_DEADLINE_S = 5.0
CHUNK_DEADLINE_S = 60.0  # until another chunk is here; 4 MiB in that time are a link of 70 KB/s
FETCH_LATE_S = 60.0  # a fetch without a new chunk for so long is worth a line, again each time
ATTEMPTS = 20  # in a row that gave no new chunk; each costs at least the pause. Then whoever wants it is told
RETRY_S = 0.2
QUICK_RETRIES = 3  # in a row: a source that restarts is back by then
MAX_RETRY_S = 3.0  # after them, where the source hangs up: one that serves as many as it can is not stormed


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """What lies beside an image."""

    manifest: bytes
    model_config: bytes


@dataclass(slots=True)
class _Part:
    """What has come of a version so far: a pull that broke off goes on from here, at whatever source. `done`:
    offsets of the chunks that are in the draft."""

    began_s: float
    draft: ImageDraft | None = None
    done: set[int] = field(default_factory=set)
    pulled_bytes: int = 0


class TransferAgent(Actor):
    """See the module.

    Args:
        images: those of this host, in shared memory.
        config: chunk size and window.
    """

    def __init__(self, images: Images, config: Config) -> None:
        self._settings = config.weights
        self._store = images
        self._have: dict[int, tuple[Manifest, bytes]] = {}
        self._fetching: dict[tuple[int, bytes], list[Deferred]] = {}
        self._pulled_bytes = 0
        self._resumed = 0
        self._bad_chunks = 0

    async def on_start(self) -> None:
        self._server = await self.ctx.network.bulk_server()
        self.ctx.at_end(self._server.close)
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
        return Published(version=message.version, root=manifest.root)

    def _describe(self, message: Publish, image: OpenImage) -> Manifest:
        return Manifest.build(
            message.version, image.view, message.tensors, chunk_bytes=self._settings.chunk_bytes
        )

    @handles(Offer)
    async def offer(self, message: Offer) -> Offered:
        known = self._have.get(message.version)
        if known is None or known[0].root != message.root:
            raise Refused(f"{self.ctx.name} does not have version {message.version} with that root")
        manifest, model_config = known
        return Offered(
            manifest=manifest.encode(),
            model_config=model_config,
            endpoint=self._server.endpoint,
            token=self._server.issue_token(message.version),
        )

    @handles(Fetch)
    async def fetch(self, message: Fetch) -> Deferred:
        deferred = Deferred()
        key = (message.version, message.root)
        waiting = self._fetching.setdefault(key, [])
        waiting.append(deferred)
        if len(waiting) == 1:
            self.ctx.background(self._fetch(message), f"fetch {message.version}")
        return deferred

    async def _fetch(self, message: Fetch) -> None:
        on, part = message.sources[0], _Part(self.ctx.now())
        async with self.ctx.wait("a version of weights", on=on, deadline_s=FETCH_LATE_S, go_on=True) as wait:
            try:
                outcome = await self._fetch_from(message, part, wait)
            finally:
                if part.draft is not None:
                    part.draft.abandon()
        self._pulled_bytes += part.pulled_bytes
        for deferred in self._fetching.pop((message.version, message.root), []):
            deferred.answer(outcome)

    async def _fetch_from(self, message: Fetch, part: _Part, wait: Waiting) -> Fetched | Refused:
        """Ask one source after the other, for as long as chunks come. However large an image is and however
        slow the way to it, only `ATTEMPTS` without a new chunk are a failure."""
        sources, fruitless, why = itertools.cycle(message.sources), 0, "no source gave it"
        for attempt in itertools.count(1):
            known = self._have.get(message.version)
            if known is not None and known[0].root == message.root:
                return self._fetched(*known, part.pulled_bytes, self.ctx.now() - part.began_s)
            if fruitless == ATTEMPTS:
                break
            had = len(part.done)
            try:
                await self._attempt(message, next(sources), part, wait)
            except (AskFailed, PullError, ManifestError, ImageStoreError) as problem:
                fruitless = 0 if len(part.done) > had else fruitless + 1
                why = str(problem)
                here = f"{len(part.done)} chunks are here"
                self.ctx.log.warning("version %d, attempt %d: %s; %s", message.version, attempt, why, here)
                await asyncio.sleep(self._pause_s(fruitless, problem))
        return Refused(f"version {message.version} could not be pulled: {why}")

    def _pause_s(self, fruitless: int, problem: Exception) -> float:
        """Before the next attempt; drawn, so that those who failed together do not come back together."""
        if fruitless <= QUICK_RETRIES or not isinstance(problem, SourceGone):
            return RETRY_S
        most_s = min(RETRY_S * 2.0 ** (fruitless - QUICK_RETRIES), MAX_RETRY_S)
        return self.ctx.rng.uniform(most_s / 2, most_s)

    async def _attempt(self, message: Fetch, source: str, part: _Part, wait: Waiting) -> None:
        """Pull what is missing from this source; with the last chunk the version is whole, and served."""
        offered = await self.ctx.ask(
            source,
            Offer(version=message.version, root=message.root),
            deadline_s=OFFER_DEADLINE_S,
            expect=Offered,
        )
        manifest = Manifest.decode(offered.manifest)
        if manifest.root != message.root:
            raise Refused(f"the offer's root is not the one of version {message.version}")
        if part.draft is None:  # what takes time for its size is not done on the loop
            part.draft = await self.ctx.offload(self._store.create, message.version, manifest.image_bytes)
        await self._pull(offered, manifest, part, wait)
        try:
            await self.ctx.offload(manifest.verify, part.draft.view)
        except ManifestError:
            part.done.clear()
            raise
        part.draft.seal()
        part.draft = None
        self._serve(manifest, offered.model_config)

    async def _pull(self, offered: Offered, manifest: Manifest, part: _Part, fetching: Waiting) -> None:
        """Pull the chunks that are not there yet. A failure keeps what has come."""
        left = [
            Chunk(chunk.offset, chunk.length, chunk.digest)
            for chunk in manifest.chunks
            if chunk.offset not in part.done
        ]
        assert part.draft is not None
        self._resumed += bool(part.done and left)
        on = offered.endpoint
        async with self.ctx.wait("a bulk pull", on=on, deadline_s=CHUNK_DEADLINE_S, go_on=True) as wait:

            def come(chunk: Chunk) -> None:
                part.done.add(chunk.offset)
                part.pulled_bytes += chunk.length
                wait.progress()
                fetching.progress()

            result = await self.ctx.network.pull(
                BulkSource(offered.endpoint, offered.token),
                manifest.version,
                left,
                part.draft.view,
                window=self._settings.window,
                deadline_s=CHUNK_DEADLINE_S,
                on_chunk=come,
            )
        self._bad_chunks += result.retried_chunks

    def _serve(self, manifest: Manifest, model_config: bytes) -> None:
        version = manifest.version
        note = msgspec.msgpack.encode(_Note(manifest.encode(), model_config))
        self._store.note(version, note)
        self._server.publish(version, self._store.content(version))
        self._have[version] = (manifest, model_config)
        for old in sorted(self._have.keys() - self._store.versions()):
            del self._have[old]
            self._server.retire(old)

    def _fetched(self, manifest: Manifest, model_config: bytes, pulled: int, seconds: float) -> Fetched:
        return Fetched(
            version=manifest.version,
            root=manifest.root,
            path=self._store.place(manifest.version),
            tensors=manifest.tensors,
            model_config=model_config,
            pulled_bytes=pulled,
            seconds=seconds,
        )

    def summary(self) -> dict[str, str | int | float]:
        return {
            "versions": ",".join(map(str, sorted(self._have))) or "-",
            "pulled_bytes": self._pulled_bytes,
            "pulls_resumed": self._resumed,
            "chunks_pulled_again": self._bad_chunks,
            "served_bytes": self._server.served_bytes,
            "refused": sum(self._server.refused.values()),
        }
