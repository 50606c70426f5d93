"""`gleaner.sim.fault_injector` under its former name."""

from gleaner.sim.fault_injector import FaultInjector as Breaking

__all__ = ["Breaking"]
