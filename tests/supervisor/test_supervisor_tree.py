"""Laws of supervision, after OTP's documentation.

Sources: `supervisor` and "Supervisor Behaviour".
"""

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gleaner.supervisor import (
    Actor,
    Counts,
    Intensity,
    Status,
    TreeSpec,
    child,
    one_for_all,
    one_for_one,
    rest_for_one,
    simple_one_for_one,
)
from gleaner.supervisor.child_spec import ChildSpec
from gleaner.supervisor.tree import Action, End, EndReason, RestartLater, Start, Stop, TreeState

ABC = [child("a", Actor), child("b", Actor), child("c", Actor)]


def carry_out(tree: TreeState, actions: Sequence[Action]) -> None:
    """Carry out the actions as a shell would in which nothing fails."""
    for action in actions:
        if isinstance(action, Start):
            tree.started(action.name)
        elif isinstance(action, Stop):
            tree.stopped(action.name, again=action.again)


def state(spec: TreeSpec) -> TreeState:
    tree = TreeState(spec, random.Random(0))
    carry_out(tree, tree.start())
    tree.complete()
    return tree


def starts(actions: Sequence[Action]) -> list[str]:
    return [action.name for action in actions if isinstance(action, Start)]


def stops(actions: Sequence[Action]) -> list[str]:
    return [action.name for action in actions if isinstance(action, Stop)]


# -- strategies --


def test_children_start_left_to_right_and_stop_reversed() -> None:
    tree = TreeState(one_for_one(*ABC), random.Random(0))
    assert tree.start() == [Start("a"), Start("b"), Start("c")]
    carry_out(tree, tree.start())
    assert tree.stop() == [Stop("c"), Stop("b"), Stop("a")]


def test_one_for_one_restarts_only_the_failed_child() -> None:
    assert state(one_for_one(*ABC)).exited("b", abnormal=True, now_s=0) == [Start("b", "b")]


def test_one_for_all_stops_reversed_and_starts_in_order() -> None:
    assert state(one_for_all(*ABC)).exited("b", abnormal=True, now_s=0) == [
        Stop("c", again=True),
        Stop("a", again=True),
        Start("a", "b"),
        Start("b", "b"),
        Start("c", "b"),
    ]


def test_rest_for_one_restarts_failed_child_and_later_ones() -> None:
    assert state(rest_for_one(*ABC)).exited("b", abnormal=True, now_s=0) == [
        Stop("c", again=True),
        Start("b", "b"),
        Start("c", "b"),
    ]


def test_pool_starts_empty_and_its_children_fail_alone() -> None:
    pool = simple_one_for_one(child("call", Actor), name="pool")
    tree = state(pool)
    assert tree.start() == []
    for name in ("call-1", "call-2"):
        carry_out(tree, tree.add(pool.children[0].instance(name, ())))
    assert tree.exited("call-2", abnormal=True, now_s=0) == [Start("call-2", "call-2")]
    carry_out(tree, tree.terminate("call-1"))
    assert list(tree.children) == ["call-2"]  # OTP: its specification is the template, nothing is kept


# -- restart types --


@pytest.mark.parametrize(
    ("restart", "abnormal", "restarted"),
    [
        ("permanent", False, True),
        ("permanent", True, True),
        ("transient", False, False),
        ("transient", True, True),
        ("temporary", False, False),
        ("temporary", True, False),
    ],
)
def test_restart_types_differ_in_what_restarts_them(restart: str, abnormal: bool, restarted: bool) -> None:
    tree = state(one_for_one(child("it", Actor, restart=restart)))
    assert starts(tree.exited("it", abnormal=abnormal, now_s=0)) == (["it"] if restarted else [])
    assert ("it" in tree.children) == (restart != "temporary")  # OTP: its specification is deleted


@pytest.mark.parametrize("strategy", [one_for_all, rest_for_one])
def test_temporary_sibling_is_stopped_and_never_returns(strategy: object) -> None:
    assert callable(strategy)
    tree = state(strategy(child("a", Actor), child("t", Actor, restart="temporary"), child("z", Actor)))
    actions = tree.exited("a", abnormal=True, now_s=0)
    assert stops(actions) == ["z", "t"]
    assert starts(actions) == ["a", "z"]
    carry_out(tree, actions)
    assert tree.running() == ["a", "z"]
    assert "t" not in tree.children


def test_end_of_temporary_child_costs_no_restart() -> None:
    tree = state(one_for_all(*ABC, child("t", Actor, restart="temporary"), intensity=Intensity(restarts=0)))
    assert tree.exited("t", abnormal=True, now_s=0) == []
    assert tree.running() == ["a", "b", "c"]


