"""`Choice`: which peer a receiver gets as its parent, and what counts as a slot, a slow peer and a rate."""

import pytest

from gleaner.actors.weights.transfer.relay_choice import (
    COMPLETE_SLOTS,
    MAX_PEERS,
    NEAR,
    RELAY_SLOTS,
    SLOW,
    Choice,
)
from gleaner.actors.weights.transfer.relay_peer import Peer

PAYLOAD = 1000
RATE = 10.0
"""Bytes/s of a receiver and of the origin, which has one slot then."""


class Site:
    """Peers whose edges the test sets by hand, and the receiver `x` that asks."""

    def __init__(self, *, payload: int = PAYLOAD, origin_up: float = RATE, **x: float) -> None:
        self.peers: dict[str, Peer] = {}
        self.crossing: dict[str, float] = {}
        self.choice = Choice(self.peers, payload, self.crossing, {})
        self.origin = self.add("origin", up=origin_up, origin=True, complete=True)
        self.x = self.add("x", **x)

    def add(
        self,
        name: str,
        parent: str = "",
        *,
        up: float = RATE,
        down: float = RATE,
        site: str = "",
        origin: bool = False,
        have: int = 0,
        complete: bool = False,
        slow: bool = False,
    ) -> Peer:
        held = PAYLOAD if complete else have
        self.peers[name] = peer = Peer(name, up, down, site, origin, held, complete, in_slow_slot=slow)
        self.choice.typical.clear()
        if parent:
            self.attach(name, parent)
        return peer

    def attach(self, name: str, parent: str) -> None:
        self.peers[name].parent = self.peers[parent]
        self.peers[parent].children[name] = self.peers[name]

    def fill(self, name: str) -> None:
        """Children in all slots for fast ones, that serve no peer themselves."""
        peer = self.peers[name]
        for number in range(self.choice.slots(peer) - peer.kids(slow=False)):
            self.add(f"{name}-{number}", name, site=peer.site).banned = True

    def chosen(self, *barred: str, current: str = "", least: int = 0) -> str | None:
        found = self.choice.parent_for(self.x, barred, current, least_bytes=least)
        return None if found is None else found.name


def chain() -> Site:
    """The slot of the origin is taken by `r0`, which has one."""
    site = Site()
    site.add("r0", "origin", have=400)
    assert site.chosen() == "r0"
    return site


def test_peer_that_failed_or_is_barred_is_not_chosen() -> None:
    site = chain()
    assert site.chosen("r0") is None
    site.x.avoid("r0", "failed")
    assert site.chosen() is None


@pytest.mark.parametrize("why", ["banned", "draining", "suspected"])
def test_peer_that_may_not_serve_is_not_chosen(why: str) -> None:
    site = chain()
    setattr(site.peers["r0"], why, True)
    site.origin.banned = True  # its slot may be free now
    assert site.chosen() is None


def test_peer_without_a_source_and_descendants_of_the_receiver_are_not_chosen() -> None:
    site = chain()
    site.add("lost", have=900)
    assert site.chosen() == "r0", "no bytes reach the other"
    site.attach("x", "r0")
    site.x.moving = "weak"
    site.add("child", "x", have=900)
    site.add("grandchild", "child", have=900)
    assert site.chosen() is None
    site.add("whole", complete=True)
    assert site.chosen() == "whole"


def test_present_parent_is_not_chosen_again() -> None:
    site = chain()
    site.attach("x", "r0")
    assert site.chosen() is None
    site.add("whole", complete=True)
    assert site.chosen() == "whole"


def test_weak_parent_is_pulled_from_again_only_by_a_receiver_without_another() -> None:
    site = chain()
    site.x.avoid("r0", "weak")
    assert site.chosen() == "r0", "there is no other"
    site.add("whole", complete=True, up=1.0)
    assert site.chosen() == "whole", "however little it gives"
    site.attach("x", "whole")
    assert site.chosen() is None, "it keeps the parent that it has"


def test_only_peers_with_as_many_bytes_are_chosen_when_a_number_is_asked_for() -> None:
    site = chain()
    assert site.chosen(least=400) == "r0"
    assert site.chosen(least=401) is None


def test_current_parent_is_kept_when_it_has_a_slot_for_the_receiver() -> None:
    site = chain()
    site.add("whole", complete=True)
    assert site.chosen() == "whole"
    assert site.chosen(current="r0") == "r0"
    assert site.chosen(current="x") == "whole"
    site.fill("r0")
    assert site.chosen(current="r0") == "whole"


