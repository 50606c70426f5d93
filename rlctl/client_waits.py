"""How long a client of a cluster waits, unless it is told otherwise."""

WAIT_S = 60.0
"""For the agent of the host that publishes weights: a job that was just started has none yet."""
