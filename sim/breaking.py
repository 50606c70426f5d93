"""`gleaner.sim.fault_injector` under its former name."""

from gleaner.sim.fault_injector import FaultInjector as Breaking
from gleaner.supervisor.renamed import report

__all__ = ["Breaking"]

report(__name__, "gleaner.sim.fault_injector", Breaking="FaultInjector")
