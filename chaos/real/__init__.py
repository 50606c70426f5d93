"""Chaos on real processes: faults in a cluster of network namespaces.

`faults` lists the faults, `campaign` and `plan` choose them and their order, `cluster` and `job` run the
target, `fault_injector` breaks and mends, `nemesis` waits for recoveries, `verdict` judges.
"""
