"""Recovery paths of a real run, from its history and its logs.

Owns which record and which line of a log shows which path. Pure. Names are those of `gleaner.chaos.coverage`
where both can see a path; a simulated run shows more of them than a real one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from gleaner.actors.training.history import AnyRecord, End, Node, Restart

FROM_HISTORY = (
    "one_for_one",  # a child was started again
    "name fence",  # an older incarnation lost to a newer one, and ended
    "host lost",  # a host was declared gone without a goodbye
    "host returned",  # a host that had been there before joined again
    "drain",  # a host with a notice handed its work over
    "migration",  # a request continued elsewhere from its last token
)
FROM_LOGS: Mapping[str, re.Pattern[str]] = {
    "health check": re.compile(r" child process \d+ is killed: no heartbeat for "),
    "declared dead": re.compile(r" is dead: silent for "),
    "registered again": re.compile(r" the manager \S+#\d+ ended: "),
    "trainer resume": re.compile(r" ready with [1-9]\d* steps done"),
    "rewind": re.compile(r" the trainer went back to step "),
    "step again": re.compile(r" was lost: done again from the same samples"),
    "revoked": re.compile(r" never got \d+ dispatches: they go elsewhere"),
    "pull tried again": re.compile(r" version \d+, attempt \d+: "),
    "image discarded": re.compile(r" what was left of an earlier life is discarded: "),
    "suspended": re.compile(r" the job waits: "),
}
PATHS = (*FROM_HISTORY, *FROM_LOGS)
_DEFECT = re.compile(r" a defect ended ")


def of_history(records: Iterable[AnyRecord]) -> Counter[str]:
    """How often each path was taken in one job."""
    taken: Counter[str] = Counter()
    joined: set[str] = set()
    for record in records:
        match record:
            case Restart():
                taken["one_for_one"] += 1
                taken["name fence"] += "Fenced" in record.cause
            case Node(event="joined"):
                taken["host returned"] += record.node in joined
                joined.add(record.node)
            case Node(event="killed"):
                taken["host lost"] += 1
            case Node(event="drained"):
                taken["drain"] += 1
            case End():
                taken["migration"] += record.requests_migrated
    return +taken


def of_log(lines: Iterable[str]) -> Counter[str]:
    """How often each path occurs in a log."""
    taken: Counter[str] = Counter()
    for line in lines:
        for name, pattern in FROM_LOGS.items():
            taken[name] += pattern.search(line) is not None
    return +taken


def defects(lines: Iterable[str]) -> list[str]:
    """Failures that no fault excuses: processes that ended for an unforeseen reason."""
    return [line.strip() for line in lines if _DEFECT.search(line)]


def in_order(taken: Mapping[str, int]) -> dict[str, int]:
    """Every path, also those that were not taken."""
    return {name: taken.get(name, 0) for name in PATHS}
