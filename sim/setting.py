"""`gleaner.sim.run_setup` under its former name."""

from gleaner.sim.run_setup import RunSetup as Setting

__all__ = ["Setting"]
