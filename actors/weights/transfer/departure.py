"""`Publishers`: the agents to notify when this host gets an eviction notice.

These agents published versions that this host has pulled, and they assign receivers to it. Owns the list of
the newest few.
"""

from gleaner.actors.protocol.weights import ReceiverLeaves
from gleaner.supervisor import Context

MAX_PUBLISHERS = 8


class Publishers:
    """See the module docstring."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._known: dict[str, None] = {}  # the newest last

    def remember(self, publisher: str) -> None:
        """Remember the publisher of a version that is pulled here."""
        self._known.pop(publisher, None)
        self._known[publisher] = None
        if len(self._known) > MAX_PUBLISHERS:
            del self._known[next(iter(self._known))]

    async def tell(self, *, leaves: bool) -> None:
        """Notify the publishers: this host has notice, or (false) the notice was withdrawn."""
        for publisher in self._known:
            await self._ctx.tell(publisher, ReceiverLeaves(receiver=self._ctx.name, leaves=leaves))
