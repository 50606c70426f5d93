"""Versions: the versions of the weights, published, lost or failed.

Owns the roots by version, and what publishing one version does to the others. Pure: no clock, no I/O.

A version is *known* from its publication until the trainer publishes an older one as its newest, as it does
after going back. Then the version is *lost*, and nothing is made under it until it is published again. If the
trainer makes it again from the same samples it has the same root, and what was started under it is as good as
before. With another root it is another version: tokens of the lost one must not count as tokens of this one.

A version that instances cannot load *fails*: it is known no longer, so the newest of the others is served.
The manager refuses to publish it again and gives the reason. Its number is used up.

Source of the gate: the contract that Stitch serves and miles asks for (docs/versions.md).
"""

from collections.abc import Iterable

from gleaner.actors.rollout.state.events import VersionFailed, VersionPublished

MAX_KNOWN = 64
"""Older ones are forgotten: no batch is open for that long, since a step behind the bound waits for its
samples."""


class Versions:
    """See the module. Read `known`, `lost` and `failed` freely."""

    def __init__(
        self,
        known: Iterable[VersionPublished] = (),
        lost: Iterable[VersionPublished] = (),
        failed: Iterable[VersionFailed] = (),
    ) -> None:
        self.known = {event.version: event for event in known}
        self.lost = {event.version: event for event in lost}
        self.failed = {event.version: event for event in failed}

    @property
    def newest(self) -> VersionPublished | None:
        """The version that instances should serve now; None before the first publication."""
        return self.known[max(self.known)] if self.known else None

    @property
    def highest(self) -> int | None:
        """The highest version that was ever published, lost and failed ones included; None for none."""
        return max([*self.known, *self.lost, *self.failed], default=None)

    def publish(self, event: VersionPublished) -> None:
        """Make this version the newest: higher ones are lost until they are published again."""
        for version in [version for version in self.known if version > event.version]:
            self.lost[version] = self.known.pop(version)
        for kept in (self.lost, self.failed):
            kept.pop(event.version, None)
        self.known.pop(event.version, None)
        self.known[event.version] = event
        for kept in (self.known, self.lost):
            for version in sorted(kept)[:-MAX_KNOWN]:
                del kept[version]

    def fail(self, event: VersionFailed) -> bool:
        """Record that instances cannot load this version. False, and no change, if its root is not known."""
        known = self.known.get(event.version)
        if known is None or known.root != event.root:
            return False
        del self.known[event.version]
        self.failed[event.version] = event
        for version in sorted(self.failed)[:-MAX_KNOWN]:
            del self.failed[version]
        return True

    def failure(self, version: int, root: bytes) -> str:
        """Why these weights cannot be published again; "" if nothing is known against them."""
        failed = self.failed.get(version)
        if failed is None or failed.root != root:
            return ""
        return f"version {version} was published before, and instances could not load it: {failed.why}"

    def does_not_ascend(self, version: int, root: bytes) -> str:
        """Why these weights would take something back: there is a higher version, or another one of this
        number; "" if they would not. The same weights again take nothing back."""
        known = self.known.get(version)
        newest = max([*self.known, *self.failed], default=None)
        if newest is None or version > newest or (known is not None and known.root == root):
            return ""
        if known is not None or version in self.failed:
            return f"version {version} was published before with other bytes: give these a higher number"
        return (
            f"version {version} cannot be published, version {newest} is the newest: versions go up, "
            f"go on with {newest + 1}"
        )

    def root(self, version: int) -> bytes | None:
        """The root under which this version was published last, lost or not; None for an unknown one."""
        event = self.known.get(version) or self.lost.get(version) or self.failed.get(version)
        return None if event is None else event.root

    def roots(self, least: int) -> dict[int, bytes]:
        """The roots of the known versions from `least` on."""
        return {version: event.root for version, event in sorted(self.known.items()) if version >= least}
