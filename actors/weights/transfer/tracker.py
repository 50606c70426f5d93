"""`SourceTracker`: answers `FindSource` for the versions that this host has published.

Owns the waves (`waves`), the choice of deltas instead of the image, and the watch over receivers, so that
the children of a dead one get another source at once.
"""

import msgspec

from gleaner.actors.protocol.weights import FindSource, ReceiverLeaves, SourceFound
from gleaner.actors.weights.delta.service import ServedDeltas
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.actors.weights.shards.layout import LayoutError
from gleaner.actors.weights.shards.subset import chunks_of
from gleaner.actors.weights.transfer.waves import Sources
from gleaner.configs.schema import Weights
from gleaner.supervisor import Context, Refused, Terminated

MAX_RECEIVERS = 4096  # watched receivers; beyond it the children of a dead one detect its end themselves


class SourceTracker:
    """Tracks receivers. `site`: of this host."""

    def __init__(self, ctx: Context, deltas: ServedDeltas, settings: Weights, site: str) -> None:
        self._ctx, self._deltas, self._site = ctx, deltas, site
        self._receivers: dict[str, int] = {}  # incarnations
        self._sources = Sources(
            ctx.name, settings.link_bytes_s, chunk_bytes=settings.chunk_bytes, relay=settings.relay
        )

    def source_for(self, asked: FindSource, manifest: Manifest) -> SourceFound:
        """The source and form (deltas or whole) in which to pull the version of that manifest."""
        base, payload_bytes = asked.base, manifest.image_bytes
        if asked.holds:
            base, chain = self._deltas.way(asked.holds, asked.root, manifest.image_bytes)
        else:
            chain = self._deltas.chain(base, asked.root)
        if chain:
            payload_bytes = sum(one.offer.nbytes for one in chain)
        elif base >= 0:  # the deltas were evicted meanwhile; the receiver finds out when it requests them
            return SourceFound(source=self._ctx.name, base=base)
        elif asked.part is not None:
            try:
                payload_bytes = sum(chunk.length for chunk in chunks_of(manifest, asked.part))
            except LayoutError as problem:
                raise Refused(str(problem)) from problem
        self._watch(asked)
        request = msgspec.structs.replace(asked, base=base)
        source = self._sources.find(request, payload_bytes, self._site, self._ctx.turn_time())
        return SourceFound(source=source, base=base)

    def ended(self, event: Terminated) -> None:
        """Perhaps one of the receivers has."""
        if self._receivers.get(event.name) == event.incarnation:
            del self._receivers[event.name]
            self._sources.lose(event.name)

    def leaves(self, message: ReceiverLeaves) -> None:
        """A receiver's host has notice, or stays after all: then its former state is learned anew."""
        if message.leaves:
            self._sources.leaves(message.receiver)
        else:
            self._sources.lose(message.receiver)

    def forget(self, root: bytes) -> None:
        """The version with that root is not here any more."""
        self._sources.forget(root)

    def _watch(self, asked: FindSource) -> None:
        name, incarnation = asked.receiver.name, asked.receiver.incarnation
        if self._receivers.get(name) == incarnation or len(self._receivers) >= MAX_RECEIVERS:
            return
        self._receivers[name] = incarnation
        self._ctx.watch(asked.receiver)
