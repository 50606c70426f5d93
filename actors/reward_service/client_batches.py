"""ClientBatches: which items of a service's clients form a batch.

The queues order items by batches (docs/rewards.md). Most trainers name none: items of one key that are open
together are a batch then, up to `MOST_ITEMS`. A client of `POST /score` may name the batch of an item: that
batch has the items of this name, whatever else is open. Either ends with its last open item. Pure.
"""

from dataclasses import dataclass

MOST_ITEMS = 1024
"""Items of one batch without a name: the verdicts of an active batch are kept."""
MOST_NAMED_ITEMS = 65_536
"""Items of one batch with a name; later ones are in batches without."""


@dataclass(slots=True)
class ClientBatch:
    """A batch. name: at the proxy. key: of its items, where the client named no batch. items: that arrived.
    open: those of them without an end."""

    name: str
    key: str = ""
    items: int = 0
    open: int = 0


def named(job: str, batch: str) -> str:
    """The name at the proxy of a batch that a client of this job named; "" for no name. Batches of one kind
    differ behind the last hyphen, so those of two jobs are of two kinds."""
    return f"{job}/{batch}" if batch else ""


class ClientBatches:
    """See the module."""

    def __init__(self) -> None:
        self._newest: dict[str, ClientBatch] = {}  # by key, while an item of it is open
        self._open: dict[str, ClientBatch] = {}  # by name
        self._count = 0

    def __len__(self) -> int:
        """Open batches."""
        return len(self._open)

    def arrive(self, key: str, name: str = "") -> ClientBatch:
        """The batch of an item that arrives; call `left` when the item has ended. key: of items without a
        named batch. name: at the proxy, of the item's own batch."""
        batch = self._of_name(name) if name else None
        if batch is None or batch.items >= MOST_NAMED_ITEMS:
            batch = self._of_key(key)
        batch.items += 1
        batch.open += 1
        return batch

    def left(self, batch: ClientBatch) -> bool:
        """An item of this batch has ended; whether the batch has."""
        batch.open -= 1
        if batch.open:
            return False
        del self._open[batch.name]
        if self._newest.get(batch.key) is batch:
            del self._newest[batch.key]
        return True

    def _of_name(self, name: str) -> ClientBatch:
        batch = self._open.get(name)
        if batch is None:
            batch = self._open[name] = ClientBatch(name)
        return batch

    def _of_key(self, key: str) -> ClientBatch:
        batch = self._newest.get(key)
        if batch is None or batch.items >= MOST_ITEMS:
            self._count += 1
            batch = self._newest[key] = ClientBatch(f"{key}-{self._count}", key)
            self._open[batch.name] = batch
        return batch
