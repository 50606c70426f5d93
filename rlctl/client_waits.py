"""How long a client of a cluster waits, unless it is told otherwise."""

LOOK_S = 2.0
"""Of a look at every process: those that are gone cost all of it."""
WAIT_S = 60.0
"""For the agent of the host that publishes weights: a job that was just started has none yet."""
