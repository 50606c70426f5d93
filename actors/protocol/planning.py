"""Messages between the RewardProxy and the process that plans its workers."""

import msgspec

from gleaner.supervisor import Message


class StagePlanned(msgspec.Struct, frozen=True, kw_only=True):
    """A stage: the cost of one worker for one second, the seconds after which the stage's own limit ends
    an item, the most workers that it may have, and how many have an item, or are there; queued: items that
    wait."""

    name: str
    cost: float
    timeout_s: float
    most: int
    workers: int
    busy: int
    queued: int


class BatchPlanned(msgspec.Struct, frozen=True, kw_only=True):
    """An active batch. Times count from now: origin_s is in the past.

    queued: of each stage, items in its queue. running_s: of each stage, for how long each running item has
    run. history: name of the history that foresees it, "" for none.
    """

    name: str
    origin_s: float
    expected: int
    arrived: int
    queued: list[int]
    running_s: list[list[float]]
    history: str = ""


class HistoryPlanned(msgspec.Struct, frozen=True, kw_only=True):
    """A completed batch: arrivals and times of its items, a row an item, f64 little-endian."""

    name: str
    arrivals_s: bytes
    times_s: bytes


class PlanWorkers(Message, frozen=True):
    """Plan the workers of each stage. Answered by `WorkersPlanned`."""

    stages: list[StagePlanned]
    batches: list[BatchPlanned]
    histories: list[HistoryPlanned]


class WorkersPlanned(Message, frozen=True):
    """Workers of each stage."""

    workers: list[int]
