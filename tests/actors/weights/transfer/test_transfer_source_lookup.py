"""`SourceLookup`: what a pulling host asks the publisher, what it reports, and where it pulls meanwhile."""

import logging
import random
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.protocol.weights import EnginePart, Fetch, FindSource, Holds, SourceFound
from gleaner.actors.weights.image.port import ImageStoreError, ImageStoreFull
from gleaner.actors.weights.transfer.source_lookup import (
    ASK_AGAIN_S,
    FIND_DEADLINE_S,
    MAX_RETRY_S,
    NO_SOURCE_S,
    QUICK_RETRIES,
    RETRY_S,
    BadSource,
    SourceLookup,
)
from gleaner.supervisor import Address, AskFailed, AskTimeout, Context, Message
from gleaner.transport.bulk import BadHash, Chunk, SourceGone

PUBLISHER, OTHER = "head/transfer", "spare/transfer"
HOST = Address(name="spot/transfer", endpoint="tcp://10.0.0.4:1", incarnation=4)
PART = EnginePart(stage=1, stages=2, rank=0, ranks=1)
BAD_HASH = BadHash("chunk 3", [], Chunk(0, 8, b"digest"))
GONE = SourceGone("hung up", [])
NONE, SOURCE = SourceFound(source="", base=-1), SourceFound(source="peer", base=5)


class Host:
    """A host that pulls version 7, and a publisher whose answers are set by the test."""

    def __init__(self, *, relay: bool = True) -> None:
        self.now_s = 500.0
        self.answer: SourceFound | AskFailed = SOURCE
        self.asked: list[tuple[str, FindSource, float]] = []
        self.sent: list[tuple[str, Message]] = []
        context = SimpleNamespace(
            address=HOST,
            ask=self._ask,
            tell=self._tell,
            turn_time=lambda: self.now_s,
            rng=random.Random(1),
            log=logging.getLogger("lookup"),
        )
        wanted = Fetch(version=7, root=b"seven", sources=(PUBLISHER, OTHER), part=PART)
        self.lookup = SourceLookup(cast("Context", context), wanted, "far", relay=relay)

    async def _ask(
        self, to: str, message: FindSource, *, deadline_s: float, expect: type[SourceFound]
    ) -> SourceFound:
        assert expect is SourceFound
        self.asked.append((to, message, deadline_s))
        if isinstance(self.answer, AskFailed):
            raise self.answer
        return self.answer

    async def _tell(self, to: str, message: Message) -> None:
        self.sent.append((to, message))

    def question(self, *, base: int = -1, current: str = "") -> FindSource:
        return self.lookup.question(base=base, have_bytes=9, down_bytes_s=2.0, current=current)

    def reports(self) -> tuple[tuple[str, ...], str]:
        """The sources that the next question excludes, and the one that sent false data."""
        question = self.question()
        return question.excluded, question.liar

    async def find(self, answer: SourceFound | AskFailed = SOURCE, *, base: int = -1) -> SourceFound | None:
        self.answer = answer
        return await self.lookup.find(self.question(base=base))


def test_question_states_the_version_the_host_and_its_progress() -> None:
    asked = Host().lookup.question(
        holds=(Holds(5, b"five"),), base=5, have_bytes=90, down_bytes_s=2.5, current="peer"
    )
    assert asked == FindSource(
        version=7,
        root=b"seven",
        receiver=HOST,
        holds=(Holds(5, b"five"),),
        base=5,
        have_bytes=90,
        down_bytes_s=2.5,
        site="far",
        current="peer",
        part=PART,
    )


async def test_publisher_is_asked_and_its_source_is_returned() -> None:
    host = Host()
    question = host.question()
    assert await host.lookup.find(question) == SOURCE
    assert host.asked == [(PUBLISHER, question, FIND_DEADLINE_S)]


async def test_named_sources_take_turns_when_the_publisher_does_not_answer() -> None:
    host = Host()
    found = [await host.find(AskTimeout("late"), base=5) for _ in range(3)]
    assert found == [SourceFound(source=source, base=5) for source in (PUBLISHER, OTHER, PUBLISHER)]


