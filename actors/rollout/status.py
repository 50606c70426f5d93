"""Rollout figures: live view, outcomes of groups, list of instances. Pure."""

from collections import Counter

from gleaner.actors.protocol.instances import FailedVersion, InstanceIs, InstancesAre
from gleaner.actors.protocol.reward import Sickness
from gleaner.actors.protocol.rollout import GroupFatesAre, RolloutFigures
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.state.group_policy import SURPLUS
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.token_log import Batch

MAX_FAILED = 8
"""Versions that instances could not load, as reported together with the served ones."""


def figures_of(
    state: RolloutState,
    instances: Instances,
    refused_frames: Counter[str],
    asked_again: Counter[str],
    sick: Sickness | None,
) -> RolloutFigures:
    """Requests by state, serving instances by kind, and sums since the job started."""
    loads = [stream.load() for stream in state.streams.values() if not stream.gone]
    counters, newest = state.counters, state.versions.newest
    return RolloutFigures(
        queued=state.log.waiting,
        pending=sum(load[0] for load in loads),
        executing=sum(load[1] for load in loads),
        serving_reserved=instances.serving("reserved", None),
        serving_preemptible=instances.serving("preemptible", None),
        tokens_collected=counters.tokens_collected,
        tokens_lost=state.tokens_lost,
        tokens_generated_twice=counters.tokens_generated_twice,
        requests_migrated=counters.requests_migrated,
        requests_moved=counters.requests_moved,
        refused=dict(state.refused + refused_frames),
        reserved_engines=instances.engines("reserved"),
        tokens_wasted=dict(counters.tokens_wasted),
        groups_dropped=counters.groups_dropped,
        groups_aborted=counters.groups_aborted,
        samples_again=counters.samples_again,
        busy_preemptible=sum(
            not stream.gone and stream.held > 0
            for name, stream in state.streams.items()
            if (one := instances.get(name)) is not None and one.kind == "preemptible"
        ),
        weights_pulled=dict(instances.pulled),
        newest=None if newest is None else newest.version,
        verdicts=dict(counters.verdicts),
        asked_again=dict(asked_again),
        failure=counters.failure if sick is None else sick.text,
        sick=sick,
    )


def fates_of(batch: Batch) -> GroupFatesAre:
    """The outcome of each group of the batch."""
    dropped = sorted(batch.fates.dropped.items())
    kept = sorted(batch.fates.kept) if batch.selects else list(range(len(batch.groups)))
    trained = [len(log) for group in kept for log in batch.groups[group]]
    finished, cut_off = Counter[int](), Counter[int]()
    for log in batch.requests():
        if not log.again:  # its length is that of the sample; those that replace it are no launch
            (cut_off if log.dropped and not log.ended else finished)[len(log)] += 1
    return GroupFatesAre(
        kept=kept,
        dropped=[group for group, why in dropped if why != SURPLUS],
        aborted=[group for group, why in dropped if why == SURPLUS],
        again=len(batch.past),
        finished=sorted(finished.items()),
        cut_off=sorted(cut_off.items()),
        edge=max(trained, default=0),
        trained=(sum(trained), len(trained)),
        surplus_tokens=sum(len(log) for log in batch.requests() if log.dropped == SURPLUS),
    )


def instances_of(state: RolloutState, instances: Instances) -> InstancesAre:
    """The registered instances, with what they serve and hold; only versions that are known here."""
    known, found = state.versions.known, []
    for name, one in sorted(instances.items()):
        stream = state.streams.alive(name, one.incarnation)
        pending, executing = stream.load() if stream is not None else (0, 0)
        proved = one.version is not None and one.version in known and known[one.version].root == one.root
        found.append(
            InstanceIs(
                name=name,
                incarnation=one.incarnation,
                kind=one.kind,
                version=one.version if proved else None,
                pending=pending,
                executing=executing,
                leaving=one.leaving,
            )
        )
    newest = state.versions.newest
    published = None if newest is None else newest.version
    failed = sorted(state.versions.failed.values(), key=lambda one: one.version)[-MAX_FAILED:]
    return InstancesAre(
        instances=found,
        published=published,
        queued=state.log.waiting,
        failed=[FailedVersion(version=one.version, why=one.why) for one in failed],
    )
