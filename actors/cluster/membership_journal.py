"""`MembershipJournal`: the hosts of the cluster as they are in the journal, and their changes.

Owns the members, their stream, and the changes that no commit has yet. A change is reported and acted on when
it is in the journal.
"""

from collections import Counter
from collections.abc import Callable

from gleaner.actors.cluster.membership import Member, Members
from gleaner.actors.protocol.cluster import NodeSeen
from gleaner.supervisor import Address, Context, Message


class MembersAre(Message, frozen=True):
    """Journaled: the members in this life of the head's process; another life starts with none."""

    boot: int
    roles: dict[str, str]
    agents: dict[str, Address]


class MembershipJournal:
    """See the module docstring.

    Args:
        ctx: of the Scheduler.
        boot: life of the head's process.
        report: gets the events of each change after its commit.
    """

    def __init__(self, ctx: Context, boot: int, report: Callable[[list[NodeSeen]], None]) -> None:
        self._ctx, self._boot, self._report = ctx, boot, report
        self._stream = ctx.stream("members")
        self.members = Members()
        self._unsaved: list[tuple[list[NodeSeen], Callable[[], None] | None]] = []
        self._saves = False
        self._uncommitted: Counter[str] = Counter()  # events of a host that no commit has yet

    async def replay(self) -> None:
        """Take the members of the Scheduler's earlier life in this process, and watch them."""
        async for event in self._stream.replay():
            if isinstance(event, MembersAre) and event.boot == self._boot:
                for node, role in event.roles.items():
                    self.members.put(node, Member(role, event.agents[node], "up", self._ctx.turn_time()))
                    self._ctx.watch(event.agents[node])

    def is_saved(self, node: str) -> bool:
        """Whether the journal has every change of this host."""
        return node not in self._uncommitted

    def changed(self, events: list[NodeSeen], then: Callable[[], None] | None = None) -> None:
        """Journal the members, then report the change and act on it. One commit covers all changes that
        arrived during the previous one: a thousand hosts may join in one moment."""
        if not events and then is None:
            return
        for event in events:
            self._uncommitted[event.node] += 1
            self._ctx.log.info("host %s (%s): %s", event.node, event.role, event.event)
        self._unsaved.append((events, then))
        if not self._saves:
            self._saves = True
            self._ctx.background(self._save(), "members")

    async def _save(self) -> None:
        try:
            while self._unsaved:
                unsaved, self._unsaved = self._unsaved, []
                members = self.members.by_name
                await self._stream.snapshot(
                    MembersAre(
                        boot=self._boot,
                        roles={node: member.role for node, member in members.items()},
                        agents={node: member.agent for node, member in members.items()},
                    )
                )
                for events, then in unsaved:
                    self._uncommitted -= Counter(event.node for event in events)
                    self._report(events)
                    if then is not None:
                        then()
        finally:
            self._saves = False
