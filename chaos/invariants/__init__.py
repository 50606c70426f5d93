"""What must hold whatever dies, as named checks: of runs on real processes and of simulated ones.

`stopped_run.broken` judges what a real run left behind. `jury.Jury` watches a simulated run while it goes on
and judges it at its end; `catalogue` lists its checks.
"""

from chaos.invariants.stopped_run import broken

__all__ = ["broken"]