async def test_named_source_is_used_when_none_was_assigned_for_long_in_a_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host()
    assert await host.find(NONE) is None
    host.now_s += NO_SOURCE_S / 2
    assert await host.find(NONE) is None
    assert await host.find(SOURCE) == SOURCE
    assert await host.find(NONE) is None, "the time starts anew with a source"
    host.now_s += NO_SOURCE_S - 0.5
    assert await host.find(NONE) is None
    assert not caplog.records
    host.now_s += 0.5
    assert await host.find(NONE, base=5) == SourceFound(source=PUBLISHER, base=5)
    assert "no source assigned: version=7" in caplog.text
    assert await host.find(NONE) == SourceFound(source=OTHER, base=-1)


async def test_failed_sources_are_reported_until_a_source_is_found() -> None:
    host = Host()
    assert host.reports() == ((), "")
    for source in ("one", "other", "one"):
        host.lookup.failed(source, GONE)
    assert host.reports() == (("one", "other"), "")
    for unheard in (AskTimeout("late"), NONE):
        await host.find(unheard)
        assert host.reports() == (("one", "other"), "")
    await host.find()
    assert host.asked[-1][1].excluded == ("one", "other")
    assert host.reports() == ((), "")


@pytest.mark.parametrize("problem", [BAD_HASH, BadSource("another root")])
async def test_source_of_false_data_is_reported_until_a_source_is_found(problem: Exception) -> None:
    host = Host()
    host.lookup.failed("peer", problem)
    host.lookup.failed("other", GONE)
    assert host.reports() == (("peer", "other"), "peer")
    await host.find(NONE)
    assert host.reports() == (("peer", "other"), "peer")
    await host.find()
    assert host.reports() == ((), "")


@pytest.mark.parametrize("source", ["", PUBLISHER, OTHER])
def test_named_source_is_never_excluded(source: str) -> None:
    host = Host()
    host.lookup.failed(source, BAD_HASH)
    assert host.reports() == ((), "")


@pytest.mark.parametrize("answer", [AskTimeout("late"), NONE, SOURCE])
async def test_incomplete_source_is_excluded_from_one_lookup(answer: SourceFound | AskFailed) -> None:
    host = Host()
    host.lookup.failed("peer", GONE)
    host.lookup.incomplete("partial")
    await host.find(answer)
    assert host.asked[-1][1].excluded == ("peer", "partial")
    assert "partial" not in host.reports()[0]
    assert host.reports()[1] == ""


@pytest.mark.parametrize(
    ("relay", "source", "may"),
    [(True, PUBLISHER, True), (True, "peer", True), (False, "peer", True), (False, PUBLISHER, False)],
)
def test_source_may_change_unless_the_publisher_serves_all(relay: bool, source: str, may: bool) -> None:
    assert Host(relay=relay).lookup.may_change(source) == may


@pytest.mark.parametrize(
    ("answer", "other"),
    [(SOURCE, "peer"), (SourceFound(source="current", base=-1), ""), (NONE, ""), (AskTimeout("late"), "")],
)
async def test_other_source_is_named_only_when_one_is_assigned(
    answer: SourceFound | AskFailed, other: str
) -> None:
    host = Host()
    host.answer = answer
    question = host.question(current="current")
    assert await host.lookup.other_than(question) == other
    assert host.asked == [(PUBLISHER, question, ASK_AGAIN_S)]


async def test_question_during_a_pull_keeps_what_is_to_be_reported() -> None:
    host = Host()
    host.lookup.failed("peer", BAD_HASH)
    host.lookup.incomplete("partial")
    await host.lookup.other_than(host.question(current="current"))
    assert host.reports() == (("peer", "partial"), "peer")


async def test_report_of_a_version_that_is_here_goes_to_the_publisher() -> None:
    host = Host()
    question = host.question()
    await host.lookup.tell(question)
    assert (host.sent, host.asked) == ([(PUBLISHER, question)], [])


@given(st.integers(0, 2 * QUICK_RETRIES + 4), st.sampled_from([GONE, ImageStoreFull("full"), BAD_HASH]))
def test_pauses_grow_only_after_quick_retries_of_what_may_last(fruitless: int, problem: Exception) -> None:
    host = Host()
    pauses = [host.lookup.pause_s(fruitless, problem) for _ in range(20)]
    if fruitless <= QUICK_RETRIES or not isinstance(problem, SourceGone | ImageStoreError):
        assert set(pauses) == {RETRY_S}
    else:
        most_s = min(MAX_RETRY_S, RETRY_S * 2 ** (fruitless - QUICK_RETRIES))
        assert all(most_s / 2 <= pause_s <= most_s for pause_s in pauses)
        assert len(set(pauses)) == len(pauses), "hosts that failed together do not return together"
