"""Default waits of a cluster client."""

WAIT_S = 60.0
"""Wait for the agent of the host that publishes weights: a job that was just started has none yet."""
