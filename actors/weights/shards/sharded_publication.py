"""`ShardedPublication`: one version published in parts by the ranks of a sharded trainer.

The ranks are on one host or many, and nothing is gathered. The ranks of a host write into its image. When all
of them have written, their host cuts and hashes their runs, and sends the result to the joining agent. When
that agent has the results of all ranks, it makes the one manifest, with the owners, and every host serves its
own part. The first owner notifies the manager and tracks the receivers. Soft state: after a restart of an
agent its callers ask again, and the written bytes are still in shared memory.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gleaner.actors.model.byte_ranges import Run, TilingError, check_tiling, cut, joined
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import (
    Joined,
    JoinPart,
    OpenPart,
    PartIsOpen,
    PartLost,
    PartWritten,
    Published,
)
from gleaner.actors.weights.image.finite_check import not_finite
from gleaner.actors.weights.image.manifest import BadManifest, Manifest, hashed
from gleaner.actors.weights.image.port import ImageDraft, ImageStoreError
from gleaner.actors.weights.shards.assembly import VersionAssembly
from gleaner.actors.weights.transfer.host_versions import HostVersions
from gleaner.actors.weights.transfer.publication import Unusable, VersionPublisher
from gleaner.configs.schema import Weights
from gleaner.supervisor import AskFailed, Context, Deferred, Refused
from gleaner.transport.bulk_frames import Chunk

JOIN_DEADLINE_S = 600.0  # until the slowest rank has written; a dead rank is detected by then
LOST_S = 5.0  # slower ranks learn of the failure meanwhile; after that the version may be tried again
MAX_JOINING = 2  # versions: the one that is being written, and one whose last ranks are late


@dataclass(slots=True)
class _Here:
    """The parts that the ranks of this host write."""

    tensors: tuple[TensorSpec, ...]
    draft: ImageDraft | None = None
    runs: dict[int, tuple[Run, ...]] = field(default_factory=dict)
    waiting: list[Deferred] = field(default_factory=list)
    sent: bool = False


@dataclass(slots=True)
class _Joining:
    """The parts that hosts have sent."""

    received: dict[str, JoinPart] = field(default_factory=dict)
    waiting: list[Deferred] = field(default_factory=list)


class ShardedPublication:
    """See the module docstring."""

    def __init__(
        self,
        ctx: Context,
        versions: HostVersions,
        publisher: VersionPublisher,
        assembly: VersionAssembly,
        settings: Weights,
    ) -> None:
        self._ctx, self._store, self._served = ctx, versions.images, versions.served
        self._chunk_bytes, self._require_finite = settings.chunk_bytes, settings.require_finite
        self._deltas, self._publisher, self._assembly = versions.deltas, publisher, assembly
        self._here: dict[int, _Here] = {}
        self._joining: dict[int, _Joining] = {}
        self._made: dict[int, Manifest] = {}
        self._lost = (-1, "", 0.0)  # a version that will not be whole, why, and until when ranks learn it

    # -- ranks of this host --

    async def open(self, message: OpenPart) -> PartIsOpen:
        """Raises Refused."""
        self._publisher.may(message)
        here = await self._opened(message.version, message.tensors, message.image_bytes)
        if here.sent or here.draft is None:
            raise Refused(f"version {message.version} is being published: its parts were written")
        return PartIsOpen(path=str(here.draft.path))

    async def _opened(self, version: int, tensors: tuple[TensorSpec, ...], nbytes: int) -> _Here:
        if version not in self._here:
            here = _Here(tensors)
            self._here[version] = here
            for older in sorted(self._here)[:-MAX_JOINING]:
                self._give_up(older, f"version {version} is written, and not all ranks had written {older}")
            try:
                here.draft = await self._ctx.offload(self._store.create, version, nbytes, tensors)
            except (ImageStoreError, ValueError) as problem:
                self._here.pop(version, None)
                raise Refused(f"version {version} cannot be written: {problem}") from problem
        found = self._here[version]
        if found.tensors != tensors:
            raise Refused(f"version {version}: ranks of this host do not agree which tensors there are")
        return found

    async def written(self, message: PartWritten) -> Deferred:
        """Raises Refused."""
        version, anew = message.version, message.version not in self._here
        here = await self._opened(version, message.tensors, message.image_bytes)
        if anew and here.draft is not None and not here.draft.left:  # no rank has written into this one
            self._give_up(version, lost := f"what was written of version {version} is gone: publish it again")
            raise Refused(lost)
        for rank, runs in here.runs.items():
            twice = _overlap(runs, message.runs) if rank != message.rank else None
            if twice is not None:
                why = (
                    f"version {version}: bytes {twice.offset} to {twice.end} are held by rank {rank} and by "
                    f"rank {message.rank}: each byte is one rank's to publish"
                )
                self._give_up(version, why)
                await self._ctx.tell(message.join, PartLost(version=version, why=why))
                raise Refused(why)
        here.runs[message.rank] = message.runs
        deferred = Deferred()
        here.waiting.append(deferred)
        if len(here.runs) >= message.here and not here.sent:
            here.sent = True
            self._ctx.background(self._publish(message, here), f"part of {version}")
        return deferred

    async def _publish(self, last: PartWritten, here: _Here) -> None:
        """Publish this host's part, after all its ranks have written."""
        version = last.version
        try:
            chunks, problem = await asyncio.gather(
                self._ctx.offload(self._hashed, here), self._ctx.offload_aside(self._not_finite, here)
            )
            self._publisher.require_finite(version, problem)
            part = JoinPart(
                version=version,
                source=self._ctx.name,
                tensors=last.tensors,
                model_config=last.model_config,
                image_bytes=last.image_bytes,
                ranks=last.ranks,
                members=tuple(sorted(here.runs)),
                chunks=chunks,
            )
            reply = await self._ctx.ask(last.join, part, deadline_s=JOIN_DEADLINE_S, expect=Joined)
            manifest = Manifest.decode(reply.manifest)
            anew = self._served.known(version) is None
            self._seal(version, here, manifest)
            owners = tuple(owner.source for owner in manifest.owners) or (self._ctx.name,)
            if anew:
                self._serve(manifest, last.model_config, chunks, owners[0])
            if owners[0] == self._ctx.name:
                await self._publisher.tell_manager(version, manifest.root, owners)
        except Unusable as fault:
            self._give_up(version, str(fault))
            await self._ctx.tell(last.join, PartLost(version=version, why=str(fault)))
            return
        except (AskFailed, ImageStoreError, BadManifest) as problem:
            self._give_up(version, str(problem))
            return
        self._here.pop(version, None)
        for deferred in here.waiting:
            deferred.answer(Published(version=version, root=manifest.root))

    def _serve(self, manifest: Manifest, model_config: bytes, chunks: tuple[Chunk, ...], first: str) -> None:
        """Serve this host's part of it, and the delta of that part. first: the owner that tracks
        receivers.
        """
        if not manifest.owners:  # all ranks are on this host
            self._served.add(manifest, model_config)
            self._publisher.follow(manifest)
            return
        self._served.add(manifest, model_config, chunks)
        base = self._served.before_part(manifest.version, chunks)
        self._deltas.begin_part(base, manifest, chunks, first)
        if first == self._ctx.name:
            self._assembly.begin(manifest, chunks)

    def _not_finite(self, here: _Here) -> str:
        assert here.draft is not None
        if not self._require_finite:
            return ""
        runs = joined(run for runs in here.runs.values() for run in runs)
        return not_finite(here.draft.view, here.tensors, runs)

    def _hashed(self, here: _Here) -> tuple[Chunk, ...]:
        assert here.draft is not None
        runs = joined(run for runs in here.runs.values() for run in runs)
        return hashed(here.draft.view, cut(runs, self._chunk_bytes))

    def _seal(self, version: int, here: _Here, manifest: Manifest) -> None:
        """Raises ImageStoreError, Refused."""
        assert here.draft is not None
        known = self._served.known(version)
        if known is not None:
            here.draft.abandon()
            if known[0].root != manifest.root:
                raise Refused(f"version {version} was published before with other bytes")
            return
        if version in self._store.versions():  # left by an earlier life, before its manifest was known
            self._store.discard(version)
        here.draft.seal()

    def _give_up(self, version: int, why: str) -> None:
        here = self._here.pop(version, None)
        if here is None:
            return
        self._ctx.log.warning("version not published: version=%d: %s", version, why)
        if here.draft is not None:
            here.draft.abandon()
        for deferred in here.waiting:
            deferred.answer(Refused(why))

    # -- hosts --

    def join(self, message: JoinPart) -> Deferred:
        """One host's part; answered when all ranks are there."""
        deferred = Deferred()
        known = self._made.get(message.version)
        if known is None and (served := self._served.known(message.version)) is not None:
            known = served[0]
        if known is not None and known.shares().get(message.source) == message.chunks:
            deferred.answer(Joined(manifest=known.encode()))  # repeated
            return deferred
        lost, why, until_s = self._lost
        if message.version == lost and self._ctx.now() < until_s:
            deferred.answer(Refused(why))
            return deferred
        joining = self._joining.setdefault(message.version, _Joining())
        joining.received[message.source] = message
        joining.waiting.append(deferred)
        for older in sorted(self._joining)[:-MAX_JOINING]:
            self._joined(older, Refused(f"version {older}: a newer one came before all ranks had written it"))
        members = [rank for received in joining.received.values() for rank in received.members]
        if len(members) >= message.ranks:
            self._ctx.background(self._join(message.version, joining), f"join {message.version}")
        return deferred

    def lost(self, message: PartLost) -> None:
        """Ranks of a host do not publish it after all. Hosts whose parts are still due get this answer when
        they send them."""
        self._lost = (message.version, message.why, self._ctx.now() + LOST_S)
        self._joined(message.version, Refused(message.why))

    async def _join(self, version: int, joining: _Joining) -> None:
        first, *others = joining.received.values()
        shares = {source: received.chunks for source, received in joining.received.items()}
        if any(one.tensors != first.tensors or one.image_bytes != first.image_bytes for one in others):
            why = f"version {version}: hosts do not agree which tensors there are"
            self._joined(version, Refused(why))
            return
        held = {
            f"{source} (rank {', '.join(map(str, received.members))})": joined(
                Run(chunk.offset, chunk.length) for chunk in received.chunks
            )
            for source, received in joining.received.items()
        }
        try:
            check_tiling(held, first.image_bytes)
            manifest = await self._ctx.offload(Manifest.join, version, first.tensors, shares)
        except (TilingError, BadManifest) as fault:
            self._joined(version, Refused(f"version {version} cannot be published: {fault}"))
        else:
            self._made = {**dict(list(self._made.items())[1 - MAX_JOINING :]), version: manifest}
            self._joined(version, Joined(manifest=manifest.encode()))

    def _joined(self, version: int, outcome: Joined | Refused) -> None:
        joining = self._joining.pop(version, None)
        for deferred in joining.waiting if joining is not None else []:
            deferred.answer(outcome)


def _overlap(one: Sequence[Run], other: Sequence[Run]) -> Run | None:
    """Bytes that are in both; None for none."""
    both = sorted([*joined(one), *joined(other)], key=lambda run: run.offset)
    for before, after in pairwise(both):
        if after.offset < before.end:
            return Run(after.offset, min(before.end, after.end) - after.offset)
    return None
