"""RLBoost's Algorithm 2 as printed: selection (lines 1-12) and moves (lines 13-27)."""

from gleaner.actors.protocol.balancer import InstanceServes, InstanceUp, LoadChange, LoadChanged, Place
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.dispatch.placement import Instance, InstanceKind
from gleaner.actors.rollout.dispatch.published_balancing import decide, select
from gleaner.actors.rollout.dispatch.rebalancer import Move
from tests.actors.rollout.dispatch.test_dispatch_rebalancer import H100, counts, load

ROOTS = {1: b"root"}


def instance(id: str, pending: int, *, executing: int = 0, version: int | None = 1) -> Instance:
    return Instance(
        id,
        1,
        InstanceKind.PREEMPTIBLE,
        256,
        version=version,
        root=b"root",
        pending=pending,
        executing=executing,
    )


def test_selection_joins_the_shortest_queue_whatever_is_decoded() -> None:
    fleet = [instance("a", 2), instance("b", 1, executing=200), instance("c", 3)]
    assert select(fleet, ROOTS, 1, 4) == ["b"]
    assert select(fleet, ROOTS, 3, 4) == ["b", "a", "b"]


def test_selection_holds_requests_back_when_threshold_is_pending_everywhere() -> None:
    fleet = [instance("a", 3), instance("b", 4), instance("c", 0, version=None)]
    assert select(fleet, ROOTS, 10, 4) == ["a"]
    assert select(fleet, ROOTS, 10, 3) == []
    assert select([], ROOTS, 1, 4) == []


def test_single_pending_request_moves_from_longest_to_empty_queue() -> None:
    assert decide([load("a", 256, 3), load("b", 256, 5), load("c", 40)]) == [
        Move("b", "c", (1005,), executing=False)
    ]
    full = decide([load("a", 256, 3), load("b", 256)])
    assert counts(full) == [("a", "b", 1, False)], "the printed rule does not ask for a free slot"


def test_idle_instance_gets_all_beyond_the_plateau_of_the_fullest() -> None:
    plateau = H100.plateau(8000.0, 256)
    assert counts(decide([load("a", 200), load("b", 120), load("c", 0)])) == [("a", "c", 200 - plateau, True)]
    assert decide([load("a", plateau), load("c", 0)]) == [], "below the plateau nothing is gained"
    assert decide([load("a", 200), load("c", 1)]) == [], "the target must be idle"
    assert decide([load("a", 200, model=None), load("c", 0)]) == [], "no profile in the first step"


def test_moves_respect_the_versions_that_a_target_serves() -> None:
    other = frozenset({1})
    assert decide([load("a", 256, 3), load("c", 40, gates=other)]) == []
    assert decide([load("a", 200), load("c", 0, gates=frozenset())]) == []
    assert decide([]) == []


async def test_setting_chooses_the_rule_of_the_actor() -> None:
    """Its own rule fills shares up to the slots, the published one stops at Θ."""
    placed = []
    for published in (False, True):
        actor = LoadBalancer(4, published=published)
        for name in ("a", "b"):
            await actor.up(
                InstanceUp(instance=name, incarnation=1, kind="preemptible", slots=64, pending=0, executing=0)
            )
            await actor.serves(InstanceServes(instance=name, incarnation=1, version=1, root=b"root"))
        busy = [LoadChange(instance="a", incarnation=1, dispatched=40, started=40)]
        await actor.changed(LoadChanged(changes=busy))
        placed.append((await actor.place(Place(roots=ROOTS, count=60))).instances)
    ours, published_ones = placed
    assert (ours.count("a"), ours.count("b")) == (10, 50)
    assert (published_ones.count("a"), published_ones.count("b")) == (4, 4)
