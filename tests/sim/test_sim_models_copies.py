"""Copies of a model in one instance.

No token is lost between the copies, and the slowest copy ends last.
"""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.engine.worker.engine_port import StepOutput
from gleaner.sim.models.batching import Entry, Limits
from gleaner.sim.models.copies import Copies
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.sim.models.tokens import request_key, response
from gleaner.transport.token_frame import Flag

VOCABULARY = 1000
COST = EngineCost(weights_s=5e-3, context_read_s=4e-8, step_s=2e-3, row_s=3e-5, prefill_s=3e-3)
ENDED = int(Flag.FINISHED | Flag.ABORTED)


def entry(ticket: int, end: int) -> Entry:
    return Entry(ticket, request_key(ticket), ticket, 10, 0, end)


def made(count: int, slots: int = 4) -> Copies:
    return Copies(count, COST, Limits(slots, 10**6), vocabulary=VOCABULARY)


def collect(output: StepOutput | None, tokens: dict[int, list[int]], ends: dict[int, int]) -> None:
    assert output is not None
    for ticket, token, flag in zip(
        output.tickets.tolist(), output.tokens.tolist(), output.flags.tolist(), strict=True
    ):
        ends[ticket] |= flag & ENDED
        if not flag & Flag.NO_TOKEN:
            tokens[ticket].append(token)


def run(copies: Copies) -> tuple[dict[int, list[int]], dict[int, int], float]:
    tokens: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, int] = defaultdict(int)
    total_s = 0.0
    while not copies.idle:
        output, seconds = copies.turn()
        assert seconds >= 0
        total_s += seconds
        collect(output, tokens, ends)
    return tokens, ends, total_s


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(st.integers(1, 12), min_size=1, max_size=24),
    count=st.integers(1, 4),
    aborted=st.lists(st.integers(0, 30), max_size=6, unique=True),
    after=st.integers(0, 12),
    drained=st.booleans(),
)
def test_every_request_ends_once_with_its_own_tokens(
    ends: list[int], count: int, aborted: list[int], after: int, drained: bool
) -> None:
    copies = made(count)
    copies.add(entry(ticket, end) for ticket, end in enumerate(ends))
    tokens: dict[int, list[int]] = defaultdict(list)
    finished: dict[int, int] = defaultdict(int)
    for _ in range(after):
        if not copies.idle:
            collect(copies.turn()[0], tokens, finished)
    if drained:
        copies.drain()
    else:
        copies.abort(aborted)
    rest, ended, _ = run(copies)
    for ticket, end in enumerate(ends):
        got = [*tokens[ticket], *rest[ticket]]
        assert got == response(ticket, len(got), VOCABULARY).tolist()
        flags = finished[ticket] | ended[ticket]
        assert flags
        if not flags & Flag.ABORTED:
            assert len(got) == end
        elif not drained:
            assert ticket in aborted
    assert copies.idle
    assert not any(copies.knows(ticket) for ticket in range(len(ends)))


def test_copies_decode_in_parallel_and_longest_response_ends_last() -> None:
    one, four = made(1, slots=64), made(4, slots=64)
    for copies in (one, four):
        copies.add(entry(ticket, 400 if ticket == 3 else 40) for ticket in range(16))
    alone_s, together_s = COST.decode(1, 0) * 400, run(four)[2]
    assert alone_s < together_s < run(one)[2]


def test_requests_go_to_the_copy_with_fewest() -> None:
    copies = made(3)
    copies.add(entry(ticket, 9) for ticket in range(7))
    assert [batch.pending for batch in copies.batches] == [3, 2, 2]


def test_finished_request_of_drained_turn_is_reported_aborted() -> None:
    copies = made(2)
    copies.add([entry(0, 5), entry(1, 1)])  # one each; both turns are under way after the first one is over
    first, _ = copies.turn()
    copies.drain()
    _, ends, _ = run(copies)
    assert first is not None
    assert {*first.tickets.tolist(), *ends} == {0, 1}
    assert all(flags & Flag.ABORTED for ticket, flags in ends.items() if ticket != first.tickets[0])
    assert ends[0] == int(Flag.ABORTED)
