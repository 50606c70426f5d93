"""What a node agent may be and how long it takes to leave, as its command line shows it. Imports nothing."""

ROLES = ("head", "reserved", "preemptible")
GRACE_S = 30.0
"""An ordered end takes at most this long; then the process goes without it. Kubernetes' default, Slurm's."""
