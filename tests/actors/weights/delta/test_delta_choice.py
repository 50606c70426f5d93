"""Choice of a way to a version: the cheapest available chain or the full image."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.weights.delta.choice import Choice, Offer, choose

ROOTS = [bytes([number]) * 32 for number in range(5)]


def step(base: int, target: int, nbytes: int) -> Offer:
    return Offer(ROOTS[base], ROOTS[target], nbytes)


OFFERS = st.lists(
    st.builds(step, st.integers(0, 4), st.integers(0, 4), st.integers(1, 60)), max_size=7, unique=True
)


def cheapest(offers: list[Offer], most_bytes: float, most_links: int) -> tuple[int, int] | None:
    """Bytes and links of the best chain from root 0 to root 4, by trying all."""
    found = []
    for links in range(1, most_links + 1):
        for chain in itertools.permutations(offers, links):
            ends = [ROOTS[0], *(offer.target_root for offer in chain)]
            nbytes = sum(offer.nbytes for offer in chain)
            if (
                all(offer.base_root == end for offer, end in zip(chain, ends, strict=False))
                and ends[-1] == ROOTS[4]
                and nbytes <= most_bytes
            ):
                found.append((nbytes, links))
    return min(found, default=None)


@given(OFFERS, st.integers(1, 4))
def test_no_allowed_chain_is_cheaper_than_the_choice(offers: list[Offer], most_links: int) -> None:
    chosen = choose(100, ROOTS[0], ROOTS[4], offers, share=0.6, most_links=most_links)
    best = cheapest(offers, 60, most_links)
    if best is None:
        assert chosen == Choice((), 100)
        assert chosen.way == "full"
    else:
        assert (chosen.nbytes, len(chosen.chain)) == best
        assert chosen.way == ("delta" if best[1] == 1 else "chain")
        assert chosen.chain[0].base_root == ROOTS[0]
    assert chosen == choose(100, ROOTS[0], ROOTS[4], list(reversed(offers)), share=0.6, most_links=most_links)


def test_nearly_full_delta_is_not_chosen() -> None:
    assert choose(100, ROOTS[0], ROOTS[1], [step(0, 1, 60)]).way == "delta"
    assert choose(100, ROOTS[0], ROOTS[1], [step(0, 1, 61)]) == Choice((), 100)


def test_direct_delta_is_chosen_when_no_larger() -> None:
    chain = [step(0, 1, 10), step(1, 2, 10)]
    assert choose(100, ROOTS[0], ROOTS[2], chain).way == "chain"
    assert choose(100, ROOTS[0], ROOTS[2], [*chain, step(0, 2, 20)]).way == "delta"
    assert choose(100, ROOTS[0], ROOTS[2], [*chain, step(0, 2, 25)]).way == "chain"


def test_receiver_without_base_pulls_full_and_current_nothing() -> None:
    offers = [step(0, 1, 1)]
    assert choose(100, None, ROOTS[1], offers).way == "full"
    assert choose(100, ROOTS[3], ROOTS[1], offers).way == "full"
    assert choose(100, ROOTS[1], ROOTS[1], offers) == Choice((), 0)
    assert choose(100, ROOTS[1], ROOTS[1], offers).way == "nothing"


def test_chain_longer_than_the_limit_is_not_chosen() -> None:
    offers = [step(number, number + 1, 1) for number in range(4)]
    assert choose(100, ROOTS[0], ROOTS[4], offers, most_links=3).way == "full"
    assert choose(100, ROOTS[0], ROOTS[4], offers, most_links=4).way == "chain"
