"""Chaos on real processes: a cluster in network namespaces, broken and watched until it is well again.

`faults` says what can be broken here, `campaign` and `plan` what is broken in which order, `cluster` and
`job` run what is broken, `breaker` breaks and mends, `nemesis` waits for recoveries, `verdict` judges.
"""
