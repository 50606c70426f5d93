"""NoticePolicy: pure function from a cloud's findings and times to a verdict.

A cloud is asked over several channels. Of the findings that hold, the strongest counts; of notices, the one
that ends first. A notice takes effect when its end is near enough: a host works on until then. It holds while
the cloud is silent or its answers are invalid. It is taken back only when consecutive looks found nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["none", "hint", "notice"]

LEAD_S = 120.0
"""A host begins the hand-over so long before its end: the longest notice that AWS gives. Azure announces
reboots 15 minutes before, in which many requests begin and end."""
TAKEN_BACK_LOOKS = 2
"""Looks in a row that must find nothing: a metadata service that was just restarted may answer one of
them."""
STALE_S = 60.0
"""A notice whose end is so far in the past when it is first seen was cancelled without a message."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one look. `left_s`: of a notice, seconds until the host goes. `id` distinguishes a notice
    from the next one; `acknowledges`: the cloud wants an acknowledgement when the host is empty."""

    kind: Kind = "none"
    why: str = ""
    id: str = ""
    left_s: float = math.inf
    acknowledges: bool = False


NOTHING = Finding()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict for the host now. `ends_s`: of a notice, on the caller's clock."""

    kind: Kind = "none"
    why: str = ""
    id: str = ""
    ends_s: float = math.inf
    acknowledges: bool = False


STAYS = Verdict()


@dataclass(slots=True)
class _Channel:
    stands: Verdict = STAYS
    without: int = 0  # looks in a row that found nothing while a finding holds
    stale: str = ""  # id of a notice that expired by itself


@dataclass(slots=True)
class NoticePolicy:
    """See the module."""

    _channels: dict[str, _Channel] = field(default_factory=dict)

    def observe(self, channel: str, finding: Finding, now_s: float) -> None:
        """Apply the finding of a look over `channel` at `now_s`. A look that failed is no finding: nothing
        changes."""
        known = self._channels.setdefault(channel, _Channel())
        if finding.kind == "notice" and finding.id == known.stale and known.stale:
            return
        if finding.kind == "notice" and finding.left_s < -STALE_S and finding.id != known.stands.id:
            known.stale = finding.id
            finding = NOTHING
        if finding.kind == "none":
            known.without += 1
            if known.without >= TAKEN_BACK_LOOKS:
                known.stands = STAYS
            return
        known.without = 0
        ends_s = now_s + max(0.0, finding.left_s) if finding.kind == "notice" else math.inf
        before = known.stands
        if before.kind == finding.kind == "notice" and before.id == finding.id:
            ends_s = min(ends_s, before.ends_s)  # the same end, seen again: it does not move away
        known.stands = Verdict(finding.kind, finding.why, finding.id, ends_s, finding.acknowledges)

    def unsure(self, channel: str) -> bool:
        """Whether a finding holds that the newest look did not confirm: look again soon."""
        known = self._channels.get(channel)
        return known is not None and known.stands.kind != "none" and known.without > 0

    @property
    def standing(self) -> Mapping[str, Verdict]:
        """The findings that hold, by channel."""
        return {name: known.stands for name, known in self._channels.items() if known.stands.kind != "none"}

    def verdict(self, now_s: float) -> Verdict:
        """The verdict at `now_s`."""
        standing = self.standing.values()
        near = [one for one in standing if one.kind == "notice" and one.ends_s - now_s <= LEAD_S]
        if near:
            return min(near, key=lambda one: one.ends_s)
        return next((one for one in standing if one.kind == "hint"), STAYS)
