"""Timeline of a load's tokens, and the figures of a weight change in it. Pure."""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice, pairwise


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Number of tokens of a request at a moment; `version`: the weights that made the last of them."""

    at_s: float
    request: str
    tokens: int
    version: str


@dataclass(slots=True)
class Timeline:
    """Tokens in order of arrival."""

    came: list[TokenCount] = field(default_factory=list)

    def add(self, at_s: float, request: str, tokens: int, version: str) -> None:
        """Moments never go back."""
        self.came.append(TokenCount(at_s, request, tokens, version))

    def first_s(self, version: str, since: int = 0) -> float | None:
        """Time of the first token of this version, of those from number `since` on; None: there was none."""
        return next((one.at_s for one in islice(self.came, since, None) if one.version == version), None)

    def rate(self, begin_s: float, end_s: float) -> float:
        """Tokens a second between two moments."""
        return sum(one.tokens for one in self.came if begin_s < one.at_s <= end_s) / (end_s - begin_s)

    def longest_gap_s(self, begin_s: float, end_s: float) -> float:
        """The longest silence, of any one request or of all, that is in this time at least in part; 0 for
        none. The time before the first token and after the last does not count."""
        moments: dict[str, list[float]] = defaultdict(list)
        for one in self.came:
            moments[one.request].append(one.at_s)
        gaps = (
            later - earlier
            for came in (*moments.values(), [one.at_s for one in self.came])
            for earlier, later in pairwise(came)
            if later > begin_s and earlier < end_s
        )
        return max(gaps, default=0.0)
