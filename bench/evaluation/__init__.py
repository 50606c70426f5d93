"""Measured policies: RLBoost's experiments on modelled machines, beside the paper.

`cells` lists the simulated cells, `segments` and `setups` make a setting of one, `simulated` runs one, `pool`
runs many, `store` keeps the results.
"""
