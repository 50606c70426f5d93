"""Hang detector of a worker process, by the processor time that the worker used.

A run that waits for a core on a busy machine is not hung, however long it waits. A run is hung when it used
up its processor time, or when it neither runs nor waits for a core or a disk for `blocked_s` at a stretch.
Pure: samples go in, a reason comes out. `workers` takes the samples.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the worker. processor_s: user and system time since the process began. waits_for_machine:
    it runs, or waits for a core or a disk, and is not blocked on something else."""

    processor_s: float
    waits_for_machine: bool


class HangDetector:
    """Judges one run.

    Args:
        begun: the sample at the start of the run.
        processor_s: processor seconds that the run may use.
        blocked_s: seconds that the run may be blocked without any progress.
    """

    def __init__(self, begun: Sample, *, processor_s: float, blocked_s: float) -> None:
        self._begun = self._last = begun
        self._processor_s = processor_s
        self._blocked_limit_s = blocked_s
        self._blocked_s = 0.0

    def hung(self, sample: Sample, passed_s: float) -> str:
        """Why the run is hung, "" while it is not. `passed_s`: since the sample before."""
        idle = sample.processor_s <= self._last.processor_s and not sample.waits_for_machine
        self._blocked_s = self._blocked_s + passed_s if idle else 0.0
        self._last = sample
        used_s = sample.processor_s - self._begun.processor_s
        if used_s >= self._processor_s:
            return f"no answer after {used_s:.0f} s of processor time"
        if self._blocked_s >= self._blocked_limit_s:
            return f"no answer: blocked for {self._blocked_s:.0f} s without using the processor"
        return ""
