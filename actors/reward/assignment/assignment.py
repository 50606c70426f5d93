"""Assignment: the tables of a reward service: jobs, batches, open items, and the hosts that have them."""

from dataclasses import dataclass

from gleaner.actors.reward.assignment.announced_items import AnnouncedItems
from gleaner.actors.reward.assignment.batches import RewardBatches
from gleaner.actors.reward.assignment.hosts import ScoringHosts
from gleaner.actors.reward.assignment.jobs import RewardJobs
from gleaner.actors.reward.assignment.open_items import OpenItems


@dataclass(frozen=True, slots=True)
class Assignment:
    """See the module. announced: items that hosts have, and that are not requested yet."""

    jobs: RewardJobs
    batches: RewardBatches
    items: OpenItems
    hosts: ScoringHosts
    announced: AnnouncedItems