def test_finished_transient_sibling_restarts_with_the_others() -> None:
    tree = state(one_for_all(child("a", Actor), child("t", Actor, restart="transient")))
    assert tree.exited("t", abnormal=False, now_s=0) == []
    actions = tree.exited("a", abnormal=True, now_s=1)
    assert stops(actions) == []
    assert starts(actions) == ["a", "t"]


# -- automatic shutdown --


def work_unit(auto_shutdown: str) -> TreeState:
    return state(
        one_for_one(
            child("one", Actor, restart="transient", significant=True),
            child("two", Actor, restart="temporary", significant=True),
            child("helper", Actor),
            auto_shutdown=auto_shutdown,
        )
    )


def test_any_significant_finished_child_ends_supervisor_in_reverse() -> None:
    actions = work_unit("any_significant").exited("one", abnormal=False, now_s=0)
    assert stops(actions) == ["helper", "two"]
    assert isinstance(actions[-1], End)
    assert actions[-1].why is EndReason.SIGNIFICANT


def test_significant_child_counts_by_its_restart_type() -> None:
    assert isinstance(work_unit("any_significant").exited("two", abnormal=True, now_s=0)[-1], End)
    assert starts(work_unit("any_significant").exited("one", abnormal=True, now_s=0)) == ["one"]


def test_all_significant_children_must_finish_before_the_supervisor() -> None:
    tree = work_unit("all_significant")
    assert tree.exited("one", abnormal=False, now_s=0) == []
    assert isinstance(tree.exited("two", abnormal=False, now_s=0)[-1], End)
    waits = work_unit("all_significant")
    waits.exited("one", abnormal=True, now_s=0)  # a restarting child is not finished
    assert waits.exited("two", abnormal=False, now_s=0) == []


def test_insignificant_or_manually_stopped_child_ends_nothing() -> None:
    tree = work_unit("any_significant")
    assert starts(tree.exited("helper", abnormal=True, now_s=0)) == ["helper"]
    assert tree.terminate("one") == [Stop("one")]


def test_significant_sibling_stopped_by_supervisor_ends_nothing() -> None:
    tree = state(
        one_for_all(
            child("a", Actor),
            child("s", Actor, restart="temporary", significant=True),
            auto_shutdown="any_significant",
        )
    )
    actions = tree.exited("a", abnormal=True, now_s=0)
    assert not any(isinstance(action, End) for action in actions)


def test_specifications_that_otp_refuses_are_refused() -> None:
    with pytest.raises(ValueError, match="share the name"):
        one_for_one(child("a", Actor), child("a", Actor))
    with pytest.raises(ValueError, match="a significant child is transient or temporary"):
        one_for_one(child("a", Actor, significant=True), auto_shutdown="any_significant")
    with pytest.raises(ValueError, match="never shuts itself down"):
        one_for_one(child("a", Actor, restart="transient", significant=True))
    tree = state(one_for_one(*ABC))
    with pytest.raises(ValueError, match="never shuts itself down"):
        tree.add(child("d", Actor, restart="temporary", significant=True))
    with pytest.raises(ValueError, match="has a child 'a' already"):
        tree.add(child("a", Actor))


# -- children by hand --


def test_terminated_child_stays_down_until_restarted_or_deleted() -> None:
    tree = state(one_for_one(*ABC))
    carry_out(tree, tree.terminate("b"))
    assert tree.status == {"a": Status.RUNNING, "b": Status.DOWN, "c": Status.RUNNING}
    assert tree.counts() == Counts(specs=3, active=2, supervisors=0, workers=3)
    carry_out(tree, tree.restart("b"))
    with pytest.raises(ValueError, match="'b' is running"):
        tree.restart("b")
    with pytest.raises(ValueError, match="'b' is running"):
        tree.delete("b")
    carry_out(tree, tree.terminate("b"))
    tree.delete("b")
    with pytest.raises(ValueError, match="no child 'b'"):
        tree.restart("b")


def test_terminated_child_may_restart_with_a_failed_sibling() -> None:
    tree = state(rest_for_one(*ABC))
    carry_out(tree, tree.terminate("c"))
    assert starts(tree.exited("b", abnormal=True, now_s=0)) == ["b", "c"]


def test_child_terminated_during_back_off_is_not_restarted() -> None:
    tree = state(one_for_one(*ABC))
    carry_out(tree, tree.exited("a", abnormal=True, now_s=0))
    later = tree.exited("a", abnormal=True, now_s=1)[0]
    assert isinstance(later, RestartLater)
    assert tree.status["a"] is Status.RESTARTING
    assert tree.terminate("a") == []
    assert tree.again("a", later.ticket) == []


