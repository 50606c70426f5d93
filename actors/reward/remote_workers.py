"""RemoteWorkers: the reward workers of another host, as `HostLink`.

Sends items to its `RewardHost`, those of one turn of the loop together, and repeats a message that was not
received. Results come as messages of the host's own. Knows nothing of the host's end: the proxy watches it.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import CancelItems, ItemToScore, ResizeWorkers, ScoreItems
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.local_services import WORKERS
from gleaner.supervisor import Address, AskFailed, Context, Done

GIVE_DEADLINE_S = 5.0
HOST_LATE_S = 30.0  # a longer wait is logged; the host answers, or its watch ends it
RETRY_S = 0.2
MOST_BYTES = 4 * 2**20
"""Of items in one message."""


class RemoteWorkers:
    """See the module.

    Args:
        host: the incarnation that offered them.
        epoch: under which it takes items.
    """

    def __init__(self, ctx: Context, host: Address, epoch: str) -> None:
        self._ctx, self._host, self._epoch = ctx, host, epoch
        self._gone = False
        self._sending: dict[str, ItemToScore] = {}  # items that were not received yet
        self._given: list[ItemToScore] = []  # those of this turn
        self._cancelling: dict[str, CancelItems] = {}  # items whose end was not received yet
        self._wanted: dict[str, int] = {}
        self._resizing = False

    def close(self) -> None:
        """The host is gone: repeat nothing."""
        self._gone = True

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        """See `HostLink`."""
        if not self._given:
            self._ctx.background(self._give(), "give")
        for item in items:
            given = ItemToScore(
                id=item.id,
                attempt=item.attempts,
                stage=stage,
                work=item.work,
                carried=item.carried,
                made_on=REWARD if item.made_on == WORKERS else item.made_on,
            )
            self._sending[item.id] = given
            self._given.append(given)
            message = self._cancelling.get(item.id)
            if message is not None and item.attempts <= message.attempts.get(item.id, item.attempts):
                del self._cancelling[item.id]  # a repetition would end what is needed again

    def received(self, attempts: Iterable[tuple[str, int]]) -> None:
        """The host has these items with these attempts, or had them: the answer to the message that brought
        them may be lost."""
        for name, attempt in attempts:
            item = self._sending.get(name)
            if item is not None and item.attempt <= attempt:
                del self._sending[name]

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        """See `HostLink`. A message that was not received is repeated without them, and so is this one until
        it is received: else the host would compute to the end what is not needed."""
        message = CancelItems(epoch=self._epoch, items=list(items), attempts=dict(attempts or {}))
        for item in items:
            self._sending.pop(item, None)
            self._cancelling[item] = message
        self._ctx.background(self._cancel(message), "cancel")

    def resize(self, stage: str, workers: int) -> None:
        """See `HostLink`. The newest number counts, also where an older message is still on its way."""
        self._wanted[stage] = workers
        if not self._resizing:
            self._resizing = True
            self._ctx.background(self._resize(), "resize")

    async def _resize(self) -> None:
        sent: dict[str, int] = {}
        async with self._ctx.wait("a reward host", on=self._host.name, deadline_s=HOST_LATE_S, go_on=True):
            while not self._gone and sent != self._wanted:
                wanted = dict(self._wanted)
                message = ResizeWorkers(epoch=self._epoch, workers=wanted)
                try:
                    await self._ctx.ask(self._host, message, deadline_s=GIVE_DEADLINE_S, expect=Done)
                    sent = wanted
                except AskFailed as problem:
                    self._ctx.log.info("%s was not resized: %s", self._host.name, problem)
                    await asyncio.sleep(RETRY_S)
        self._resizing = False

    async def _cancel(self, message: CancelItems) -> None:
        async with self._ctx.wait("a reward host", on=self._host.name, deadline_s=HOST_LATE_S, go_on=True):
            while not self._gone and (wanted := self._not_received(message)):
                attempts = {item: message.attempts[item] for item in wanted if item in message.attempts}
                part = CancelItems(epoch=self._epoch, items=wanted, attempts=attempts)
                try:
                    await self._ctx.ask(self._host, part, deadline_s=GIVE_DEADLINE_S, expect=Done)
                    break
                except AskFailed as problem:
                    name = self._host.name
                    self._ctx.log.info("%s did not receive the end of items: %s", name, problem)
                await asyncio.sleep(RETRY_S)
        for item in self._not_received(message):
            del self._cancelling[item]

    def _not_received(self, message: CancelItems) -> list[str]:
        """The items of a message that must still be cancelled; a later message may have replaced it."""
        return [item for item in message.items if self._cancelling.get(item) is message]

    async def _give(self) -> None:
        """Send the items of this turn, in messages of a bounded size."""
        given, self._given = self._given, []
        parts = list(_parts(given))
        for part in parts[1:]:
            self._ctx.background(self._send(part), "give")
        await self._send(parts[0])

    async def _send(self, items: list[ItemToScore]) -> None:
        async with self._ctx.wait("a reward host", on=self._host.name, deadline_s=HOST_LATE_S, go_on=True):
            while not self._gone and (wanted := [item for item in items if self._is_sending(item)]):
                message = ScoreItems(epoch=self._epoch, items=wanted)
                try:
                    await self._ctx.ask(self._host, message, deadline_s=GIVE_DEADLINE_S, expect=Done)
                    for item in filter(self._is_sending, items):
                        del self._sending[item.id]
                    return
                except AskFailed as problem:
                    name = self._host.name
                    self._ctx.log.info("%d items not received by %s: %s", len(items), name, problem)
                await asyncio.sleep(RETRY_S)

    def _is_sending(self, item: ItemToScore) -> bool:
        """Whether it must still be received; a later attempt may have replaced it."""
        return self._sending.get(item.id) is item


def _parts(items: Sequence[ItemToScore]) -> Iterator[list[ItemToScore]]:
    """The items, in parts of `MOST_BYTES` at most."""
    part: list[ItemToScore] = []
    part_bytes = 0
    for item in items:
        item_bytes = len(item.work) + len(item.carried)
        if part and part_bytes + item_bytes > MOST_BYTES:
            yield part
            part, part_bytes = [], 0
        part.append(item)
        part_bytes += item_bytes
    yield part
