"""Models of engines, trainers, images, checkpoints and scorers for the simulator.

They replace hardware that the simulator does not have. `hardware`, `shapes`, `assumptions`, `cost`,
`batching`, `lengths`, `tokens` and `fit` are pure functions and values. The other modules implement the ports
that production's actors use, and spend virtual time according to those functions.
"""
