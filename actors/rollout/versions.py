"""Which versions of the weights there are: published, and lost with a trainer that went back.

Owns the roots by version, and what publishing one does to the others. Pure: no clock, no I/O.

A version is *known* from its publication until the trainer says that an older one is its newest: then it is
*lost*, and nothing is made under it until it is published again. Trained again from the same samples it has
the same root, and what was begun under it is as good as before. With another root it is another version:
whoever holds tokens of the lost one must not take them for tokens of this one.

Source of the gate: the contract that Stitch serves and miles asks for (docs/versions.md).
"""

from collections.abc import Iterable

from actors.rollout.events import VersionPublished

MAX_KNOWN = 64
"""Older ones are forgotten: no batch is open for so long, a step behind the bound waits for its samples."""


class Versions:
    """See the module. Read `known` and `lost` freely."""

    def __init__(self, known: Iterable[VersionPublished] = (), lost: Iterable[VersionPublished] = ()) -> None:
        self.known = {event.version: event for event in known}
        self.lost = {event.version: event for event in lost}

    @property
    def newest(self) -> VersionPublished | None:
        """What instances should serve now; None before the first publication."""
        return self.known[max(self.known)] if self.known else None

    @property
    def highest(self) -> int | None:
        """The highest version that was ever published, lost ones included; None for none."""
        return max([*self.known, *self.lost], default=None)

    def publish(self, event: VersionPublished) -> None:
        """This is the newest version now: higher ones are lost until they are published again."""
        for version in [version for version in self.known if version > event.version]:
            self.lost[version] = self.known.pop(version)
        self.lost.pop(event.version, None)
        self.known.pop(event.version, None)
        self.known[event.version] = event
        for kept in (self.known, self.lost):
            for version in sorted(kept)[:-MAX_KNOWN]:
                del kept[version]

    def does_not_ascend(self, version: int, root: bytes) -> str:
        """Why these weights would take something back: there is a higher version, or another one of this
        number; "" where they do not. The same again takes nothing back."""
        newest, known = self.newest, self.known.get(version)
        if newest is None or version > newest.version or (known is not None and known.root == root):
            return ""
        if known is not None:
            return f"version {version} was published before with other bytes: give these a higher number"
        return (
            f"version {version} cannot be published, version {newest.version} is the newest: versions go up, "
            f"go on with {newest.version + 1}"
        )

    def root(self, version: int) -> bytes | None:
        """The root under which this version was published last, lost or not; None for one never heard of."""
        event = self.known.get(version) or self.lost.get(version)
        return None if event is None else event.root

    def roots(self, least: int) -> dict[int, bytes]:
        """The roots of the known versions from `least` on."""
        return {version: event.root for version, event in sorted(self.known.items()) if version >= least}
