"""Places of faults: processes and actors of each role, for `fault_sampler`. Pure."""

from gleaner.chaos.faults import Process

RANKS: tuple[Process, ...] = ("rank-1", "rank-2")
CRASHES: tuple[tuple[str, Process, str], ...] = (
    ("@head", "rollout", "balancer"), ("@head", "rollout", "manager"), ("@head", "reward", "proxy"),
    ("@head", "agent", "registry"), ("@head", "agent", "scheduler"), ("@head", "agent", "provider"),
    ("@head", "agent", "controller"), ("@head", "agent", "agent"),
    ("@reserved", "trainer", "trainer"), ("@reserved", "trainer", "engine"),
    ("@reserved", "transfer", "transfer"), ("@reserved", "agent", "state"), ("@reserved", "agent", "agent"),
    ("@preemptible", "engine", "engine"), ("@preemptible", "transfer", "transfer"),
    ("@preemptible", "agent", "agent"),
)  # fmt: skip
"""Every actor, with the host and the process in which it lives: each is as likely to crash as the others."""
COMMITTERS: tuple[tuple[str, Process], ...] = (
    ("@head", "rollout"),
    ("@head", "rollout"),
    ("@reserved", "agent"),
)
HANGS: tuple[tuple[str, Process], ...] = (
    ("@head", "agent"), ("@head", "rollout"), ("@head", "reward"),
    ("@reserved", "agent"), ("@reserved", "transfer"), ("@reserved", "trainer"),
    ("@preemptible", "agent"), ("@preemptible", "transfer"), ("@preemptible", "engine"),
)  # fmt: skip
"""Every process: each is as likely to freeze for good as the others."""
