"""The measured policies: RLBoost's experiments on modelled machines, beside the paper's figures.

`cells` names what is simulated, `segments` and `setups` make a setting of it, `simulated` runs one, `pool`
runs many, `store` keeps what came out.
"""
