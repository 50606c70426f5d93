"""Times of a program that is compiled: its compilation, and its run. Pure."""

COMPILE_S = 10.0
"""Processor time of one compilation, where a task gives none."""


def run_s(deadline_s: float, compile_s: float, own_s: float | None) -> float:
    """Processor time of a run: the task's own, or what a compilation leaves of the job's `deadline_s`.

    Not above 0 where it leaves none.
    """
    return own_s if own_s is not None else deadline_s - compile_s
