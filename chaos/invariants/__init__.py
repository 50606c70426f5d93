"""Invariants under any fault, as named checks of real and simulated runs.

`stopped_run.broken` judges the records of a real run. `jury.Jury` watches a simulated run while it runs and
judges it at its end; `catalogue` lists its checks.
"""

from gleaner.chaos.invariants.stopped_run import broken

__all__ = ["broken"]
