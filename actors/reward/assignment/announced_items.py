"""AnnouncedItems: what hosts have since before the service began, until its requests come.

Owns which host keeps each item. Of two that have the same one, it is the one that is further along the
pipeline, else the one with the higher attempt, else the one that announced it first. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnnouncedItem:
    """An attempt of an item on a host, in a stage. stage: "" for the first one."""

    host: str
    attempt: int
    stage: str


class AnnouncedItems:
    """See the module. stages: of the service, in their order."""

    def __init__(self, stages: Sequence[str]) -> None:
        self._stages = tuple(stages)
        self._items: dict[str, AnnouncedItem] = {}  # bounded by what the hosts have

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: str, host: str, attempt: int, stage: str) -> AnnouncedItem | None:
        """A host has an item. What is not needed of it from now on: this attempt, or that of another host."""
        new, known = AnnouncedItem(host, attempt, stage), self._items.get(item)
        if known is not None and self._rank(known) >= self._rank(new):
            return new
        self._items[item] = new
        return known

    def get(self, item: str) -> AnnouncedItem | None:
        """Where an item is."""
        return self._items.get(item)

    def is_beyond(self, item: AnnouncedItem, stage: str) -> bool:
        """Whether it is in a later stage than this one."""
        return self._place(item.stage) > self._place(stage)

    def drop(self, item: str) -> AnnouncedItem | None:
        """It is requested, or has a result. Where it was."""
        return self._items.pop(item, None)

    def left(self, host: str) -> None:
        """A host is gone, or announces anew, and what it had does not count."""
        self._items = {name: item for name, item in self._items.items() if item.host != host}

    def _rank(self, item: AnnouncedItem) -> tuple[int, int]:
        return self._place(item.stage), item.attempt

    def _place(self, stage: str) -> int:
        return self._stages.index(stage) if stage in self._stages else 0
