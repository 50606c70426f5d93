"""GroupOutcomes: the outcomes of the groups of a batch that does not keep all of them.

Owns the record of the outcomes, not the decisions (`group_policy`) nor the requests (`token_log`). Pure.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from gleaner.actors.protocol.batches import Prompt


@dataclass(slots=True)
class GroupOutcomes:
    """kept: groups that count, in the order of the decisions. dropped: those that do not, and why. added: the
    prompts drawn since the batch was submitted, in the order of their groups. closed: groups of a race, with
    the samples that count where not all of them do."""

    kept: dict[int, None] = field(default_factory=dict)  # an ordered set
    dropped: dict[int, str] = field(default_factory=dict)
    added: list[Prompt] = field(default_factory=list)
    closed: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def faults(self, wanted: int, taken: Set[int]) -> Iterator[str]:
        """Faults of the record; none, unless there is a bug. wanted: groups that the batch ends with; taken:
        groups that went to the trainer."""
        if len(self.kept) > wanted:
            yield f"{len(self.kept)} groups are kept, {wanted} were wanted"
        for group in sorted(self.kept.keys() & self.dropped.keys()):
            yield f"group {group} is kept and dropped"
        for group in sorted(taken & self.dropped.keys()):
            yield f"group {group} was handed out and dropped"
