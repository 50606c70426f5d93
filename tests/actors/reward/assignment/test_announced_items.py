"""AnnouncedItems: of hosts that had the same item before the service began, one computes it on."""

from collections.abc import Mapping, Sequence

import pytest

from gleaner.actors.reward.assignment.announced_items import AnnouncedItems
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdicts import LOST, OK, PASSED

COMPILE, RUN = "compile", "run"
STAGES = (COMPILE, RUN)
TRUE = Verdict(1.0, OK)


class Link:
    """The way to a host that keeps what it gets, and the attempts that end there."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str, int]] = []
        self.ended: list[tuple[str, int]] = []

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        self.given += [(stage, one.id, one.attempts) for one in items]

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        self.ended += [(one, (attempts or {})[one]) for one in items]

    def resize(self, stage: str, workers: int) -> None: ...


def item(name: str) -> RewardItem:
    return RewardItem(name, "step-1", 0.0, COMPILE, b"", "", STAGES)


def announced(*hosts: tuple[str, int]) -> tuple[ItemDispatch, list[Link]]:
    """A service whose hosts `h0`, `h1`, ... announce item `a`, each in this stage with this attempt."""
    dispatch, links = ItemDispatch(STAGES, 100, 2), [Link() for _ in hosts]
    for number, ((stage, attempt), link) in enumerate(zip(hosts, links, strict=True)):
        dispatch.join(f"h{number}", dict.fromkeys(STAGES, 1), link, {"a": attempt}, {"a": stage})
    return dispatch, links


@pytest.mark.parametrize(
    ("first", "second", "ended"),
    [
        ((RUN, 3), (COMPILE, 9), ([], [("a", 9)])),
        ((COMPILE, 9), (RUN, 3), ([("a", 9)], [])),
        ((RUN, 3), (RUN, 4), ([("a", 3)], [])),
        ((RUN, 4), (RUN, 3), ([], [("a", 3)])),
        ((RUN, 3), (RUN, 3), ([], [("a", 3)])),
        (("", 3), (COMPILE, 2), ([], [("a", 2)])),
        (("no stage", 3), ("", 3), ([], [("a", 3)])),
    ],
)
async def test_item_that_two_hosts_announce_before_its_request_ends_on_one_of_them(
    first: tuple[str, int], second: tuple[str, int], ended: tuple[list[object], list[object]]
) -> None:
    """It goes on where it is further along, else with the higher attempt, else on the first one."""
    dispatch, links = announced(first, second)
    assert tuple(link.ended for link in links) == ended
    dispatch.submit(item("a"))
    keeper = 0 if ended[1] else 1
    assert [one.id for one in dispatch.items.running_on(f"h{keeper}")] == ["a"]
    assert [link.given for link in links] == [[], []], "nothing is computed twice"


async def test_item_is_scored_as_any_when_the_host_that_keeps_it_leaves_before_its_request() -> None:
    dispatch, (_, second) = announced((RUN, 3), (RUN, 2))
    dispatch.leave("h0")
    done = dispatch.submit(item("a"))
    assert second.given == [(COMPILE, "a", 0)]
    dispatch.result("h1", "a", COMPILE, Verdict(None, PASSED), 1.0, attempt=0)
    dispatch.result("h1", "a", RUN, TRUE, 1.0, attempt=1)
    assert (await done).score == 1.0


async def test_host_that_offers_again_keeps_what_it_announced() -> None:
    dispatch, (first, second) = announced((RUN, 3), (RUN, 2))
    dispatch.join("h0", dict.fromkeys(STAGES, 1), first, {"a": 3}, {"a": RUN})
    assert (first.ended, second.ended) == ([], [("a", 2)])
    dispatch.join("h1", dict.fromkeys(STAGES, 1), second, {"a": 2}, {"a": RUN})
    assert (first.ended, second.ended) == ([], [("a", 2)] * 2), "the message may have been lost"


async def test_score_of_the_host_that_should_end_it_ends_it_on_the_other_one() -> None:
    """The two messages pass each other."""
    dispatch, (first, _) = announced((RUN, 3), (RUN, 2))
    assert dispatch.result("h1", "a", RUN, TRUE, 1.0, attempt=2)
    assert first.ended == [("a", 3)]
    assert (await dispatch.submit(item("a"))).score == 1.0


@pytest.mark.parametrize(
    ("keeper", "verdict", "ended"),
    [
        ((RUN, 3), Verdict(None, PASSED), []),
        ((COMPILE, 3), Verdict(None, PASSED), [("a", 3)]),
        ((COMPILE, 3), Verdict(None, LOST), []),
    ],
)
async def test_other_result_of_that_host_ends_it_only_where_it_gets_further(
    keeper: tuple[str, int], verdict: Verdict, ended: list[object]
) -> None:
    dispatch, (first, second) = announced(keeper, (COMPILE, 2))
    assert dispatch.result("h1", "a", COMPILE, verdict, 1.0, attempt=2)
    assert first.ended == ended
    dispatch.submit(item("a"))
    assert first.given + second.given == ([(RUN, "a", 0)] if ended else [])


async def test_item_that_has_its_verdict_ends_on_a_host_that_announces_it_later() -> None:
    dispatch, _ = announced((RUN, 3))
    dispatch.result("h0", "a", RUN, TRUE, 1.0, attempt=3)
    late = Link()
    dispatch.join("late", {RUN: 1}, late, {"a": 5}, {"a": RUN})
    assert late.ended == [("a", 5)]
    assert (await dispatch.submit(item("a"))).score == 1.0


def test_announced_items_end_with_their_host() -> None:
    items = AnnouncedItems(STAGES)
    items.add("a", "h0", 1, RUN)
    items.add("b", "h1", 1, RUN)
    items.left("h0")
    assert (items.get("a"), items.get("b") is not None, len(items)) == (None, True, 1)


async def test_item_that_its_host_announces_no_more_is_given_anew() -> None:
    """The host offered itself twice before the request, and the item had ended there in between. It was taken
    to run there, and waited for the end of the host."""
    dispatch, _ = announced((COMPILE, 3))
    link = Link()
    dispatch.join("h0", dict.fromkeys(STAGES, 1), link)
    dispatch.submit(item("a"))
    assert link.given == [(COMPILE, "a", 0)]
