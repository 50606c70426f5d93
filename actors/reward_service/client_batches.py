"""ClientBatches: which items of a service's clients form a batch.

The queues order items by batches (docs/rewards.md). A trainer that is not Gleaner's announces neither the
beginning nor the end of one: items of one key that are open together are a batch, up to `MOST_ITEMS`, and it
ends with its last open item. Pure.
"""

from dataclasses import dataclass

MOST_ITEMS = 1024
"""Items of one batch: the verdicts of an active batch are kept."""


@dataclass(slots=True)
class _Batch:
    name: str
    items: int = 0
    open: int = 0


class ClientBatches:
    """See the module."""

    def __init__(self) -> None:
        self._newest: dict[str, _Batch] = {}  # by key, while an item of it is open
        self._open: dict[str, tuple[str, _Batch]] = {}  # by name, with the key
        self._count = 0

    def __len__(self) -> int:
        """Open batches."""
        return len(self._open)

    def arrive(self, key: str) -> str:
        """The batch of an item that arrives under this key; call `left` when it has ended."""
        batch = self._newest.get(key)
        if batch is None or batch.items >= MOST_ITEMS:
            self._count += 1
            batch = self._newest[key] = _Batch(f"{key}-{self._count}")
            self._open[batch.name] = key, batch
        batch.items += 1
        batch.open += 1
        return batch.name

    def left(self, name: str) -> bool:
        """An item of this batch has ended; whether the batch has."""
        key, batch = self._open[name]
        batch.open -= 1
        if batch.open:
            return False
        del self._open[name]
        if self._newest.get(key) is batch:
            del self._newest[key]
        return True
