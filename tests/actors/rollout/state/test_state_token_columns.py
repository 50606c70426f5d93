"""TokenColumns: equal to one list per slot, for any frames."""

from array import array
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gleaner.actors.rollout.state import token_columns
from gleaner.actors.rollout.state.token_columns import FEW_ROWS, NO_SLOT, PAGE, TokenColumns

LIMITS = (1, 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE + 5, 1000)


@pytest.fixture(scope="module", autouse=True, params=[0, FEW_ROWS], ids=["by columns", "few by rows"])
def few_rows(request: pytest.FixtureRequest) -> Iterator[None]:
    """Frames of few rows are taken in another way: each test is run with and without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_columns, "FEW_ROWS", request.param)
        yield


class Model:
    """One list of tokens per slot, appended row by row."""

    def __init__(self) -> None:
        self.columns = TokenColumns()
        self.lists: dict[int, list[int]] = {}
        self.limits: dict[int, int] = {NO_SLOT: 0}
        self.next_token = 1

    def begin(self, limit: int) -> None:
        slot = self.columns.begin(limit)
        assert slot not in self.lists
        assert slot != NO_SLOT
        self.lists[slot], self.limits[slot] = [], limit
        self.append(slot)

    def frame(self, slots: list[int], halts: list[bool]) -> None:
        count = len(slots)
        tokens = np.arange(self.next_token, self.next_token + count, dtype=np.uint32)
        self.next_token += count
        halt = np.array(halts) if any(halts) else None
        taken = self.columns.take(np.array(slots), tokens, -tokens.astype(np.float32), halt)
        stopped = {slot for slot in slots if slot == NO_SLOT}
        expected = []
        for slot, token, halts_here in zip(slots, tokens.tolist(), halts, strict=True):
            if halts_here or len(self.lists.get(slot, ())) + 1 >= self.limits[slot]:
                stopped.add(slot)
            expected.append(slot not in stopped)
            if slot not in stopped:
                self.lists[slot].append(token)
        assert (taken.tolist() if taken is not None else [True] * count) == expected

    def append(self, slot: int) -> None:
        if len(self.lists[slot]) < self.limits[slot]:
            self.columns.append(slot, self.next_token, -float(self.next_token))
            self.lists[slot].append(self.next_token)
            self.next_token += 1

    def end(self, slot: int) -> None:
        self.columns.end(slot)
        del self.lists[slot], self.limits[slot]

    def check(self) -> None:
        assert self.columns.faults() == []
        assert self.columns.held() == sum(map(len, self.lists.values()))
        read = dict(zip(self.lists, self.columns.read(list(self.lists)), strict=True))
        for slot, tokens in self.lists.items():
            assert read[slot] == (self.columns.tokens(slot), self.columns.logprobs(slot))
            assert self.columns.length(slot) == len(tokens)
            assert self.columns.tokens(slot) == array("I", tokens).tobytes()
            assert self.columns.logprobs(slot) == array("f", [-token for token in tokens]).tobytes()


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_columns_equal_one_list_per_slot(data: st.DataObject) -> None:
    model = Model()
    for limit in data.draw(st.lists(st.sampled_from(LIMITS), min_size=1, max_size=6)):
        model.begin(limit)
    for _ in range(data.draw(st.integers(0, 12))):
        known = sorted(model.lists)
        match data.draw(st.sampled_from(["frame", "frame", "steps", "append", "end", "begin"])):
            case "frame":  # any rows of any slots, also several of one slot
                slots = data.draw(st.lists(st.sampled_from([NO_SLOT, *known]), min_size=1, max_size=40))
                few = st.sampled_from([False] * 9 + [True])
                model.frame(slots, data.draw(st.lists(few, min_size=len(slots), max_size=len(slots))))
            case "steps":  # many steps of one batch, as merged frames have
                steps = data.draw(st.integers(1, 3 * PAGE))
                model.frame(known * steps, [False] * (len(known) * steps)) if known else None
            case "append" if known:
                model.append(data.draw(st.sampled_from(known)))
            case "end" if known:
                model.end(data.draw(st.sampled_from(known)))
            case _:
                model.begin(data.draw(st.sampled_from(LIMITS)))
        model.check()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4 * PAGE), max_size=8), st.integers(0, PAGE + 1))
def test_filled_slot_continues_where_it_was(lengths: list[int], more: int) -> None:
    columns = TokenColumns()
    slots = []
    for length in lengths:
        slots.append(columns.begin(5 * PAGE + 2))
        tokens = np.arange(length, dtype=np.uint32)
        columns.fill(slots[-1], tokens.tobytes(), tokens.astype(np.float32).tobytes())
    began: NDArray[np.int64] = np.array([slot for slot, length in zip(slots, lengths, strict=True) if length])
    for step in range(more if len(began) else 0):
        row = np.array([columns.length(slot) for slot in began.tolist()], np.uint32)
        assert columns.take(began, row, row.astype(np.float32), None) is None, step
    for slot, length in zip(slots, lengths, strict=True):
        assert columns.tokens(slot) == np.arange(length + (more if length else 0), dtype=np.uint32).tobytes()
    assert columns.faults() == []


def test_freed_pages_are_used_again() -> None:
    columns = TokenColumns()
    for _ in range(50):
        slots = [columns.begin(1000) for _ in range(20)]
        for slot in slots:
            columns.append(slot, 1, 0.0)
        for _ in range(300):
            columns.take(np.array(slots), np.ones(20, np.uint32), np.zeros(20, np.float32), None)
        for slot in slots:
            columns.end(slot)
    used, there_are = columns.pages
    assert used == 0
    assert there_are <= 20 * (1 + 301 // PAGE) * 9 / 8 + 64, "pages of ended slots were not used again"
