"""Whom a host tells of its notice: the agents that published what it has pulled, for they send others to it.

Owns who they are, the newest few of them.
"""

from actors.weights.messages import ReceiverLeaves
from supervisor import Context

MAX_PUBLISHERS = 8


class Publishers:
    """See the module."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._known: dict[str, None] = {}  # the newest last

    def remember(self, publisher: str) -> None:
        """Something that it published is pulled here."""
        self._known.pop(publisher, None)
        self._known[publisher] = None
        if len(self._known) > MAX_PUBLISHERS:
            del self._known[next(iter(self._known))]

    async def tell(self, *, leaves: bool) -> None:
        """This host has notice, or (false) the notice came to nothing."""
        for publisher in self._known:
            await self._ctx.tell(publisher, ReceiverLeaves(receiver=self._ctx.name, leaves=leaves))
