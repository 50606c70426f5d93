"""ClientBatches: which items of a service's clients form a batch.

The queues order items by batches (docs/rewards.md). Most trainers name none: items of one key that are open
together are a batch then, up to `MOST_ITEMS`. A client of `POST /score` may name the batch of an item: that
batch has the items of this name, whatever else is open. Either ends with its last open item. A batch that its
client announced goes on without open items, until the client ends it. Pure: times are arguments.
"""

from dataclasses import dataclass

from gleaner.actors.reward_service.asking import QueueFull

MOST_ITEMS = 1024
"""Items of one batch without a name: the verdicts of an active batch are kept."""
MOST_NAMED_ITEMS = 65_536
"""Items of one batch with a name; later ones are in batches without."""
MOST_ANNOUNCED = 16
"""Announced batches of one job that are open."""
MOST_OF_ALL = 1024
"""The same, of all jobs."""
IDLE_S = 3600.0
"""An announced batch without an open item is forgotten so long after its last one: its client may be gone."""


@dataclass(slots=True)
class ClientBatch:
    """A batch. name: at the proxy. key: of its items, where the client named no batch. items: that arrived.
    open: those of them without an end. job: that announced it, "" if none did. seen_s: when an item of it or
    its announcement came last."""

    name: str
    key: str = ""
    job: str = ""
    seen_s: float = 0.0
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

    def announce(self, job: str, name: str, now_s: float) -> None:
        """A batch of this job begins, or goes on. Raises QueueFull; call `forget_idle` before."""
        batch = self._open.get(name)
        if batch is None or not batch.job:
            jobs = [one.job for one in self._open.values() if one.job]
            if jobs.count(job) >= MOST_ANNOUNCED:
                raise QueueFull(f"{jobs.count(job)} announced batches of job {job} are open: end one of them")
            if len(jobs) >= MOST_OF_ALL:
                raise QueueFull(f"{len(jobs)} announced batches of all jobs are open, no more are taken")
            batch = self._of_name(name)
        batch.job, batch.seen_s = job, now_s

    def forget_idle(self, now_s: float) -> list[str]:
        """Forget the announced batches of clients that may be gone; their names."""
        idle = [
            name
            for name, one in self._open.items()
            if one.job and not one.open and now_s - one.seen_s > IDLE_S
        ]
        for name in idle:
            del self._open[name]
        return idle

    def end(self, name: str) -> None:
        """A client has ended this batch; one that is not known is none."""
        self._open.pop(name, None)

    def arrive(self, key: str, name: str = "", now_s: float = 0.0) -> ClientBatch:
        """The batch of an item that arrives; call `left` when the item has ended. key: of items without a
        named batch. name: at the proxy, of the item's own batch."""
        batch = self._of_name(name) if name else None
        if batch is None or batch.items >= MOST_NAMED_ITEMS:
            batch = self._of_key(key)
        batch.items += 1
        batch.open += 1
        batch.seen_s = now_s
        return batch

    def left(self, batch: ClientBatch) -> bool:
        """An item of this batch has ended; whether the batch has with it."""
        batch.open -= 1
        if batch.open or batch.job or self._open.get(batch.name) is not batch:
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
