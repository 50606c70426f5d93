"""`gleaner.sim.run_setup` under its former name."""

from gleaner.sim.run_setup import RunSetup as Setting
from gleaner.supervisor.renamed import report

__all__ = ["Setting"]

report(__name__, "gleaner.sim.run_setup", Setting="RunSetup")
