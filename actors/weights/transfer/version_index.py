"""`VersionIndex`: the versions that a host has, served and noted beside their images.

The notes let the versions outlive the agent. Owns the versions and their offers at the bulk server.
`publication` and `fetch` supply the versions.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from gleaner.actors.model.config_text import BadCheckpoint, hub_settings
from gleaner.actors.protocol.weights import EnginePart, Holds
from gleaner.actors.weights.image.manifest import Manifest, ManifestError
from gleaner.actors.weights.image.port import Images, ImageStoreFull, NoSuchImage
from gleaner.actors.weights.shards.layout import LayoutError
from gleaner.actors.weights.shards.subset import chunks_of
from gleaner.supervisor import Context, Refused
from gleaner.transport.bulk import BulkServer, Chunk, PartialContent

SERVED_VERSIONS = 2  # the newest, and the one that late receivers pull; unserved memory is reused


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """The note beside an image."""

    manifest: bytes
    model_config: bytes
    part: tuple[Chunk, ...] | None = None  # the chunks that are here; None: all


def _settings(manifest: Manifest, model_config: bytes) -> bytes:
    """`config.json` for readers that load the version as a checkpoint; empty if no model is known."""
    try:
        return hub_settings(model_config, manifest.tensors[0].dtype if manifest.tensors else "float32")
    except BadCheckpoint:
        return b""


class VersionIndex:
    """Serves versions. on_gone: called with the root of an evicted version."""

    def __init__(
        self, ctx: Context, images: Images, server: BulkServer, on_gone: Callable[[bytes], None]
    ) -> None:
        self._ctx, self._store, self._server, self._on_gone = ctx, images, server, on_gone
        self._have: dict[int, tuple[Manifest, bytes]] = {}
        self._parts: dict[int, tuple[Chunk, ...]] = {}  # of the versions that are not here whole
        self._handed: set[tuple[int, bytes]] = set()  # versions, with their roots, that an engine has got

    def __contains__(self, version: int) -> bool:
        return version in self._have

    @property
    def versions(self) -> list[int]:
        """The versions that are here, ascending."""
        return sorted(self._have)

    async def find_again(self) -> None:
        """Serve the versions that an earlier life left."""
        for version in self._store.versions():
            try:
                await self._find_again(version)
            except NoSuchImage:  # evicted meanwhile
                continue

    async def _find_again(self, version: int) -> None:
        """Serve a version if it is undamaged: the memory outlives its owner, and the cause of the owner's end
        may have damaged it. A damaged image is discarded; a host that wants it pulls it again."""
        noted = self._store.noted(version)
        if noted is None:
            return
        note = msgspec.msgpack.decode(noted, type=_Note)
        manifest = Manifest.decode(note.manifest)
        if damage := await self._damage(manifest, note.part):
            self._ctx.log.warning("what was left of an earlier life is discarded: %s", damage)
            self._store.discard(version)
            return
        self.add(manifest, note.model_config, note.part)
        self._handed.add((version, manifest.root))  # to engines of that life

    async def look_again(self, version: int, root: bytes) -> None:
        """Compare a version that was handed out before with its manifest once more. The engine that had it
        has ended, and its memory may have been damaged since. A damaged version is dropped."""
        if (version, root) not in self._handed or not self.has(version, root):
            return
        try:
            damage = await self._damage(self._have[version][0], self._parts.get(version))
        except NoSuchImage as problem:
            damage = str(problem)
        if damage:
            self._ctx.log.warning("version %d is dropped, to be pulled again: %s", version, damage)
            self.drop(version, root)

    def hand_out(self, version: int, root: bytes) -> tuple[Manifest, bytes]:
        """What an engine learns of the version. Raises Refused if it is not here, or has another root."""
        found = self.require(version, root)
        self._handed = {one for one in (*self._handed, (version, root)) if self.has(*one)}
        return found

    async def _damage(self, manifest: Manifest, part: tuple[Chunk, ...] | None) -> str:
        """The damage of an image, "" for none. Raises NoSuchImage."""
        try:
            with self._store.open(manifest.version) as image:
                await self._ctx.offload(manifest.verify, image.view, part)
        except ManifestError as damage:
            return str(damage)
        return ""

    def add(self, manifest: Manifest, model_config: bytes, part: tuple[Chunk, ...] | None = None) -> None:
        """Serve a version whose image is sealed in the store, or the `part` of it that is here. Of the older
        versions only its predecessor stays served. Raises NoSuchImage if the version itself was evicted."""
        version = manifest.version
        self._note(manifest, model_config, part)
        self._publish(version, part)
        self._have.pop(version, None)
        self._have[version] = (manifest, model_config)  # the newest last
        self._parts.pop(version, None)
        if part is not None:
            self._parts[version] = part
        behind = set(list(self._have)[:-SERVED_VERSIONS])
        for old in sorted(behind | self._have.keys() - self._store.versions()):
            self._on_gone(self._have.pop(old)[0].root)
            self._parts.pop(old, None)
            self._server.retire(old)

    def serve_again(self, version: int, root: bytes) -> None:
        """Serve what is here of a version, if anything is: a fetch of the same version has ended without
        effect, and took what it served out of the server."""
        if self.has(version, root):
            with suppress(NoSuchImage):  # evicted meanwhile
                self._publish(version, self._parts.get(version))

    def _publish(self, version: int, part: tuple[Chunk, ...] | None) -> None:
        content = self._store.content(version)
        if part is None:
            self._server.publish(version, content)
            return
        partial = PartialContent(content)
        for chunk in part:
            partial.landed(chunk.offset, chunk.length)
        self._server.publish(version, partial)

    def drop(self, version: int, root: bytes) -> None:
        """Stop serving it and free its memory; readers keep the memory until they release it. Does nothing if
        it is not here under that root."""
        if not self.has(version, root):
            return
        del self._have[version]
        self._parts.pop(version, None)
        self._on_gone(root)
        self._server.retire(version)
        self._store.discard(version)

    def is_whole(self, version: int) -> None:
        """The missing rest of a partial version has arrived: its image was sealed anew. Raises
        NoSuchImage."""
        manifest, model_config = self._have[version]
        self._note(manifest, model_config, None)
        self._server.publish(version, self._store.content(version))
        self._parts.pop(version, None)

    def known(self, version: int) -> tuple[Manifest, bytes] | None:
        """The manifest and the model's config of a version; None if it is not here."""
        return self._have.get(version)

    def require(self, version: int, root: bytes) -> tuple[Manifest, bytes]:
        """The same. Raises Refused if it is not here, or has another root."""
        known = self._have.get(version)
        if known is None or known[0].root != root:
            raise Refused(f"{self._ctx.name} does not have version {version} with that root")
        return known

    def manifest(self, version: int) -> Manifest:
        """Raises NoSuchImage."""
        if version not in self._have:
            raise NoSuchImage(f"version {version} made way meanwhile")
        return self._have[version][0]

    def has(self, version: int, root: bytes) -> bool:
        """Whether it is here under that root."""
        known = self._have.get(version)
        return known is not None and known[0].root == root

    def suffices(self, version: int, part: EnginePart | None) -> bool:
        """Whether the chunks of a version that are here, if any, contain all of this part."""
        here = self._parts.get(version)
        if here is None:
            return True
        try:
            return part is not None and set(chunks_of(self._have[version][0], part)) <= set(here)
        except LayoutError:
            return False

    def holds(self) -> tuple[Holds, ...]:
        """The versions that a delta could start from."""
        return tuple(
            Holds(version, manifest.root)
            for version, (manifest, _) in self._have.items()
            if version not in self._parts
        )

    def _note(self, manifest: Manifest, model_config: bytes, part: tuple[Chunk, ...] | None) -> None:
        note = msgspec.msgpack.encode(_Note(manifest.encode(), model_config, part))
        try:
            self._store.note(manifest.version, note, _settings(manifest, model_config))
        except ImageStoreFull as full:
            self._ctx.log.warning(
                "version note not written: version=%d, lost at a restart: %s", manifest.version, full
            )

    def before_part(self, version: int, part: Sequence[Chunk]) -> Manifest | None:
        """The newest one below this version, if these chunks of it are here; None for none."""
        older = max((one for one in self._have if one < version), default=None)
        if older is None:
            return None
        here = self._parts.get(older, self._have[older][0].chunks)
        places = {(chunk.offset, chunk.length) for chunk in here}
        return self._have[older][0] if all((one.offset, one.length) in places for one in part) else None

    def before(self, version: int) -> Manifest | None:
        """The newest one below this version; None for none."""
        older = [one for one in self._have if one < version and one not in self._parts]
        return self._have[max(older)][0] if older else None
