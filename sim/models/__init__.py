"""Models of what the simulator has no hardware for: engines, trainers, images, checkpoints, scorers.

`hardware`, `shapes`, `assumptions`, `cost`, `batching`, `lengths`, `tokens` and `fit` are pure functions and
values. The other rooms stand behind the ports that production's actors use, and spend virtual time as those
functions tell.
"""
