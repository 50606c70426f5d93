"""Tail batching in RollPacker's set-ups on modelled machines.

`setups` has the settings, `grid` lists the cells, `periods` has the arithmetic, `page` writes the tables.
"""