# -- intensity, back-off, starts that fail --


def test_children_waiting_with_a_terminated_one_are_down() -> None:
    tree = state(rest_for_one(*ABC))
    carry_out(tree, tree.exited("b", abnormal=True, now_s=0))
    carry_out(tree, tree.exited("b", abnormal=True, now_s=1))
    assert tree.status == {"a": Status.RUNNING, "b": Status.RESTARTING, "c": Status.RESTARTING}
    assert tree.terminate("b") == []
    assert tree.status == {"a": Status.RUNNING, "b": Status.DOWN, "c": Status.DOWN}


def test_child_that_no_restart_mends_ends_the_supervisor() -> None:
    for spec in (one_for_one(*ABC), rest_for_one(*ABC), one_for_all(*ABC)):
        actions = state(spec).exited("b", abnormal=True, now_s=0, hopeless=True)
        assert stops(actions) == ["c", "a"]
        assert isinstance(actions[-1], End)
        assert actions[-1].why is EndReason.HOPELESS


def test_restart_beyond_intensity_ends_supervisor_and_window_slides() -> None:
    tree = state(one_for_one(*ABC, intensity=Intensity(restarts=2, within_s=5, backoff_s=0)))
    for now_s in (0.0, 1.0):
        carry_out(tree, tree.exited("a", abnormal=True, now_s=now_s))
    actions = tree.exited("b", abnormal=True, now_s=2.0)
    assert stops(actions) == ["c", "a"]
    assert isinstance(actions[-1], End)
    assert actions[-1].why is EndReason.INTENSITY
    patient = state(one_for_one(*ABC, intensity=Intensity(restarts=2, within_s=5, backoff_s=0)))
    for now_s in (0.0, 4.0, 8.0, 12.0, 16.0):
        actions = patient.exited("a", abnormal=True, now_s=now_s)
        assert starts(actions) == ["a"]
        carry_out(patient, actions)


def test_zero_intensity_allows_no_restart() -> None:
    tree = state(one_for_one(*ABC, intensity=Intensity(restarts=0, within_s=1)))
    assert isinstance(tree.exited("a", abnormal=True, now_s=0)[-1], End)


def test_repeatedly_failing_child_waits_longer_each_time() -> None:
    tree = state(one_for_one(*ABC, intensity=Intensity(restarts=10, within_s=60, backoff_s=1.0)))
    assert starts(tree.exited("a", abnormal=True, now_s=0)) == ["a"]
    for now_s, (least, most) in enumerate([(0.5, 1.0), (1.0, 2.0), (2.0, 4.0), (4.0, 8.0)], 1):
        tree.started("a")
        later = tree.exited("a", abnormal=True, now_s=float(now_s))[0]
        assert isinstance(later, RestartLater)
        assert least <= later.delay_s <= most
        assert starts(tree.again("a", later.ticket)) == ["a"]


def test_later_children_wait_for_child_in_back_off() -> None:
    tree = state(rest_for_one(*ABC))
    carry_out(tree, tree.exited("b", abnormal=True, now_s=0))
    stop, later = tree.exited("b", abnormal=True, now_s=1)
    assert stop == Stop("c", again=True)
    assert isinstance(later, RestartLater)
    carry_out(tree, [stop])
    assert starts(tree.again("b", later.ticket)) == ["b", "c"]


def test_failure_of_earlier_child_takes_over_later_restart() -> None:
    tree = state(rest_for_one(*ABC))
    carry_out(tree, tree.exited("b", abnormal=True, now_s=0))
    actions = tree.exited("b", abnormal=True, now_s=1)
    carry_out(tree, actions)
    later = actions[-1]
    assert isinstance(later, RestartLater)
    assert starts(tree.exited("a", abnormal=True, now_s=1)) == ["a", "b", "c"]
    assert tree.again("b", later.ticket) == []


def test_failed_first_start_ends_supervisor_and_stops_earlier() -> None:
    tree = TreeState(rest_for_one(*ABC), random.Random(0))
    first, second, _third = tree.start()
    carry_out(tree, [first, second])
    actions = tree.start_failed("c", now_s=0)
    assert stops(actions) == ["b", "a"]
    assert isinstance(actions[-1], End)
    assert actions[-1].why is EndReason.START


