"""Cloud: the port of a cloud that notifies its hosts of preemption.

Owns the types of notices and of the channels over which it is asked. Behind it: `aws`, `gcp`, `azure`, found
by `cloud_detection`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gleaner.nodeagent.notices.policy import Finding

CloudName = Literal["aws", "gcp", "azure"]
Source = Literal["auto", "none", "aws", "gcp", "azure"]
"""Values of `nodeagent start --notices`."""


class PollFailed(Exception):
    """The cloud did not answer, or not as documented; `str` explains how."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One thing to ask. `look` raises PollFailed and always ends; with `at_once` it does not wait for news.
    `pause_s`: between two looks; `near_s`: the same while a notice holds."""

    name: str
    look: Callable[[bool], Awaitable[Finding]]
    pause_s: float
    near_s: float


class Cloud(Protocol):
    """See the module."""

    @property
    def name(self) -> CloudName:
        """Name of the cloud."""

    @property
    def channels(self) -> Sequence[Channel]:
        """All that is asked, side by side."""

    async def acknowledge(self, id: str) -> None:
        """This host is empty: the event `id` need not wait. Raises PollFailed."""

    async def close(self) -> None:
        """Release connections."""


FindCloud = Callable[[], Awaitable[Cloud | None]]
"""Finds the cloud that this host is in; None: no metadata service answered this time."""
