"""DeliveredGroups: groups handed out of open batches, in the journal, not in memory.

Owns one stream per shelf, beside the manager's own, and the assignment of shelves to batches. A group is
stored here before any taker is informed that it was taken. A trainer that was restarted, or that missed the
answer, gets the group again from here. Bounds: as many shelves as batches may be open; one is emptied at the
release of its batch, and before another batch gets it.
"""

from collections.abc import Awaitable, Iterable, Mapping

from gleaner.actors.protocol.rollout import GroupOut
from gleaner.supervisor import Journal, Message


class GroupShelved(Message, frozen=True):
    """On a shelf: a group as it is handed out."""

    batch: str
    group: GroupOut


class ShelfEmptied(Message, frozen=True):
    """On a shelf, replacing all earlier contents."""


class DeliveredGroups:
    """See the module. `numbers`: the shelf of each open batch."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._streams: dict[int, Journal] = {}
        self.numbers: dict[str, int] = {}

    def restore(self, numbers: Mapping[str, int], batches: Iterable[str]) -> None:
        """These batches are open; a batch without a shelf in the journal (of an older program) gets one."""
        self.numbers = {batch: numbers[batch] for batch in batches if batch in numbers}
        for batch in batches:
            self.assign(batch, None)

    def assign(self, batch: str, number: int | None) -> int:
        """Record the shelf of this batch; None: the first free one, unless it has one."""
        if number is None:
            number = self.numbers.get(batch)
        if number is None:
            taken = set(self.numbers.values())
            number = next(number for number in range(len(taken) + 1) if number not in taken)
        self.numbers[batch] = number
        return number

    def empty(self, number: int) -> Awaitable[int]:
        """Commit that the shelf is empty."""
        return self._stream(number).snapshot_soon(ShelfEmptied())

    def put(self, batch: str, groups: Iterable[GroupOut]) -> Awaitable[int]:
        """Commit these groups."""
        events = [GroupShelved(batch=batch, group=group) for group in groups]
        return self._stream(self.numbers[batch]).append_soon(*events, flush=True)

    async def get(self, batch: str, groups: Iterable[int]) -> dict[int, GroupOut]:
        """Those of these groups that are on the shelf, by number."""
        wanted, found = set(groups), dict[int, GroupOut]()
        if batch in self.numbers:
            async for event in self._stream(self.numbers[batch]).replay():
                if isinstance(event, GroupShelved) and event.batch == batch and event.group.group in wanted:
                    found[event.group.group] = event.group
        return found

    def _stream(self, number: int) -> Journal:
        if number not in self._streams:
            self._streams[number] = self._journal.beside(f"shelf-{number}")
        return self._streams[number]
