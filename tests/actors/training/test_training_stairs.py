"""When half of the engines leave a seeding window."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.training.stairs import PaperStair, PlannedStair

shares = st.lists(st.floats(0, 1), max_size=60).map(sorted)


@given(shares, st.data())
def test_paper_stair_looks_once_for_each_five_percent_between_20_and_50(
    ended: list[float], data: st.DataObject
) -> None:
    stair, looked = PaperStair(), list[float]()
    for share in ended:
        fits = data.draw(st.booleans())
        due = stair.due(0.0, share, True) if fits else stair.due(0.0, share, False)
        expected = 0.20 <= share <= 0.50 and (not looked or share >= looked[-1] + 0.05)
        assert due == (expected and fits)
        if expected:
            looked.append(share)
    assert len(looked) <= 7


def test_paper_stair_never_leaves_half_without_cache() -> None:
    stair = PaperStair()
    assert not stair.due(0.0, 0.25, False)
    assert not stair.due(0.0, 0.26, True), "less than 5 % since the last look"
    assert stair.due(0.0, 0.30, True)


def test_planned_stair_waits_for_its_time_and_for_cache() -> None:
    stair = PlannedStair(4.0)
    assert not stair.due(3.9, 0.9, True)
    assert not stair.due(4.0, 0.0, False)
    assert stair.due(4.1, 0.0, True)