def test_highest_rate_wins_and_among_near_ones_the_origin_the_fullest_and_the_earliest() -> None:
    site = Site(origin_up=NEAR * RATE)
    site.add("early", complete=True)
    site.add("late", complete=True)
    assert site.chosen() == "origin"
    assert site.chosen("origin") == "early"
    site.add("relay", "late", have=900)
    site.peers["early"].up_bytes_s = 8.5
    site.peers["late"].up_bytes_s = 2 * NEAR * RATE
    assert site.chosen("origin") == "late", "9 bytes/s are as good as 10, and it has more"
    site.origin.up_bytes_s = 8.9
    assert site.chosen() == "late"
    site.peers["late"].up_bytes_s = 2 * 8.9
    assert site.chosen("origin") == "relay"


@pytest.mark.parametrize("slow", [True, False])
def test_rate_is_what_the_children_of_a_parent_leave(slow: bool) -> None:
    site = Site(down=20.0, up=1.0)
    site.origin.banned = True
    for number in range(4):
        site.add(f"other-{number}", down=20.0).banned = True
    site.add("shared", complete=True, up=20.0, down=20.0)
    site.add("other", complete=True, up=15.0, down=20.0)
    assert site.chosen() == "shared"
    site.add("child", "shared", down=8.0, up=1.0, slow=slow).banned = True
    assert site.chosen() == "other", "20 - 8, or half of 20, is less than 15"


def test_slow_peer_serves_only_when_no_other_of_its_pool_can() -> None:
    site = Site()
    site.origin.down_bytes_s = 0.1  # it receives nothing
    assert site.chosen() == "origin"
    site.fill("origin")
    site.add("relay", "origin-0", have=10)
    site.add("slow", complete=True, down=SLOW * RATE - 0.1)
    assert site.chosen() == "relay"
    assert site.chosen("relay", "origin") == "slow"
    assert site.chosen("relay") is None, "the origin will have a slot"


def test_slow_receiver_gets_a_slow_slot_where_it_delays_no_chain() -> None:
    site = Site(down=1.0)
    site.fill("origin")
    assert site.chosen() == "origin", "fast children are in other slots"
    site.add("chain", "origin-0", have=500)
    site.fill("chain")
    assert site.chosen("origin") is None, "its child would wait"
    site.add("whole", complete=True)
    site.fill("whole")
    assert site.chosen() == "whole"
    for name, have in (("empty", 100), ("fuller", 200), ("emptier", 50)):
        site.add(name, "origin-0", have=have)
    assert site.chosen() == "fuller"
    for name in ("empty", "fuller", "emptier"):
        site.add(f"slow-{name}", name, down=1.0, slow=True).banned = True
    assert site.chosen() == "whole", "their slow slots are taken"


def test_origin_serves_all_of_its_site_when_the_payload_is_small() -> None:
    site = Site(payload=5, origin_up=4 * RATE, down=4 * RATE)
    site.add("whole", complete=True, up=8 * RATE, down=4 * RATE)
    for number in range(3):
        site.add(f"r{number}", "origin", down=4 * RATE)
    assert site.choice.is_star(), "4 receivers want 5 bytes each; the origin gives 20 in that time"
    assert site.choice.slots(site.origin) == MAX_PEERS
    assert site.chosen() == "origin"
    site.add("one-more", down=4 * RATE)
    assert not site.choice.is_star()
    assert site.choice.slots(site.origin) == 1
    assert site.chosen() == "whole"
    site.peers["one-more"].draining = True
    assert site.choice.is_star(), "it pulls no more"


def test_peers_of_a_star_in_another_site_choose_among_all() -> None:
    site = Site(payload=1, origin_up=RATE)
    site.x.site = "far"
    site.add("whole", complete=True, up=4 * RATE)
    site.x.down_bytes_s = 4 * RATE
    assert site.choice.is_star()
    assert site.chosen() == "whole"


def far() -> Site:
    """The receiver is the fullest of a site that gets nothing yet."""
    site = Site(have=50)
    site.x.site = "far"
    site.add("far", site="far", have=50)
    assert site.chosen() == "origin"
    return site


def test_peer_of_its_own_site_is_chosen_before_a_faster_one_of_another() -> None:
    site = far()
    site.attach("far", "origin")
    site.peers["far"].up_bytes_s = 6.0
    assert site.chosen() == "far"
    site.fill("far")
    assert site.chosen() is None, "one copy crosses"


