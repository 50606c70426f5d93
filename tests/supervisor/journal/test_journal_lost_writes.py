"""A write that fails leaves no hole: those behind it fail too until its actor knows."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.supervisor import JournalFull, Message
from gleaner.supervisor.journal.group_commit import Committed, GroupCommit, Write
from gleaner.supervisor.journal.lost_writes import LostWrites, WriteTerms
from gleaner.supervisor.journal.rows import StreamRows


class LostFact(Message, frozen=True):
    number: int


@given(st.lists(st.sampled_from(["call", "write", "fail", "learn"]), max_size=60))
def test_kept_writes_are_those_called_for_with_all_earlier_ones_kept_or_known_lost(steps: list[str]) -> None:
    """A stream, its actor and its writer, in any order of their turns."""
    terms, lost = WriteTerms(), LostWrites()
    queued: list[tuple[int, int]] = []
    ended: list[tuple[int, int, bool]] = []
    known_lost: set[int] = set()
    called: dict[int, int] = {}
    knew: dict[int, set[int]] = {}
    kept: list[int] = []
    for number, step in enumerate(steps):
        if step == "call":
            queued.append((number, terms.of("a", 1)))
            called[number] = queued[-1][1]
            knew[number] = set(known_lost)
        elif step in ("write", "fail") and queued:
            write, term = queued.pop(0)
            why = lost.why("a", 1, term)
            if why is None:
                why = JournalFull("full") if step == "fail" else None
                lost.ended("a", 1, term, why)
            if why is None:
                kept.append(write)
            ended.append((write, term, why is None))
        elif step == "learn" and ended:
            write, term, ok = ended.pop(0)
            if not ok:
                terms.failed("a", 1, term)
                # and with it that all fail that were called for in its term
                known_lost |= {other for other, its in called.items() if other >= write and its == term}
    for write in kept:
        missing = {other for other in knew if other < write} - set(kept)
        assert missing <= knew[write], "it counts on a write that failed"


def test_failure_of_one_stream_or_life_concerns_no_other() -> None:
    lost, problem = LostWrites(), JournalFull("full")
    lost.ended("a", 1, 0, problem)
    assert lost.why("a", 1, 0) is problem
    assert lost.why("b", 1, 0) is None
    assert lost.why("a", 2, 0) is None
    terms = WriteTerms()
    terms.failed("a", 2, 0)
    terms.failed("a", 1, 0)
    assert (terms.of("a", 2), terms.of("a", 3), terms.of("b", 2)) == (1, 0, 0)


class OnceFull:
    """A keeper whose first commit waits, and then finds no space."""

    place = "nowhere"

    def __init__(self) -> None:
        self.full, self.begun = threading.Event(), threading.Event()
        self.kept: list[bytes] = []

    def claim(self, stream: str, incarnation: int) -> None: ...

    def commit(self, writes: Sequence[Write]) -> list[Committed | Exception]:
        if not self.begun.is_set():
            self.begun.set()
            assert self.full.wait(30)
            raise JournalFull("full")
        self.kept += [row.body for write in writes for row in write.rows]
        return [Committed(len(self.kept), len(self.kept)) for _ in writes]

    def read(self, stream: str) -> StreamRows:
        raise AssertionError("not read")

    def newest_incarnation(self) -> int:
        return 0

    def force_out(self) -> None: ...

    def probe(self) -> None: ...

    def low(self) -> str:
        return ""

    def close(self) -> None: ...


async def test_write_behind_a_failed_one_fails_and_later_ones_are_kept() -> None:
    keeper = OnceFull()
    store = GroupCommit(keeper, commit_s=0.0)
    first = store.append("a", 1, [LostFact(number=1)])
    assert await asyncio.to_thread(keeper.begun.wait, 30)
    behind = store.append("a", 1, [LostFact(number=2)])
    other = store.append("b", 1, [LostFact(number=3)])
    keeper.full.set()
    with pytest.raises(JournalFull):
        await behind
    with pytest.raises(JournalFull):
        await first
    assert await other == 1
    assert await store.append("a", 1, [LostFact(number=4)]) == 2
    assert len(keeper.kept) == 2
    await store.close()
