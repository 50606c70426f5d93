"""`FirstInstance`: when the first preemptible instance of a job is reported as serving or as overdue."""

from gleaner.actors.training.causes import MAX_TOLD, in_a_line
from gleaner.actors.training.first_instance import MAX_CAUSE, FirstInstance
from gleaner.configs.schema import Fleet


def waiting(*, n_prem_max: int = 2, served: bool = False) -> FirstInstance:
    return FirstInstance(Fleet(n_prem_max=n_prem_max, first_instance_s=10.0), served=served)


def test_time_counts_from_first_weights_with_single_verdicts() -> None:
    first = waiting()
    assert first.look(0.0, weights=False, serves=False) == ""
    assert first.look(100.0, weights=True, serves=False) == ""
    assert (first.awaited, first.missing) == (True, True)
    assert first.look(109.9, weights=True, serves=False) == ""
    assert first.look(110.0, weights=True, serves=False) == "overdue"
    assert (first.awaited, first.missing, first.waited_s) == (False, True, 10.0)
    assert first.look(120.0, weights=True, serves=False) == ""
    assert first.look(130.0, weights=True, serves=True) == "served"
    assert (first.missing, first.waited_s) == (False, 30.0)
    assert first.look(140.0, weights=True, serves=False) == ""


def test_nothing_is_missing_without_an_expected_instance() -> None:
    for first in (waiting(n_prem_max=0), waiting(served=True)):
        assert [first.look(at_s, weights=True, serves=False) for at_s in (0.0, 50.0)] == ["", ""]
        assert not first.awaited
        assert not first.missing


def test_reason_is_the_newest_engine_end_with_its_count() -> None:
    first = waiting()
    assert first.why(0) == "no preemptible host is up"
    assert "1 preemptible host is up, and no engine has ended: look at its log" in first.why(1)
    first.ended("spot-1/engine", "the server ended\n  (exit 1)")
    once = "engines failed once, the last one spot-1/engine: the server ended (exit 1)"
    assert first.why(2) == f"2 preemptible hosts are up, {once}"
    first.ended("spot-2/engine", "x" * 10_000)
    assert "failed 2 times" in first.why(2)
    assert len(first.why(2)) < MAX_CAUSE + 100


def test_long_cause_keeps_its_start_and_end() -> None:
    first = waiting()
    first.ended(
        "spot-1/engine", f"the server ended (exit 2): {'[--an-option] ' * 500}\nunknown option --none"
    )
    assert "spot-1/engine: the server ended (exit 2): [" in first.why(1)
    assert first.why(1).endswith("] unknown option --none")
    assert len(first.why(1)) < MAX_CAUSE + 100
    assert len(in_a_line("x" * 10_000)) == MAX_TOLD
    assert in_a_line("exit\n 3") == "exit 3"
