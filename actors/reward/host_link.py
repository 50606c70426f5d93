"""HostLink: what the dispatch of reward items needs of the way to one host's workers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from gleaner.actors.reward.assignment.open_items import RewardItem


class HostLink(Protocol):
    """The way to one host's workers. Results come back by `ItemDispatch.result`."""

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        """Have these scored."""

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        """The results of these are not needed. attempts: up to which that holds, for items that go on."""

    def resize(self, stage: str, workers: int) -> None:
        """Have so many workers of a stage."""
