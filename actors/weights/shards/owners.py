"""`Owners`: a pull from several publishers at once, each the owner of a part.

Owns the requests to the owners of an image or of deltas. A failed owner does not stop the transfers of the
others. `transfer.source_lookup` chooses the sources of the other receivers in the wave.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gleaner.actors.protocol.weights import Offer, Offered
from gleaner.actors.weights.delta.chain import UnusableDelta, tables_of
from gleaner.actors.weights.delta.codec import DeltaError
from gleaner.actors.weights.delta.table import DeltaTable
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.actors.weights.transfer.payload import Payload
from gleaner.actors.weights.transfer.pull import CHUNK_DEADLINE_S, Pulls
from gleaner.supervisor import Context, Waiting
from gleaner.transport.bulk import BulkSource, Chunk

OFFER_DEADLINE_S = 5.0

Share = tuple[Payload, Sequence[Chunk]]
"""A payload to pull, and the chunks of it that one owner has."""


def shares_of_image(manifest: Manifest, payload: Payload) -> dict[str, list[Share]]:
    """The chunks of the image, by owner."""
    return {owner: [(payload, chunks)] for owner, chunks in manifest.shares().items()}


def shares_of_deltas(tables: Sequence[DeltaTable], payloads: Sequence[Payload]) -> dict[str, list[Share]]:
    """The chunks of the deltas, by owner; empty if the deltas have none."""
    found: dict[str, list[Share]] = {}
    for table, payload in zip(tables, payloads, strict=True):
        for owner, bundles in table.shares().items():
            found.setdefault(owner, []).append((payload, bundles))
    return found


@dataclass(frozen=True, slots=True)
class Owners:
    """Pulls each owner's share. `base`, `tables`: of the deltas that are wanted; -1 and none: the image
    is.
    """

    ctx: Context
    pulls: Pulls
    manifest: Manifest
    base: int = -1
    tables: tuple[DeltaTable, ...] = ()

    async def pull(self, shares: Mapping[str, Sequence[Share]], fetching: Waiting) -> None:
        """Pull the missing chunks of each share from its owner. Raises the first error of any share:
        AskFailed, `BadSource`, `PullError`; `UnusableDelta` if an owner lacks the wanted deltas."""
        work = (self._pull(owner, own, fetching) for owner, own in shares.items())
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _pull(self, owner: str, own: Sequence[Share], fetching: Waiting) -> None:
        wanted = []
        for payload, chunks in own:
            places = {chunk.offset for chunk in chunks}
            if left := [chunk for chunk in payload.left if chunk.offset in places]:
                wanted.append((payload, left))
        if not wanted:
            return
        asked = Offer(version=self.manifest.version, root=self.manifest.root, base=self.base)
        offered = await self.ctx.ask(owner, asked, deadline_s=OFFER_DEADLINE_S, expect=Offered)
        tokens = self._tokens(offered, owner)
        on, late_s = offered.endpoint, CHUNK_DEADLINE_S
        async with self.ctx.wait("a bulk pull", on=on, deadline_s=late_s, go_on=True) as wait:
            for payload, left in wanted:
                await self.pulls.one(payload, BulkSource(on, tokens[payload.key]), wait, fetching, left)

    def _tokens(self, offered: Offered, owner: str) -> dict[int, bytes]:
        """The tokens, by the key under which each payload is served."""
        if self.base < 0:
            return {self.manifest.version: offered.token}
        try:
            theirs = tables_of(offered, self.manifest, owner)
        except DeltaError as problem:
            raise UnusableDelta(str(problem)) from problem
        if theirs != self.tables:
            raise UnusableDelta(f"{owner} has other deltas than {self.manifest.owners[0].source}")
        return {link.key: link.token for link in offered.deltas}
