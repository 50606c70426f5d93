"""Roles of a node agent, and times for leaving and answering. Imports nothing."""

ROLES = ("head", "reserved", "preemptible", "reward")
MAY_LEAVE = ("preemptible", "reward")
"""Roles whose hosts a cloud may take: they follow its notices, and drain."""
GRACE_S = 30.0
"""An ordered end takes at most this long; then the process goes without it. Kubernetes' default, Slurm's."""
LOOK_S = 2.0
"""Duration of a look at every process; every look takes all of it if one process is gone."""
DEADLINE_S = 5.0
"""Deadline of a question about state; an actor that restarts answers well within it."""
MAX_LOOK_S = 60.0
"""Longest duration of a look."""
AGENT = "agent"  # the node agent's own process, among those of its host
CONTROL_GREETING = b"gleaner control 1\n"
"""First line of a control socket: it shows that the loop runs, and which requests and answers it supports.
The number changes with the fields that commands show (`SystemState`, `ActorState`)."""
