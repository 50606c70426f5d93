"""Places of faults: what a campaign has, processes and actors of each role, for `fault_sampler`. Pure."""

from typing import Annotated

import msgspec
from msgspec import Meta

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
GATEWAY_CRASH: tuple[str, Process, str] = ("@head", "gateway", "gateway")
"""The actor of the gateway, where there is one."""
REWARD_CRASHES: tuple[tuple[str, Process, str], ...] = (
    ("@reward", "reward-host", "reward"),
    ("@head", "reward", "proxy"),
)
"""The actors of the reward tier, where there are reward hosts."""
PLANNER_CRASH: tuple[str, Process, str] = ("@head", "reward-planner", "planner")
"""The actor of the planner of reward workers, where there is one."""
SERVICE_PLACE: tuple[str, Process] = ("@scores", "service")
"""The reward service that scores for the job, where one does."""
SERVICE_CRASHES: tuple[tuple[str, Process, str], ...] = (
    ("@scores", "service", "service"),
    ("@scores", "service", "proxy"),
)
"""Its actors."""
COMMITTERS: tuple[tuple[str, Process], ...] = (
    ("@head", "rollout"),
    ("@head", "rollout"),
    ("@reserved", "agent"),
)
"""Processes whose commits are kill points."""
REWARD_COMMITTER: tuple[str, Process] = ("@head", "reward")
"""The same where there are reward hosts: the process of the reward proxy."""
HANGS: tuple[tuple[str, Process], ...] = (
    ("@head", "agent"), ("@head", "rollout"), ("@head", "reward"),
    ("@reserved", "agent"), ("@reserved", "transfer"), ("@reserved", "trainer"),
    ("@preemptible", "agent"), ("@preemptible", "transfer"), ("@preemptible", "engine"),
)  # fmt: skip
"""Every process: each is as likely to freeze for good as the others."""


class FaultTargets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Targets of faults. `zones`: of preemptible hosts. `head_returns`: a killed head is started again and
    resumes the job. `head_durable`: its journals force each commit out, so that it may lose its power; a run
    has that from its settings (`gleaner.chaos.plan`). `ranks`: processes of the trainer's gang beside its
    first. `callers`: programs that send single requests (`gleaner.chaos.callers`). `clients`: HTTP clients of
    the head's gateway (`gleaner.chaos.gateway_clients`), which the settings must then have. `rewards`: reward
    hosts. `planner`: a process plans their workers; `shared`: a reward service scores for the job. A run has
    both from its settings."""

    preemptible: Annotated[int, Meta(ge=0, le=1000)] = 3
    zones: tuple[str, ...] = ("a", "b")
    head_returns: bool = False
    head_durable: bool = False
    ranks: Annotated[int, Meta(ge=0, le=2)] = 0
    callers: Annotated[int, Meta(ge=0, le=16)] = 0
    clients: Annotated[int, Meta(ge=0, le=64)] = 0
    rewards: Annotated[int, Meta(ge=0, le=100)] = 0
    planner: bool = False
    shared: bool = False