def test_receiver_crosses_only_when_no_peer_of_its_site_has_more_for_it() -> None:
    site = far()
    site.peers["far"].have_bytes = 51
    assert site.chosen() is None
    site.x.avoid("far", "weak")
    assert site.chosen() is None, "it may be pulled from again"
    site.x.avoid("far", "failed")
    assert site.chosen() == "origin"
    del site.x.avoided["far"]
    site.attach("far", "x")
    assert site.chosen() == "origin", "it pulls from the receiver itself"


def test_fuller_peer_that_does_not_serve_keeps_no_receiver_from_crossing() -> None:
    site = far()
    site.peers["far"].have_bytes = 51
    site.peers["far"].draining = True
    assert site.chosen() == "origin"
    site.add("home", have=900)
    assert site.chosen() == "origin", "nor does one of another site"


def test_receiver_that_asks_for_more_bytes_does_not_cross() -> None:
    site = far()
    assert site.chosen(least=1) is None


def test_edge_across_sites_is_slow_below_half_of_what_receivers_there_get() -> None:
    site = far()
    site.fill("origin")
    slow = site.add("slow", complete=True, up=SLOW * RATE - 0.1)
    fast = site.add("fast", complete=True, up=SLOW * RATE)
    assert site.choice.is_slow_edge(slow, site.x)
    assert not site.choice.is_slow_edge(fast, site.x)
    assert site.chosen() == "fast"
    assert site.chosen("fast") == "slow", "in a slow slot"
    site.crossing["far"] = SLOW * RATE - 0.1
    assert site.choice.is_slow_edge(fast, site.x)


def test_edge_within_a_site_is_slow_for_a_slow_receiver_only() -> None:
    site = Site()
    site.add("other")
    slow, half = site.add("slow", down=SLOW * RATE - 0.1), site.add("half", down=SLOW * RATE)
    site.add("more")
    weak = site.add("weak", complete=True, up=0.1)
    assert [site.choice.is_slow(peer) for peer in (slow, half, site.x)] == [True, False, False]
    assert site.choice.is_slow_edge(site.origin, slow)
    assert not site.choice.is_slow_edge(slow, site.x)
    assert not site.choice.is_slow_edge(weak, site.x)


def test_edge_carries_no_more_than_its_ends_and_the_link_between_sites() -> None:
    site = Site()
    relay = site.add("relay", up=9.0, down=7.0)
    whole = site.add("whole", up=9.0, down=1.0, complete=True)
    home, away = site.add("home", up=0.1, down=8.0), site.add("away", up=0.1, down=8.0, site="far")
    site.crossing.update({"far": 5.0, "": 2.0})

    def rates(child: Peer, children: int = 1) -> list[float]:
        return [site.choice.edge_bytes_s(parent, child, children) for parent in (relay, whole)]

    assert rates(home) == [7.0, 8.0], "a relay sends no faster than it receives"
    assert rates(home, 2) == [4.5, 4.5]
    assert rates(away) == [5.0, 5.0]
    assert rates(away, 3) == [3.0, 3.0]
    del site.crossing["far"]
    assert rates(away) == [7.0, 8.0], "what the link carries is not known"


def test_relay_and_complete_peer_have_their_slots() -> None:
    site = Site()
    assert site.choice.slots(site.x) == RELAY_SLOTS
    assert site.choice.slots(site.add("whole", complete=True)) == COMPLETE_SLOTS


@pytest.mark.parametrize(("up", "down", "slots"), [(0.3, 0.1, 3), (0.29, 0.1, 2), (0.05, 0.1, 1)])
def test_origin_has_a_slot_for_each_typical_receiver_that_it_can_feed(
    up: float, down: float, slots: int
) -> None:
    site = Site(origin_up=up, down=down)
    assert site.choice.slots(site.origin) == slots


def test_typical_rate_is_the_median_of_a_site_or_of_all_and_kept_until_it_is_cleared() -> None:
    site = Site(down=4.0)
    site.add("other", down=6.0)
    site.add("away", down=1.0, site="far")
    assert [site.choice.typical_down(name) for name in ("", "far", "empty")] == [5.0, 1.0, 4.0]
    site.x.down_bytes_s = 8.0
    assert site.choice.typical_down("") == 5.0
    site.choice.typical.clear()
    assert site.choice.typical_down("") == 7.0


def test_typical_rate_is_zero_when_there_is_no_receiver() -> None:
    site = Site()
    del site.peers["x"]
    site.choice.typical.clear()
    assert site.choice.typical_down("") == 0.0