def test_failed_restart_counts_as_another_restart() -> None:
    tree = state(one_for_all(*ABC, intensity=Intensity(restarts=2, within_s=60)))
    actions = tree.exited("c", abnormal=True, now_s=0)
    carry_out(tree, actions[:3])  # a and b stopped, a started; b does not start
    again = tree.start_failed("b", now_s=1)
    assert stops(again) == ["a"]
    assert starts(again) == ["a", "b", "c"]
    carry_out(tree, again[:2])
    assert isinstance(tree.start_failed("b", now_s=2)[-1], End)


# -- laws --

SPECS = st.lists(
    st.builds(lambda restart: restart, st.sampled_from(["permanent", "permanent", "transient", "temporary"])),
    min_size=1,
    max_size=5,
)


class World:
    """A shell in which children run, fail and refuse to start, and every order is checked."""

    def __init__(self, spec: TreeSpec, refusals: list[bool]) -> None:
        self.tree = TreeState(spec, random.Random(1))
        self.order = [child_.name for child_ in spec.children]
        self.alive: list[str] = []
        self.waiting: list[RestartLater] = []
        self.granted: list[float] = []
        self.refusals = refusals
        self.now_s = 0.0
        self.over = False
        self.do(self.tree.start())
        self.tree.complete()

    def do(self, actions: Sequence[Action]) -> None:
        todo = list(actions)
        while todo and not self.over:
            action = todo.pop(0)
            if isinstance(action, Stop):
                assert action.name in self.alive
                self.alive.remove(action.name)
                self.tree.stopped(action.name, again=action.again)
            elif isinstance(action, Start):
                assert action.name not in self.alive, "started twice"
                if action.because and self.refusals and self.refusals.pop():
                    todo = list(self.tree.start_failed(action.name, now_s=self.now_s))
                    self.count(todo)
                else:
                    self.alive.append(action.name)
                    self.tree.started(action.name)
            elif isinstance(action, RestartLater):
                self.waiting.append(action)
            else:
                self.over = True
                assert self.alive == []
        running = self.tree.running()
        assert sorted(self.alive) == sorted(running), "exactly the children listed as running run"

    def count(self, actions: Sequence[Action]) -> None:
        if any(isinstance(action, Start | RestartLater) for action in actions):
            self.granted.append(self.now_s)


@settings(max_examples=150)
@given(
    SPECS,
    st.sampled_from([one_for_one, one_for_all, rest_for_one]),
    st.integers(0, 6),
    st.floats(0.5, 20),
    st.lists(st.booleans(), max_size=10),
    st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.floats(0, 3)), max_size=40),
)
@example(
    ["permanent"], one_for_one, 1, 0.6455263070849602, [], [(0, False, 2.0), (0, False, 0.6455263070849602)]
)
def test_supervision_laws_hold_for_any_failures(
    restarts_of: list[str],
    strategy: object,
    restarts: int,
    within_s: float,
    refusals: list[bool],
    events: list[tuple[int, bool, float]],
) -> None:
    assert callable(strategy)
    children: list[ChildSpec] = [child(f"c{i}", Actor, restart=kind) for i, kind in enumerate(restarts_of)]
    world = World(strategy(*children, intensity=Intensity(restarts, within_s)), refusals)
    assert world.alive == world.order, "started from left to right"
    for pick, abnormal, gap_s in events:
        world.now_s += gap_s
        if world.over:
            break
        if pick == 5 and world.waiting:
            later = world.waiting.pop(0)
            world.do(world.tree.again(later.name, later.ticket))
            continue
        if not world.alive:
            continue
        name = world.alive[pick % len(world.alive)]
        world.alive.remove(name)
        before = list(world.alive)
        actions = world.tree.exited(name, abnormal=abnormal, now_s=world.now_s)
        world.count(actions)
        touched = {action.name for action in actions if isinstance(action, Stop | Start)}
        ends = any(isinstance(action, End) for action in actions)
        stopped = stops(actions)
        assert stopped == sorted(stopped, reverse=True), "stopped from right to left"
        assert starts(actions) == sorted(starts(actions)), "started from left to right"
        if strategy is rest_for_one and not ends:
            assert all(other >= name for other in touched), "no earlier child is touched"
        if strategy is one_for_one and not ends:
            assert touched <= {name}
        if not actions:
            assert [other for other in world.alive if other != name] == before
        world.do(actions)
        temporary = {spec.name for spec in children if spec.restart.value == "temporary"}
        assert not temporary & set(starts(actions)), "a temporary child is never restarted"
    for start_s in world.granted:
        # The difference as the supervisor takes it: a sum would be rounded otherwise at the window's edge.
        assert sum(0 <= at_s - start_s <= within_s for at_s in world.granted) <= restarts
    world.do(world.tree.stop())
    assert world.alive == [], "a stopped supervisor leaves no child"
