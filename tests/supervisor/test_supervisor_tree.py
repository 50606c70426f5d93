"""The laws of supervision, after the examples in OTP's design principles."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import Actor, Intensity, child, one_for_all, one_for_one, rest_for_one
from supervisor.tree import Escalate, Start, Stop, TreeSpec, TreeState


def state(spec: TreeSpec) -> TreeState:
    tree = TreeState(spec, random.Random(0))
    for name in tree.children:
        tree.started(name)
    return tree


ABC = [child("a", Actor), child("b", Actor), child("c", Actor)]


def test_one_for_one_restarts_the_failed_child_alone() -> None:
    assert state(one_for_one(*ABC)).exited("b", abnormal=True, now_s=0) == [Start("b", 0.0)]


def test_one_for_all_stops_the_rest_in_reverse_order_and_starts_all_in_order() -> None:
    assert state(one_for_all(*ABC)).exited("b", abnormal=True, now_s=0) == [
        Stop("c"),
        Stop("a"),
        Start("a", 0.0),
        Start("b", 0.0),
        Start("c", 0.0),
    ]


def test_rest_for_one_restarts_the_failed_child_and_those_after_it() -> None:
    assert state(rest_for_one(*ABC)).exited("b", abnormal=True, now_s=0) == [
        Stop("c"),
        Start("b", 0.0),
        Start("c", 0.0),
    ]


def test_permanent_transient_and_temporary_children_differ_in_what_restarts_them() -> None:
    spec = one_for_one(
        child("p", Actor), child("t", Actor, restart="transient"), child("x", Actor, restart="temporary")
    )
    tree = state(spec)
    assert tree.exited("p", abnormal=False, now_s=0) == [Start("p", 0.0)]
    assert tree.exited("t", abnormal=False, now_s=0) == []
    assert tree.exited("t", abnormal=True, now_s=1) == [Start("t", 0.0)]
    assert tree.exited("x", abnormal=True, now_s=2) == []
    assert "x" not in tree.children


def test_a_child_that_no_restart_would_mend_escalates_at_once() -> None:
    for spec in (one_for_one(*ABC), rest_for_one(*ABC), one_for_all(*ABC)):
        actions = state(spec).exited("b", abnormal=True, now_s=0, hopeless=True)
        assert [type(action) for action in actions] == [Escalate]


def test_one_restart_more_than_the_intensity_escalates_and_the_window_forgets() -> None:
    tree = state(one_for_one(*ABC, intensity=Intensity(restarts=2, within_s=5)))
    for now_s in (0.0, 1.0):
        assert isinstance(tree.exited("a", abnormal=True, now_s=now_s)[0], Start)
    assert isinstance(tree.exited("b", abnormal=True, now_s=2.0)[0], Escalate)
    patient = state(one_for_one(*ABC, intensity=Intensity(restarts=2, within_s=5)))
    for now_s in (0.0, 4.0, 8.0, 12.0, 16.0):
        assert isinstance(patient.exited("a", abnormal=True, now_s=now_s)[0], Start)


def test_a_child_that_fails_again_waits_longer_each_time() -> None:
    tree = state(one_for_one(*ABC, intensity=Intensity(restarts=10, within_s=60, backoff_s=1.0)))
    delays = []
    for now_s in range(5):
        action = tree.exited("a", abnormal=True, now_s=float(now_s))[0]
        assert isinstance(action, Start)
        delays.append(action.delay_s)
    assert delays[0] == 0.0
    assert 0.5 <= delays[1] <= 1.0
    assert 1.0 <= delays[2] <= 2.0
    assert 2.0 <= delays[3] <= 4.0
    assert 4.0 <= delays[4] <= 8.0


def test_two_children_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="share the name"):
        one_for_one(child("a", Actor), child("a", Actor))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3)), max_size=60),
    st.integers(0, 5),
    st.floats(0.5, 20),
)
def test_never_more_restarts_than_the_intensity_within_any_window(
    failures: list[tuple[str, float]], restarts: int, within_s: float
) -> None:
    tree = state(one_for_one(*ABC, intensity=Intensity(restarts=restarts, within_s=within_s)))
    now_s, granted = 0.0, list[float]()
    for name, gap_s in failures:
        now_s += gap_s
        actions = tree.exited(name, abnormal=True, now_s=now_s)
        if any(isinstance(action, Escalate) for action in actions):
            break
        granted.append(now_s)
        tree.started(name)
    for start in granted:
        assert sum(start <= at <= start + within_s for at in granted) <= restarts
