"""PassedStages: what items left in the stages that they have passed, for a request that is repeated.

Owns that of active batches, and of items that no request was open for: a host that outlived its proxy had
them. An item that begins anew continues behind the last stage that it passed. Pure.
"""

from collections import OrderedDict
from dataclasses import dataclass

from gleaner.actors.reward.assignment.open_items import RewardItem

MOST_ITEMS = 4096
"""That are remembered; beyond that the oldest is forgotten, and its stages are done again."""


@dataclass(frozen=True, slots=True)
class StagePassed:
    """A stage that an item has passed, with what it left and the host that did it."""

    stage: str
    carried: bytes
    host: str

    def apply(self, item: RewardItem) -> str:
        """The item has passed this stage; the next one, "" if it is unknown or the last."""
        known = item.pipeline
        at = known.index(self.stage) + 1 if self.stage in known else len(known)
        if at >= len(known):
            return ""
        item.carried, item.made_on = self.carried, self.host
        return known[at]


class PassedStages:
    """See the module."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, tuple[str, StagePassed]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def keep(self, batch: str, item: str, passed: StagePassed) -> None:
        """An item has passed a stage. batch: "" where it is unknown."""
        self._items[item] = batch, passed
        self._items.move_to_end(item)
        while len(self._items) > MOST_ITEMS:
            self._items.popitem(last=False)

    def resume(self, item: RewardItem) -> None:
        """Let a new item begin where an earlier one of its id was."""
        if (known := self._items.get(item.id)) is not None and (stage := known[1].apply(item)):
            item.stage = stage

    def drop(self, item: str) -> None:
        """What its stages left is gone."""
        self._items.pop(item, None)

    def forget(self, batch: str) -> None:
        """No verdict of this batch is requested any more."""
        for item in [item for item, (of, _) in self._items.items() if of == batch]:
            del self._items[item]
