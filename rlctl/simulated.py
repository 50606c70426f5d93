"""`gleaner.rlctl.simulated_evidence` under its former name."""

from gleaner.rlctl.simulated_evidence import evidence
from gleaner.supervisor.renamed import report

__all__ = ["evidence"]

report(__name__, "gleaner.rlctl.simulated_evidence")
