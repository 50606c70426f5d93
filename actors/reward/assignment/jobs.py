"""RewardJobs: the jobs that share a reward service: their limits, shares and accounts.

Owns, for each job, what of it waits and runs, what its items took, and which were lost with their workers.
Decides which jobs may have the next item; which item that is, EBF decides among them (`open_items`).

- Guaranteed workers: a job with fewer than its number goes before all others, the one that has the smallest
  part of it first. Nothing is kept idle for it: others use its workers until it has items.
- Share: of what the workers take, each job with open items has the part of its weight among them.
  A job below its share goes first, the one that lacks most; what no job lacks goes to any (weighted max-min).
- A job with `max_queued` waiting items gets no more, one with `max_workers` busy workers waits.
- A job with `losses` lost items within `losses_within_s` is sick: each ended the workers of all its tries. It
  is refused for `sick_s`, and the other jobs keep their workers.

Pure: times are arguments.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

MOST_JOBS = 1024
"""Jobs with accounts; the one without open items that was seen least recently is forgotten beyond that."""


class TooMany(RuntimeError):
    """So many items wait that no more are taken; the text has the limit."""


class JobSick(RuntimeError):
    """So many items of the job were lost with their workers that none is taken for now; the text has the
    numbers."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of each job. 0 is none.

    Args:
        max_queued: items that may wait.
        max_workers: workers of a stage that may have items of it at a time.
        weights: of its share, by job; 1 for the others.
        guaranteed: workers of each stage that it has at least while it has items for them, by job.
        losses: items that may be lost with their workers within `losses_within_s`.
        sick_s: for how long it is refused then.
    """

    max_queued: int = 0
    max_workers: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    guaranteed: Mapping[str, int] = field(default_factory=dict)
    losses: int = 0
    losses_within_s: float = 60.0
    sick_s: float = 60.0


@dataclass(slots=True)
class RewardJob:
    """One job.

    Args:
        name: of the job.
        weight: of its share.
        guaranteed: workers of each stage that it has at least.
        queued, running: open items, without and with a worker; by_stage: the latter by stage.
        scored: items that got a verdict from a worker.
        worker_s: seconds of workers that these took, by stage.
        lost: items that ended the workers of all their tries.
        refused: items that were not taken.
        sick_until_s: until then none is taken.
        losses_s: when the last ones were lost.
    """

    name: str
    weight: float = 1.0
    guaranteed: int = 0
    queued: int = 0
    running: int = 0
    by_stage: dict[str, int] = field(default_factory=dict)
    scored: int = 0
    worker_s: dict[str, float] = field(default_factory=dict)
    lost: int = 0
    refused: int = 0
    sick_until_s: float = 0.0
    losses_s: deque[float] = field(default_factory=deque)

    def lacks(self, stage: str, ahead: int) -> bool:
        """Whether it has fewer workers of a stage than it is guaranteed. ahead: items that each takes."""
        return self.by_stage.get(stage, 0) < self.guaranteed * ahead

    def placed(self, stage: str, more: int) -> None:
        """So many more items have workers of this stage, or fewer."""
        self.running += more
        self.by_stage[stage] = self.by_stage.get(stage, 0) + more


class RewardJobs:
    """See the module."""

    def __init__(self, limits: JobLimits | None = None) -> None:
        self._limits = limits or JobLimits()
        self._jobs: OrderedDict[str, RewardJob] = OrderedDict()

    def __iter__(self) -> Iterator[RewardJob]:
        """The jobs, the least recently seen first."""
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, name: str) -> RewardJob:
        """The job of this name; a new one if it is not known."""
        job = self._jobs.get(name)
        if job is None:
            limits = self._limits
            job = self._jobs[name] = RewardJob(
                name, limits.weights.get(name, 1.0), limits.guaranteed.get(name, 0)
            )
            self._forget_idle(job)
        else:
            self._jobs.move_to_end(name)
        return job

    def admit(self, name: str, now_s: float) -> None:
        """An item of a job arrives. Raises `TooMany`, `JobSick`."""
        job, most = self.get(name), self._limits.max_queued
        if job.sick_until_s > now_s:
            job.refused += 1
            raise JobSick(
                f"{self._limits.losses} items of job {name} were lost with their workers within "
                f"{self._limits.losses_within_s:g} s: none is taken for {job.sick_until_s - now_s:.0f} s"
            )
        if most and job.queued >= most:
            job.refused += 1
            raise TooMany(f"{job.queued} items of job {name} wait for a reward worker, at most {most} may")

    def most_workers(self, workers: int) -> int:
        """Of so many workers of a stage, how many the quotas of the jobs with open items let work."""
        most = self._limits.max_workers
        active = sum(1 for job in self._jobs.values() if job.queued or job.running)
        return min(workers, most * active) if most and active else workers

    def guaranteed_workers(self, stage: str, waiting: Mapping[str, int]) -> int:
        """Workers of a stage that are guaranteed for what jobs have now. waiting: their items there without
        a worker."""
        return sum(
            min(job.guaranteed, job.by_stage.get(stage, 0) + waiting.get(job.name, 0))
            for job in self._jobs.values()
        )

    def quota_reached(self, name: str, stage: str, ahead: int) -> str:
        """The numbers of a job that has all the workers of a stage that its quota allows, "" for any other.
        ahead: items that each worker takes."""
        most, has = self._limits.max_workers * ahead, self._jobs[name].by_stage.get(stage, 0)
        return f"{has} items with workers, at most {most} may have one" if most and has >= most else ""

    def next_of(self, stage: str, waiting: Iterable[str], workers: int, ahead: int) -> list[str]:
        """The jobs of which one may have the next item. waiting: those with waiting items of a stage, whose
        `workers` take `ahead` items each."""
        limits, every = self._limits, self._jobs
        able = [every[name] for name in waiting]
        if most := limits.max_workers * ahead:
            able = [job for job in able if job.by_stage.get(stage, 0) < most]
        if len(able) < 2:
            return [job.name for job in able]
        if limits.guaranteed and (below := [job for job in able if job.lacks(stage, ahead)]):
            return [min(below, key=lambda job: job.by_stage.get(stage, 0) / job.guaranteed).name]
        parts = [job.by_stage.get(stage, 0) / job.weight for job in able]
        lowest = min(parts)
        weights = sum([job.weight for job in every.values() if job.queued or job.running])
        if lowest < workers * ahead / weights:
            return [able[parts.index(lowest)].name]
        return [job.name for job in able]

    def worked(self, name: str, stage: str, took_s: float) -> None:
        """A worker of a stage has done an item of a job."""
        job = self.get(name)
        job.worker_s[stage] = job.worker_s.get(stage, 0.0) + took_s

    def scored(self, name: str) -> None:
        """An item of a job got its verdict from a worker."""
        self.get(name).scored += 1

    def lost(self, name: str, now_s: float) -> bool:
        """An item of this job was lost with its workers; whether the job is sick from now on."""
        job, limits = self.get(name), self._limits
        job.lost += 1
        if not limits.losses:
            return False
        job.losses_s.append(now_s)
        if len(job.losses_s) < limits.losses:
            return False
        first_s = job.losses_s.popleft()
        if now_s - first_s > limits.losses_within_s or job.sick_until_s > now_s:
            return False
        job.losses_s.clear()
        job.sick_until_s = now_s + limits.sick_s
        return True

    def _forget_idle(self, new: RewardJob) -> None:
        if len(self._jobs) <= MOST_JOBS:
            return
        others = (job for job in self._jobs.values() if job is not new)
        idle = next((job for job in others if not (job.queued or job.running)), None)
        if idle is not None:  # else all have open items, whose number is bounded
            del self._jobs[idle.name]
