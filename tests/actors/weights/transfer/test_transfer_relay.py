"""Wave: sources of receivers in chains behind the origin, whatever peers do."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.weights.transfer.relay import MAX_PEERS, NotInWave, TooManyPeers, Wave

PAYLOAD = 16_000_000_000
CHUNK = 16_000_000
ORIGIN, RECEIVER = 25e9, 6.25e9  # bytes/s: 200 and 50 Gbps


def wave(receivers: int = 0, *, payload: int = PAYLOAD, site: str = "") -> Wave:
    """An origin, and receivers r0, r1, ... that have joined and not asked yet."""
    made = Wave(payload, chunk_bytes=CHUNK)
    made.join("origin", up_bytes_s=ORIGIN, down_bytes_s=ORIGIN, origin=True)
    for number in range(receivers):
        joined(made, f"r{number}", site=site)
    return made


def joined(made: Wave, name: str, *, rate: float = RECEIVER, site: str = "", have: int = 0) -> str:
    made.join(name, up_bytes_s=rate, down_bytes_s=rate, site=site, have_bytes=have)
    return name


def parents(made: Wave, receivers: int, now_s: float = 0.0) -> list[str | None]:
    return [made.ask(f"r{number}", now_s) for number in range(receivers)]


def turn(made: Wave, now_s: float) -> dict[str, str | None]:
    """All receivers ask twice; returns the new parents of those whose parent changed."""
    receivers = [peer.name for peer in made.peers() if not peer.origin]
    before = {name: made.parent_of(name) for name in receivers}
    for _ in range(2):
        for name in receivers:
            made.ask(name, now_s)
    return {name: made.parent_of(name) for name in receivers if made.parent_of(name) != before[name]}


def test_origin_fills_its_slots_and_relays_serve_one() -> None:
    made = wave(12)
    assert made.slots("origin") == 4
    given = parents(made, 12)
    assert given[:4] == ["origin"] * 4
    assert max(Counter(given[4:]).values()) == 1
    assert "origin" not in given[4:]


def test_small_payload_is_served_by_the_origin_alone() -> None:
    small = wave(30, payload=400_000_000)
    assert set(parents(small, 30)) == {"origin"}
    assert set(parents(wave(30, payload=450_000_000), 30)) != {"origin"}


def test_repeated_question_keeps_parent_and_complete_needs_none() -> None:
    made = wave(6)
    first = parents(made, 6)
    assert parents(made, 6, 1.0) == first
    made.progress("r0", PAYLOAD, 2.0)
    assert made.ask("r0", 2.0) is None
    assert turn(made, 2.0) == {}


def test_late_joiner_pulls_from_the_fullest_tail() -> None:
    made = wave(8)
    parents(made, 8)
    for number in range(4):
        made.progress(f"r{number}", PAYLOAD // 2, 0.5)
    for number in range(4, 8):
        made.progress(f"r{number}", PAYLOAD // 2 - number * CHUNK, 0.5)
    assert made.ask(joined(made, "late"), 0.5) == "r4"


def test_peer_with_the_whole_version_serves_two() -> None:
    made = wave(4)
    parents(made, 4)
    joined(made, "whole", have=PAYLOAD)
    late = [made.ask(joined(made, f"late{number}"), 0.0) for number in range(3)]
    assert late.count("whole") <= 2
    assert None not in late


def test_child_of_a_dead_relay_takes_its_place() -> None:
    made = wave(12)
    given = parents(made, 12)
    child = f"r{given.index('r0')}"
    grandchild = f"r{given.index(child)}"
    made.lose("r0")
    assert turn(made, 1.0) == {child: "origin"}
    assert made.parent_of(grandchild) == child


def test_unreachable_parent_is_not_given_again() -> None:
    made = wave(5)
    parents(made, 5)
    dead = made.parent_of("r4")
    assert dead is not None
    other = made.ask("r4", 1.0, exclude=[dead])
    assert other not in (dead, None)
    assert other != dead
    made.progress(dead, PAYLOAD // 2, 1.0)  # the peer is alive and has most
    assert made.ask("r4", 1.0, exclude=[str(other)]) not in (dead, other, None)


def test_given_up_peer_gets_children_after_it_reports() -> None:
    made = wave(8)
    given = parents(made, 8)
    child = f"r{given.index('r0')}"
    assert made.ask(child, 1.0, exclude=["r0"]) == "origin"
    late = [made.ask(joined(made, f"late{number}"), 1.0) for number in range(8)]
    assert "r0" not in late
    made.progress("r0", CHUNK, 1.5)
    late = [made.ask(joined(made, f"later{number}"), 1.5) for number in range(8)]
    assert "r0" in late


def test_unreachable_origin_is_excluded_only_once() -> None:
    made = wave(1)
    assert made.ask("r0", 0.0) == "origin"
    assert made.ask("r0", 1.0, exclude=["origin"]) is None
    assert made.ask("r0", 2.0) == "origin"


def test_false_peer_is_never_asked_again() -> None:
    made = wave(5)
    parents(made, 5)
    liar = str(made.parent_of("r4"))
    made.lied(liar, "r4")
    moved = turn(made, 1.0)
    assert moved["r4"] != liar
    made.lose(liar)
    joined(made, liar, have=PAYLOAD)
    for number in range(20):
        assert made.ask(joined(made, f"late{number}"), 1.0) != liar


def test_false_peer_loses_its_other_child_too() -> None:
    made = wave(4)
    parents(made, 4)
    joined(made, "whole", have=PAYLOAD)
    for late in ("one", "other"):
        assert made.ask(joined(made, late), 0.0, current="whole") == "whole"
    made.lied("whole", "one")
    assert made.parent_of("other") is None
    assert set(turn(made, 0.0)) == {"one", "other"}


def test_accuser_counts_once_and_origin_is_never_banned() -> None:
    made = wave(6)
    parents(made, 6)
    for liar in ("r0", "r1", "r2", "origin"):
        made.lied(liar, "r5")
    assert [peer.name for peer in made.peers() if peer.banned] == ["r0"]
    assert made.ask("r5", 1.0) not in ("r0", "r1", "r2")


def test_children_of_a_leaving_host_move() -> None:
    made = wave(8)
    given = parents(made, 8)
    child = f"r{given.index('r1')}"
    made.drain("r1")
    assert made.parent_of(child) == "r1", "the parent is kept until there is another"
    assert turn(made, 1.0) == {child: "origin", "r1": None}, "no peer needs r1, so it no longer pulls"
    assert made.ask("r1", 1.0) is None
    for number in range(9):
        assert made.ask(joined(made, f"late{number}"), 1.0) != "r1"


def test_slow_receiver_is_a_leaf_and_displaces_none() -> None:
    made = wave()
    joined(made, "slow", rate=1e9)
    for number in range(8):
        joined(made, f"r{number}")
    made.ask("slow", 0.0)
    given = parents(made, 8)
    assert given.count("origin") == 4
    assert "slow" not in given
    chained = wave(8)
    parents(chained, 8)
    tail = chained.ask(joined(chained, "slow", rate=1e9), 0.0)
    assert tail in {"r4", "r5", "r6", "r7"}, "the tail, where it delays no chain"


def test_parent_below_half_rate_is_left() -> None:
    made = wave(5)
    parents(made, 5)
    weak = str(made.parent_of("r4"))
    for tenth in range(11):
        for number in range(4):
            made.progress(f"r{number}", int(RECEIVER * tenth / 10), tenth / 10)
        made.progress("r4", int(0.4 * RECEIVER * tenth / 10), tenth / 10)
    assert turn(made, 1.0).get("r4") not in (weak, None)


def test_parent_that_has_nothing_new_is_kept() -> None:
    made = wave(9)
    given = parents(made, 9)
    child = f"r{given.index('r0')}"
    for tenth in range(21):  # r0 itself gets little because its own parent is slow
        for number in range(9):
            share = 0.3 if f"r{number}" in ("r0", child) or given[number] == child else 1.0
            made.progress(f"r{number}", int(share * RECEIVER * tenth / 10), tenth / 10)
    turn(made, 2.0)
    assert made.parent_of(child) == "r0"


def test_child_replaces_its_silent_parent_within_a_second() -> None:
    made = wave(8)
    given = parents(made, 8)
    child = f"r{given.index('r0')}"
    for now_s, held_s in ((0.5, 0.5), (1.0, 0.7)):
        if now_s == 0.5:
            made.progress("r0", int(RECEIVER * held_s), now_s)  # it dies at 0.7 s, unreported
        made.progress(child, int(RECEIVER * held_s), now_s)
        assert made.ask(child, now_s) == "r0"
    made.progress(child, int(RECEIVER * 0.7), 1.5)
    assert made.ask(child, 1.5) == "origin"
    assert made.ask(joined(made, "late"), 1.5) != "r0"


def test_receiver_on_a_slow_line_keeps_its_parent_while_few_chunks_are_due() -> None:
    made = Wave(PAYLOAD, chunk_bytes=CHUNK)
    made.join("origin", up_bytes_s=2 * CHUNK, down_bytes_s=2 * CHUNK, origin=True)
    for number in range(2):
        joined(made, f"r{number}", rate=2 * CHUNK)
    assert parents(made, 2) == ["origin", "r0"]
    for name, chunks in (("r0", 4), ("r1", 1)):
        made.progress(name, chunks * CHUNK, 0.1)
    child = next(peer for peer in made.peers() if peer.name == "r1")
    for now_s in (0.6, 1.1):  # one chunk could have come, then two
        made.progress("r0", 5 * CHUNK, now_s)
        made.progress("r1", CHUNK, now_s)
        assert made.ask("r1", now_s) == "r0"
        assert (child.moving, child.avoided) == ("", {})


def test_receivers_starving_behind_a_death_keep_their_parents() -> None:
    made = wave(12)
    given = parents(made, 12)
    child = f"r{given.index('r0')}"
    grandchild = f"r{given.index(child)}"
    for half in range(1, 6):
        now_s = half / 2
        held_s = min(now_s, 0.7) + max(0.0, now_s - 1.5)  # nothing arrives between 0.7 and 1.5 s
        for name in (child, grandchild):
            made.progress(name, int(RECEIVER * held_s), now_s)
        assert made.ask(child, now_s) == ("r0" if now_s < 1.5 else "origin")
        assert made.ask(grandchild, now_s) == child


def test_starving_receiver_moves_without_blaming_a_live_parent() -> None:
    made = wave(8)
    given = parents(made, 8)
    child = f"r{given.index('r0')}"
    for half in (1, 2, 3):
        for number in range(8):
            starves = f"r{number}" in ("r0", child)
            held_s = min(half / 2, 0.7) if starves else half / 2
            made.progress(f"r{number}", int(RECEIVER * held_s), half / 2)
        moved = turn(made, half / 2)
        if half < 3:
            assert moved == {}
    assert moved[child] not in ("r0", None), "the child moves to a peer with progress"
    parent = made.peers()[1]
    assert (parent.name, parent.suspected, parent.serves) == ("r0", False, True)
    starved = next(peer for peer in made.peers() if peer.name == child)
    assert starved.avoided == {}, "r0 may serve the child again"


def test_starving_receiver_stays_when_no_peer_has_more() -> None:
    made = wave(3, payload=PAYLOAD)
    made.join("origin", up_bytes_s=RECEIVER, down_bytes_s=RECEIVER, origin=True)
    assert parents(made, 3) == ["origin", "r0", "r1"]
    for now_s in (0.5, 1.0, 1.5, 2.0):
        for number in range(3):
            made.progress(f"r{number}", CHUNK, now_s)
        assert turn(made, now_s) == {}, "all report and have equally much"


def test_silent_ancestor_loses_its_place_to_starving_receiver() -> None:
    made = wave(4)
    made.join("origin", up_bytes_s=RECEIVER, down_bytes_s=RECEIVER, origin=True)
    assert parents(made, 4) == ["origin", "r0", "r1", "r2"]
    for now_s in (0.5, 1.0, 1.25, 1.5):
        for name in ("r2", "r3") if now_s > 0.5 else ("r0", "r1", "r2", "r3"):  # r0 and r1 are gone
            made.progress(name, int(RECEIVER * 0.5), now_s)
    assert made.ask("r3", 1.5) == "origin"


def test_receiver_weak_behind_two_parents_serves_none() -> None:
    made = wave(9)
    given = parents(made, 9)
    assert given[0] == "origin"
    child = f"r{given.index('r0')}"
    for tenth in range(35):
        now_s = tenth / 10
        for number in range(9):
            share = 0.15 if number == 0 or f"r{number}" == child else 0.5
            made.progress(f"r{number}", int(share * RECEIVER * now_s), now_s)
        turn(made, now_s)
    assert made.parent_of(child) != "r0"


def test_one_peer_of_a_site_pulls_across_sites() -> None:
    made = wave(8)
    parents(made, 8)
    far = [made.ask(joined(made, f"far{number}", site="far"), 0.0) for number in range(6)]
    assert far[1:] == [f"far{number}" for number in range(5)]
    assert far[0] is not None
    assert not far[0].startswith("far")


def test_fullest_peer_replaces_a_dead_cross_site_puller() -> None:
    made = wave()
    for number in range(4):
        made.ask(joined(made, f"far{number}", site="far"), 0.0)
    for number in range(4):
        made.progress(f"far{number}", (10 - number) * CHUNK, 0.5)
    made.lose("far0")
    made.lose("far1")
    assert made.ask(joined(made, "far9", site="far"), 1.0) is None, "far9 would pull across what far2 has"
    assert turn(made, 1.0) == {"far2": "origin", "far9": "far3"}


def test_site_with_the_version_pulls_nothing_across() -> None:
    made = wave()
    joined(made, "far0", site="far", have=PAYLOAD)
    late = [made.ask(joined(made, f"late{number}", site="far"), 0.0) for number in range(4)]
    assert "origin" not in late
    assert late[0] == "far0"


def test_restarted_tracker_keeps_the_parents_of_receivers() -> None:
    made = wave(6)
    assert made.ask("r5", 0.0) == "origin"
    assert made.ask("r4", 0.0, current="r5") == "r5"
    assert made.ask("r3", 0.0, current="r5") == "origin", "that slot is taken"


def test_impossible_figures_and_unknown_peers_are_refused() -> None:
    made = wave(1)
    with pytest.raises(NotInWave, match="nobody is not in the wave"):
        made.ask("nobody", 0.0)
    with pytest.raises(ValueError, match="r0 cannot hold"):
        made.progress("r0", PAYLOAD + 1, 0.0)
    with pytest.raises(ValueError, match="cannot carry"):
        joined(made, "r1", rate=0.0)
    for number in range(1, MAX_PEERS - 1):
        joined(made, f"r{number}")
    with pytest.raises(TooManyPeers, match="r-more is one more than 4096"):
        joined(made, "r-more")


PAYLOAD_OF_LAWS, STEP = 40, 4
SITES = ("", "", "far", "west")


class Play:
    """A wave under events, with bytes that move along its edges; laws are checked after every event."""

    def __init__(self, rates: list[float]) -> None:
        self.wave = Wave(PAYLOAD_OF_LAWS, chunk_bytes=1)
        self.wave.join("origin", up_bytes_s=rates[0] * 3, down_bytes_s=1.0, origin=True)
        self.rates = rates
        self.now_s = 0.0
        self.crossed: Counter[str] = Counter()
        self.edges: set[tuple[str, str]] = set()

    def names(self) -> list[str]:
        return [peer.name for peer in self.wave.peers() if not peer.origin]

    def do(self, event: str, number: int) -> None:
        names = self.names()
        target = names[number % len(names)] if names else ""
        if event == "join":
            name, rate = f"r{number}", self.rates[number % len(self.rates)]
            if name not in names:
                site = SITES[number % len(SITES)]
                self.wave.join(name, up_bytes_s=rate, down_bytes_s=rate, site=site)
                self.check()
                self.wave.ask(name, self.now_s)
        elif event == "tick":
            self.tick()
        elif target and event == "lose":
            self.wave.lose(target)
        elif target and event == "drain":
            self.wave.drain(target)
        elif target and event in ("lie", "exclude"):
            parent = self.wave.parent_of(target)
            if parent is not None and event == "lie":
                self.wave.lied(parent, target)
            elif parent is not None:
                self.wave.ask(target, self.now_s, exclude=[parent])
        self.check()
        turn(self.wave, self.now_s)
        self.check()

    def tick(self, share: float = 1.0) -> None:
        """Each edge carries some of the bytes that its parent has and its child lacks."""
        self.now_s += 0.3
        before = {peer.name: peer.have_bytes for peer in self.wave.peers()}
        for peer in self.wave.peers():
            got = 0
            if peer.parent is not None:
                got = max(0, min(STEP, before[peer.parent.name] - peer.have_bytes))
                if peer.parent.site != peer.site:
                    self.crossed[peer.site] += got
            self.wave.progress(peer.name, peer.have_bytes + got, self.now_s)

    def check(self) -> None:
        peers = self.wave.peers()
        edges = {(peer.name, peer.parent.name) for peer in peers if peer.parent is not None}
        for peer in peers:
            if peer.parent is not None and (peer.name, peer.parent.name) not in self.edges:
                count = peer.parent.kids(peer.in_slow_slot)
                assert count <= self.wave.slots(peer.parent.name), f"{peer.parent.name} has {count} children"
        self.edges = edges
        for peer in peers:
            seen, at = set(), peer
            while at is not None:
                assert at.name not in seen, f"{at.name} pulls from itself"
                seen.add(at.name)
                at = at.parent
            assert peer.parent is None or peer.parent in peers
            assert peer.parent is None or not peer.parent.banned, "a banned peer is a parent"


rates = st.lists(st.sampled_from([1.0, 6.0, 8.0, 40.0]), min_size=3, max_size=6)
events = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "join", "tick", "tick", "lose", "drain", "lie", "exclude"]),
        st.integers(0, 23),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=150)
@given(rates, events)
def test_wave_completes_without_cycles_or_excess_slots(
    rates: list[float], events: list[tuple[str, int]]
) -> None:
    play = Play(rates)
    for event, number in events:
        play.do(event, number)
    for _ in range((len(play.names()) + 2) * (PAYLOAD_OF_LAWS // STEP + 3)):
        play.do("tick", 0)
    assert [peer.name for peer in play.wave.peers() if not (peer.complete or peer.draining)] == []


@settings(deadline=None, max_examples=100)
@given(rates, st.lists(st.tuples(st.sampled_from(["join", "tick"]), st.integers(0, 23)), max_size=60))
def test_one_copy_crosses_to_each_site(rates: list[float], events: list[tuple[str, int]]) -> None:
    play = Play(rates)
    for event, number in events:
        play.do(event, number)
    for _ in range((len(play.names()) + 2) * (PAYLOAD_OF_LAWS // STEP + 3)):
        play.do("tick", 0)
    sites = {peer.site for peer in play.wave.peers()} - {""}
    assert play.crossed == dict.fromkeys(sites, PAYLOAD_OF_LAWS)
