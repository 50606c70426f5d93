"""CriticalPath: stages of the response for which the end of a step waited."""

from dataclasses import astuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.protocol.critical_path import CriticalPath
from gleaner.actors.rollout.batches.critical_path import BatchInstants

STAGES = ("weights_s", "place_s", "prefill_s", "decode_s", "verdict_s", "hand_out_s", "train_s")


def spans(path: CriticalPath | None) -> list[float]:
    assert path is not None
    found = msgspec.to_builtins(path)
    return [found[stage] for stage in STAGES]


def batch(begin_s: float = 10.0) -> BatchInstants:
    """Two groups of two responses; "b2" of the second group ends last."""
    made = BatchInstants(begin_s)
    for request, group, sent_s in (("a1", 0, 11.0), ("a2", 0, 11.0), ("b1", 1, 11.5), ("b2", 1, 12.0)):
        made.sent(request, group, f"spot-{group}", 10.5, sent_s)
        made.began(request, sent_s + 0.5)
    for request, end_s in (("a1", 13.0), ("b1", 13.5), ("a2", 14.0), ("b2", 15.0)):
        made.finished(request, end_s)
    made.scored(0, 14.25)
    made.handed_out([0], 14.5)
    made.scored(1, 15.25)
    made.handed_out([1], 16.0)
    return made


def test_stages_are_those_of_the_last_response() -> None:
    path = batch().critical_path(0.0, 18.0)
    assert path is not None
    assert (path.request, path.instance, path.sends) == ("b2", "spot-1", 1)
    assert spans(path) == [0.5, 1.5, 0.5, 2.5, 0.25, 0.75, 2.0]


def test_path_of_early_batch_begins_with_its_step() -> None:
    assert spans(batch().critical_path(13.0, 18.0)) == [0.0, 0.0, 0.0, 2.0, 0.25, 0.75, 2.0]


def test_resent_response_counts_from_its_first_dispatch() -> None:
    made = batch()
    made.sent("b2", 1, "spot-7", 14.9, 14.9)
    made.finished("b2", 15.5)
    path = made.critical_path(0.0, 18.0)
    assert path is not None
    assert (path.instance, path.sends) == ("spot-7", 2)
    assert spans(path) == [0.5, 1.5, 0.5, 3.0, 0.0, 0.5, 2.0], "no time is counted twice"


def test_group_handed_out_again_counts_from_first_time() -> None:
    made = batch()
    made.handed_out([0, 1], 17.0)
    assert spans(made.critical_path(0.0, 18.0)) == spans(batch().critical_path(0.0, 18.0))


@pytest.mark.parametrize("missing", ["handed_out", "scored", "finished"])
def test_path_is_absent_when_an_instant_is_missing(missing: str) -> None:
    made = BatchInstants(0.0)
    made.sent("a", 0, "spot", 0.0, 1.0)
    if missing != "finished":
        made.finished("a", 2.0)
    if missing != "scored":
        made.scored(0, 3.0)
    if missing != "handed_out":
        made.handed_out([0], 4.0)
    assert made.critical_path(0.0, 5.0) is None


instants = st.floats(0.0, 100.0)


@given(st.lists(st.tuples(*[instants] * 6), min_size=1, max_size=8), instants, instants, instants)
def test_stages_are_never_negative_and_sum_to_step(
    responses: list[tuple[float, ...]], begin_s: float, before_s: float, took_s: float
) -> None:
    made = BatchInstants(begin_s)
    for number, (served_s, sent_s, began_s, ended_s, scored_s, handed_s) in enumerate(responses):
        made.sent(str(number), number, "spot", served_s, sent_s)
        made.began(str(number), began_s)
        made.finished(str(number), ended_s)
        made.scored(number, scored_s)
        made.handed_out([number], handed_s)
    last_s = max(begin_s, before_s, *(max(one) for one in responses))
    found = spans(made.critical_path(before_s, last_s + took_s))
    assert all(span >= 0 for span in found)
    assert sum(found) == pytest.approx(last_s + took_s - max(begin_s, before_s))


def test_seconds_of_scoring_count_once_and_within_the_step() -> None:
    made = batch()
    for request, judged_s in (("a1", 13.75), ("b1", 14.0), ("a2", 14.25), ("b2", 15.25)):
        made.judged(request, judged_s)
    path = made.critical_path(0.0, 18.0)
    assert path is not None
    assert path.scoring_s == 1.5, "13 to 14.25 s, 15 to 15.25 s"
    assert path.scoring_s - path.verdict_s == 1.25, "the last verdict alone is exposed"
    later = made.critical_path(13.5, 18.0)
    assert later is not None
    assert later.scoring_s == 1.0, "the step before had the rest"


def test_verdict_behind_the_step_counts_until_its_end() -> None:
    made = batch()
    made.judged("b2", 40.0)
    path = made.critical_path(0.0, 18.0)
    assert path is not None
    assert path.scoring_s == 3.0


def test_response_without_verdict_has_no_seconds_of_scoring() -> None:
    made = batch()
    made.judged("b2", 15.5)
    path = made.critical_path(0.0, 18.0)
    assert path is not None
    assert path.scoring_s == 0.5


def test_memory_grows_with_responses_and_groups_only() -> None:
    made = batch()
    before = [len(one) for one in astuple(made)[1:]]
    for _ in range(100):
        made.sent("b2", 1, "spot-1", 10.5, 12.0)
        made.began("b2", 12.5)
        made.finished("b2", 15.0)
        made.scored(1, 15.25)
        made.handed_out([0, 1], 16.0)
    assert [len(one) for one in astuple(made)[1:]] == before
