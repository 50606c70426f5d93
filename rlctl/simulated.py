"""`gleaner.rlctl.simulated_evidence` under its former name."""

from gleaner.rlctl.simulated_evidence import evidence

__all__ = ["evidence"]
