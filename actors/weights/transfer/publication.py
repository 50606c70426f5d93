"""`VersionPublisher`: describes and serves an image in the store, and announces it.

Owns everything that follows from `Publish`. The job's own trainer notifies the manager itself at the end of
its step. For an external trainer, which may end at any moment, this agent notifies the manager. A version is
published once: the same bytes again are fine, other bytes are refused. Weights that no engine could use are
refused too: with NaN or infinity, or with other tensors than the previous version.
"""

import asyncio
from collections.abc import Callable

from gleaner.actors.names import CONTROLLER, MANAGER
from gleaner.actors.protocol.rollout import PublishVersion, Weights, WeightsFailed
from gleaner.actors.protocol.weights import FindStore, MayPublish, OpenPart, Publish, Published, StoreIs
from gleaner.actors.weights.disk.publication import DiskPublication, DiskVersions
from gleaner.actors.weights.image.finite_check import not_finite
from gleaner.actors.weights.image.layout_change import layout_change
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.actors.weights.image.port import NoSuchImage, OpenImage
from gleaner.actors.weights.settings import TransferSettings
from gleaner.actors.weights.transfer.host_versions import HostVersions
from gleaner.supervisor import AskFailed, Context, Deferred, Done, Refused

TELL_DEADLINE_S = 60.0  # far above a restart of the manager


class Unusable(Exception):
    """No engine could use these weights; the text gives the reason."""


class VersionPublisher:
    """See the module docstring."""

    def __init__(
        self,
        ctx: Context,
        versions: HostVersions,
        settings: TransferSettings,
        disk: Callable[[], DiskVersions | None],
    ) -> None:
        self._ctx, self._store = ctx, versions.images
        self._served, self._deltas = versions.served, versions.deltas
        self._backend, self._settings = settings.training.backend, settings.weights
        self._open_disk = disk
        self._disk: DiskPublication | None = None

    def store(self, message: FindStore) -> StoreIs:
        """The place where a trainer of this host writes. Raises Refused if the job has a trainer of its
        own.
        """
        if self._backend != "own":
            raise Refused(
                f'this job trains its own weights (training.backend = "{self._backend}"), no others can be '
                'published: start one with training.backend = "own"'
            )
        newest = max(self._served.versions, default=None)
        known = self._served.known(newest) if newest is not None else None
        return StoreIs(place=self._store.place(0), model_config=known[1] if known is not None else b"")

    async def publish(self, message: Publish) -> Published | Deferred:
        """Describe the sealed image and serve it. With `announce`, the reply waits until the manager has the
        version. Raises Refused."""
        if not message.announce:
            return await self._usable(message)
        deferred = Deferred()
        self._ctx.background(self._announce(message, deferred), f"publish {message.version}")
        return deferred

    async def _usable(self, message: Publish) -> Published:
        """Check the weights. The job's own trainer would publish the same again, so its job ends with the
        reason. Raises Refused."""
        try:
            return await self._describe(message)
        except Unusable as fault:
            if not message.announce:
                await self._ctx.tell(CONTROLLER, WeightsFailed(version=message.version, why=str(fault)))
            raise Refused(str(fault)) from fault

    def may(self, message: MayPublish | OpenPart) -> None:
        """Raises Refused if an image of these tensors cannot be published as this version."""
        try:
            self._require_fitting(message)
        except Unusable as fault:
            raise Refused(str(fault)) from fault

    def _require_fitting(self, message: Publish | MayPublish | OpenPart) -> None:
        """Require that engines of the previous version can serve these tensors. Raises Unusable."""
        older = [version for version in self._served.versions if version < message.version]
        if not older or message.model_changed:
            return
        before = self._served.manifest(older[-1])
        if change := layout_change(before.tensors, message.tensors):
            raise Unusable(
                f"version {message.version} is not like version {before.version}: {change}. Engines load the "
                "model that they serve: publish with model_changed where the model did change"
            )

    def require_finite(self, version: int, problem: str) -> None:
        """Require finite weights. problem: the tensor that holds a non-finite element, "" for none. Raises
        Unusable.
        """
        if problem:
            raise Unusable(
                f"version {version} holds NaN or infinity, first in {problem!r}: no engine could use it "
                "(weights.require_finite)"
            )

    async def _announce(self, message: Publish, deferred: Deferred) -> None:
        try:
            published = await self._usable(message)
            await self.tell_manager(message.version, published.root, (self._ctx.name,))
        except Refused as refusal:
            deferred.answer(refusal)
        else:
            deferred.answer(published)

    async def tell_manager(self, version: int, root: bytes, sources: tuple[str, ...]) -> None:
        """Announce the version to the manager, for instances to serve. Raises Refused."""
        weights = Weights(version=version, root=root, sources=sources)
        newest = PublishVersion(weights=weights, ascending=True)
        try:
            await self._ctx.ask(MANAGER, newest, deadline_s=TELL_DEADLINE_S, expect=Done)
        except Refused:
            raise
        except AskFailed as problem:
            raise Refused(
                f"version {version} is here, {MANAGER} did not take it: {problem}; publish it again"
            ) from problem

    async def _describe(self, message: Publish) -> Published:
        try:
            if message.announce:
                self._require_fitting(message)
            with self._store.open(message.version) as image:
                manifest, problem = await asyncio.gather(
                    self._ctx.offload(self._manifest, message, image),
                    self._ctx.offload_aside(self._not_finite, message, image),
                )
            self.require_finite(message.version, problem)
            known = self._served.known(message.version)
            if known is not None and known[0].root != manifest.root:
                raise Refused(f"version {message.version} was published before with other bytes")
            self._served.add(manifest, message.model_config)
        except NoSuchImage as absent:
            raise Refused(f"version {message.version} cannot be published: {absent}") from absent
        if known is None:
            self.follow(manifest)
        return Published(version=message.version, root=manifest.root)

    def follow(self, manifest: Manifest) -> None:
        """Start the work that follows when a version is whole here for the first time."""
        before = self._served.before(manifest.version)
        if before is not None:  # receivers that lag behind should need only the changes
            self._deltas.begin(before, manifest)
        self.to_disk(manifest)

    @property
    def disk_state(self) -> str:
        """One word on the state of the disk, for inspection."""
        return self._disk.state if self._disk is not None else "-"

    def to_disk(self, manifest: Manifest) -> None:
        """Write a version that is whole here to disk too, if one is configured."""
        if self._disk is None:
            self._disk = DiskPublication(
                self._ctx, self._store, self._open_disk, self._settings.disk_whole_every
            )
        before = self._served.before(manifest.version)
        next_to_it = before is not None and before.version == manifest.version - 1
        self._disk.publish(manifest, before if next_to_it else None)

    def _not_finite(self, message: Publish, image: OpenImage) -> str:
        return not_finite(image.view, message.tensors) if self._settings.require_finite else ""

    def _manifest(self, message: Publish, image: OpenImage) -> Manifest:
        return Manifest.build(
            message.version, image.view, message.tensors, chunk_bytes=self._settings.chunk_bytes
        )
