"""What is kept of batches whose end may never be reported: of a limited number, and fairly between jobs.

Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable

MOST_BATCHES = 64
"""Batches of which something is kept, of all jobs."""


def job_of(batch: str) -> str:
    """The job of a batch, by its name: `code` of `code/step-12`; "" where no jobs share."""
    return batch.rpartition("/")[0]


def surplus_batches(batches: Iterable[str], job: Callable[[str], str] = job_of) -> list[str]:
    """The batches to forget, of those that are kept, the oldest first: the oldest ones of the job with the
    most, so that no job takes the place of another one's."""
    kept, surplus = list(batches), list[str]()
    while len(kept) > MOST_BATCHES:
        ((most, _),) = Counter(map(job, kept)).most_common(1)
        oldest = next(batch for batch in kept if job(batch) == most)
        kept.remove(oldest)
        surplus.append(oldest)
    return surplus
