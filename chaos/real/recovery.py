"""Recovery: whether a cluster is well after a fault, and what is missing. Pure.

Owns the rule. A cluster is well when every process that the job needs is there, not stopped, not one that was
killed, and answers to a witness; the hosts are counted in; the instances are known to the manager and have
weights; tokens were collected and a step ended since everything was mended. A rule that only waits for
processes would accept a cluster that makes no progress.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FRESH_LOOKS = 2
"""Polls of the fleet, and testimonies, since the mending before one is believed: the first may have begun
before it."""


@dataclass(frozen=True, slots=True)
class ClusterObservation:
    """Outside view of a cluster at one time.

    at_s: of the campaign. processes: `host/kind` to pid. stopped: those of them that are SIGSTOPped. steps,
    tokens, looks: of all jobs so far. serving, reserved, preemptible: of the newest poll. answers, versions,
    instances: of the newest testimony (`gleaner.chaos.real.health_recorder`), and the number of testimonies.
    """

    at_s: float = 0.0
    processes: Mapping[str, int] = field(default_factory=dict)
    stopped: Sequence[str] = ()
    steps: int = 0
    tokens: int = 0
    looks: int = 0
    serving: int = 0
    reserved: int = 0
    preemptible: int = 0
    steps_left: int = 0
    testimonies: int = 0
    answers: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    instances: int = -1
    job: bool = False


@dataclass(frozen=True, slots=True)
class SoundCluster:
    """Parts of a sound cluster: these processes (`host/kind`), and so many hosts of each role."""

    processes: Sequence[str]
    preemptible: int
    reserved: int = 1


def missing(
    sound: SoundCluster, seen: ClusterObservation, since: ClusterObservation, gone: Sequence[int] = ()
) -> list[str]:
    """What is not well yet, as texts; `since`: the view when everything was mended, `gone`: killed pids,
    which must have been replaced."""
    if not seen.job:
        return ["no job runs"]
    return [
        *absent(sound, seen, gone),
        *([f"{seen.reserved} of {sound.reserved} reserved hosts"] if seen.reserved < sound.reserved else []),
        *_silent(sound, seen, since),
        *_instances(sound, seen, since),
        *(["no token since"] if seen.tokens <= since.tokens else []),
        *(["no step since"] if seen.steps <= since.steps else []),
    ]


def absent(sound: SoundCluster, seen: ClusterObservation, gone: Sequence[int] = ()) -> list[str]:
    """Processes that are missing or unusable, as texts."""
    lacking = [name for name in sound.processes if name not in seen.processes or seen.processes[name] in gone]
    stopped = [name for name in sound.processes if name in seen.stopped]
    return [*(f"{name} is not there" for name in lacking), *(f"{name} is stopped" for name in stopped)]


def _silent(sound: SoundCluster, seen: ClusterObservation, since: ClusterObservation) -> list[str]:
    if seen.testimonies < since.testimonies + FRESH_LOOKS:
        return ["no actor was asked since"]
    found = [
        f"{name} does not answer"
        for name in sound.processes
        if name in seen.processes and seen.answers.get(name) != seen.processes[name]
    ]
    found += [f"{name} serves nothing" for name in sound.processes if seen.versions.get(name, 0) < 0]
    if seen.instances < sound.preemptible:
        found.append(f"the manager has {max(seen.instances, 0)} of {sound.preemptible} instances")
    return found


def _instances(sound: SoundCluster, seen: ClusterObservation, since: ClusterObservation) -> list[str]:
    if seen.looks < since.looks + FRESH_LOOKS:
        return ["the fleet was not polled since"]
    if seen.preemptible < sound.preemptible:
        return [f"{seen.preemptible} of {sound.preemptible} preemptible hosts"]
    if seen.serving < sound.preemptible:
        return [f"{seen.serving} of {sound.preemptible} instances serve"]
    return []
