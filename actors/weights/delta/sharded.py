"""`DeltaParts`: joins the delta parts of several publishers into one table.

Runs at the first owner of a version. It collects the table of every owner, and answers all of them when the
last has arrived. Each owner has made the delta of its own chunks (`service`), keeps that payload, and
serves it under the one table. If one owner has no delta, or another base, the version has none. Soft state: a
lost delta costs its receivers the whole image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gleaner.actors.protocol.weights import DeltaJoined, JoinDelta
from gleaner.actors.weights.delta.codec import DeltaError
from gleaner.actors.weights.delta.table import BadDelta, DeltaTable
from gleaner.actors.weights.transfer.version_index import VersionIndex
from gleaner.supervisor import Context, Deferred, Refused

MAX_JOINING = 2  # versions: the delta of an older one is not needed any more


@dataclass(slots=True)
class _Joining:
    """The tables of one version that owners have sent."""

    received: dict[str, bytes] = field(default_factory=dict)
    waiting: list[Deferred] = field(default_factory=list)


class DeltaParts:
    """See the module docstring."""

    def __init__(self, ctx: Context, served: VersionIndex) -> None:
        self._ctx, self._served = ctx, served
        self._joining: dict[tuple[int, bytes], _Joining] = {}

    def join(self, message: JoinDelta) -> Deferred:
        """Add one owner's table; answered when all owners have sent theirs and this host has the manifest."""
        deferred = Deferred()
        joining = self._joining.setdefault((message.version, message.root), _Joining())
        joining.received[message.source] = message.table
        joining.waiting.append(deferred)
        for older in sorted(self._joining)[:-MAX_JOINING]:
            self._answer(older, Refused(f"a newer version came before all had a delta to {older[0]}"))
        known = self._served.known(message.version)
        if known is None or known[0].root != message.root:
            return deferred  # this host's own part is added later, or a newer version removes the entry
        received = {owner.source: joining.received.get(owner.source) for owner in known[0].owners}
        if received and None not in received.values():
            tables = {source: table for source, table in received.items() if table}
            lacking = [source for source in received if source not in tables]
            self._answer((message.version, message.root), self._joined(tables, lacking))
        return deferred

    def _joined(self, received: Mapping[str, bytes], lacking: Sequence[str]) -> DeltaJoined | Refused:
        """received: the tables of all owners except `lacking`."""
        if lacking:
            return Refused(f"{', '.join(lacking)} had no base for it, or too much changed there")
        try:
            tables = {source: DeltaTable.decode(table) for source, table in received.items()}
            return DeltaJoined(table=DeltaTable.join(tables).encode())
        except DeltaError as problem:
            return Refused(str(problem))

    def _answer(self, which: tuple[int, bytes], outcome: DeltaJoined | Refused) -> None:
        for deferred in self._joining.pop(which).waiting:
            deferred.answer(outcome)


def own_part(joined: DeltaTable, own: DeltaTable, source: str) -> int:
    """The offset of `own`, the part of `source`, in the joint payload.

    Raises BadDelta if the joint table does not contain the part as it was made."""
    bundles = joined.shares().get(source)
    made = [(bundle.length, bundle.digest) for bundle in own.bundles]
    if (
        bundles is None
        or [(bundle.length, bundle.digest) for bundle in bundles] != made
        or (joined.base_root, joined.target_root) != (own.base_root, own.target_root)
    ):
        raise BadDelta(f"the delta that was joined to version {joined.version} is not made of {source}'s")
    return bundles[0].offset if bundles else 0
