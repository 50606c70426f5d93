"""Sums over links only grow, whatever links come and go."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor.link_figures import COUNTED, LinkSums
from transport.links import LinkState


def link(where: str, count: int, state: str = "up") -> LinkState:
    counts = dict.fromkeys(COUNTED, count)
    return LinkState(
        where=where, dialled=True, state=state, unacked=2, tell_room=9, waiting=1, held=0, **counts
    )


def test_what_a_link_counted_stays_counted_when_it_is_gone() -> None:
    sums = LinkSums()
    assert sums.observe([link("a", 5), link("b", 1, "suspect")]).totals["resent"] == 6
    assert sums.observe([link("a", 7)]).totals["resent"] == 8
    seen = sums.observe([link("a", 7), link("b", 3)])  # another link to the same place
    assert seen.totals == dict.fromkeys(COUNTED, 11)
    assert (seen.states, seen.unacked, seen.waiting) == ({"up": 2}, 4, 2)
    assert sums.observe([link("a", 2)]).totals["gaps"] == 13, "it began anew"


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 100)), max_size=20))
def test_sums_never_fall(story: list[dict[str, int]]) -> None:
    sums, last = LinkSums(), 0
    for look in story:
        total = sums.observe([link(where, count) for where, count in look.items()]).totals["sent"]
        assert total >= last
        last = total
