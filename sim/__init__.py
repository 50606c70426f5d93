"""Simulator: the whole system in one process, on virtual time.

Production actors run over a modelled network, disk and GPUs. One seed gives one history. Modules: `loop` and
`process_loop` (time and order), `trace` (the proof that two runs were the same), `disk` (what survives a
kill).
"""
