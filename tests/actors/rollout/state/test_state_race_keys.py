"""Race keys: which looks at longer responses can decide, and which bounds they leave behind."""

from array import array

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gleaner.actors.rollout.state.race import group_key
from gleaner.actors.rollout.state.race_keys import RaceKeys
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.token_columns import TokenColumns


class TwoGroups:
    """A race of two groups of one response each."""

    def __init__(self) -> None:
        columns = TokenColumns()
        self.groups = [[_response(columns, group)] for group in range(2)]
        self.past: list[RequestLog] = []

    def closed(self, group: int) -> bool:
        return all(log.state is RequestState.FINISHED for log in self.groups[group])

    def grow(self, group: int, tokens: int) -> None:
        for _ in range(tokens):
            self.groups[group][0].append(7, -0.5, "engine", 1, 1)


def _response(columns: TokenColumns, group: int) -> RequestLog:
    log = RequestLog(
        f"b/{group}/0", "b", group, 0, array("I", [1]), 0, 64, 1.0, 1, columns, columns.begin(64)
    )
    log.attempts = 1
    return log


@pytest.mark.parametrize(("tokens", "passes"), [(1, False), (2, True), (5, True)])
def test_look_passes_a_key_when_a_bound_meets_it(tokens: int, passes: bool) -> None:
    batch, keys = TwoGroups(), RaceKeys()
    batch.grow(0, 3)
    keys.look(batch, 1)
    keys.to_pass = [5]
    batch.grow(0, tokens)
    assert keys.passed(batch, 1) is passes
    assert keys.of(0) == (3 + tokens, False)


def test_bound_that_stood_at_a_key_passes_it_when_it_is_longer() -> None:
    batch, keys = TwoGroups(), RaceKeys()
    batch.grow(1, 5)
    keys.look(batch, 1)
    keys.to_pass = [5]
    assert not keys.passed(batch, 1)
    batch.grow(1, 1)
    assert keys.passed(batch, 1)
    batch.grow(1, 1)
    assert not keys.passed(batch, 1)


def test_every_look_can_decide_before_the_first_decision() -> None:
    assert RaceKeys().passed(TwoGroups(), 1)


def test_bounds_left_out_without_a_key_to_pass_are_read_by_the_next_look() -> None:
    batch, keys = TwoGroups(), RaceKeys()
    keys.look(batch, 1)
    keys.to_pass = []
    batch.grow(0, 9)
    assert not keys.passed(batch, 1)
    assert keys.of(0) == (0, False)
    keys.look(batch, 1, touched=[1])
    assert keys.of(0) == (9, False)
    batch.groups[0][0].state = RequestState.FINISHED
    keys.close(batch, 1)
    assert keys.of(0) == (9, True)


@given(st.data())
def test_look_reads_the_key_of_each_group_and_whether_one_met_a_key(data: st.DataObject) -> None:
    columns, count = TokenColumns(), data.draw(st.integers(1, 3))
    sizes = data.draw(st.lists(st.integers(count, 4), min_size=1, max_size=5))
    batch, keys = TwoGroups(), RaceKeys()
    batch.groups = [[_response(columns, group) for _ in range(size)] for group, size in enumerate(sizes)]
    keys.look(batch, count)
    keys.to_pass = sorted(data.draw(st.sets(st.integers(0, 8))))
    due = False
    for logs in batch.groups:
        for log in logs:
            for _ in range(data.draw(st.integers(0, 6))):
                log.append(7, -0.5, "engine", 1, 1)
        bound = group_key(map(len, logs), count)
        due = due or (bound > 0 and any(key <= bound for key in keys.to_pass))
    assert keys.look(batch, count) is due
    for group, logs in enumerate(batch.groups):
        assert keys.of(group) == (group_key(map(len, logs), count), False)


def test_sample_that_is_generated_again_has_the_tokens_of_its_first_response() -> None:
    batch, keys = TwoGroups(), RaceKeys()
    batch.grow(0, 9)
    first = batch.groups[0][0]
    batch.past, batch.groups[0] = [first], [_response(first.columns, 0)]
    batch.groups[0][0].again = 1
    batch.grow(0, 2)
    keys.look(batch, 1)
    assert keys.of(0) == (9, False)


@given(st.data())
def test_looks_read_the_key_of_each_group_when_slots_change_between_them(data: st.DataObject) -> None:
    """Requests lose their tokens, let them go, end and come, in any order."""
    columns, count = TokenColumns(), data.draw(st.integers(1, 2))
    batch, keys = TwoGroups(), RaceKeys()
    batch.groups = [[_response(columns, group) for _ in range(count)] for group in range(2)]
    changes = st.sampled_from(["grow", "grow", "empty", "let go", "end", "add"])
    for change in data.draw(st.lists(changes, min_size=4, max_size=16)):
        group = data.draw(st.integers(0, len(batch.groups) - 1))
        log = data.draw(st.sampled_from(batch.groups[group]))
        held = log.crc is None
        if change == "grow":
            for one in batch.groups[group]:
                if one.crc is None and one.state is not RequestState.FINISHED:
                    one.append(7, -0.5, "engine", 1, 1)
        elif change == "empty" and held and log.state is not RequestState.FINISHED:
            columns.end(log.slot)
            _response(columns, group)  # has the slot from now on
            log.slot = columns.begin(64)
        elif change == "let go" and held:
            log.let_go(len(log), 0)
        elif change == "end":
            for one in batch.groups[group]:
                one.state = RequestState.FINISHED
            keys.close(batch, count)
        elif change == "add":
            size = data.draw(st.sampled_from([count, count, count + 1]))
            batch.groups.append([_response(columns, len(batch.groups)) for _ in range(size)])
        keys.look(batch, count)
        for number, logs in enumerate(batch.groups):
            assert keys.of(number) == (group_key(map(len, logs), count), batch.closed(number))
