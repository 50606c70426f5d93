"""Coverage: recovery paths, and how often a campaign took each.

A path that was never taken was not tested. Owns the names, and the counts that show each path. Pure: counts
go in by name, a report comes out. A campaign in which a named path was never taken is invalid, whatever its
checks reported.

The counts are made where the recovery happens: by links, streams, journals, supervisors, pools (the metrics
show most of them in production too), and by `gleaner.chaos.observe_sim` from messages and commits.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    """A path of recovery. counts: names of the counts that show it; any of them suffices."""

    name: str
    meaning: str
    counts: tuple[str, ...]


PATHS: tuple[Path, ...] = (
    Path(
        "migration",
        "a request went on at another instance from its last token",
        ("requests.migrated_tokens",),
    ),
    Path("move", "requests were taken from a busy instance for an idle one", ("requests.moved",)),
    Path("hand-over", "an instance gave its requests back in order", ("requests.handed_over",)),
    Path(
        "newer weights",
        "a request went on under newer weights than those that it was begun with",
        ("requests.several_versions",),
    ),
    Path("own deadline", "a request that was too old ended with what it had", ("requests.due",)),
    Path("refill", "other prompts took the place of uniform groups", ("groups.refilled",)),
    Path("deferred draw", "a long round launched draws that a short one had deferred", ("draws.deferred",)),
    Path("surplus sample", "a group had its samples, and the others were aborted", ("samples.surplus",)),
    Path("over-sampling abort", "a batch had enough, and the rest was aborted", ("groups.aborted",)),
    Path("made again", "a sample whose verifier failed was made again alone", ("samples.again",)),
    Path("drain", "a host with a notice left in order before its end", ("hosts.drained",)),
    Path("spared", "a host whose notice came to nothing served on", ("hosts.spared",)),
    Path("link re-send", "control messages were sent again on a new connection", ("links.resent",)),
    Path("link dedupe", "control messages that came twice were dropped", ("links.duplicates",)),
    Path("link gap", "control messages that came out of turn were asked for again", ("links.gaps",)),
    Path("link lost", "a link ended, and the waiting senders of its messages were notified", ("links.lost",)),
    Path("ask re-send", "an ask without an answer was sent again", ("asks.resent",)),
    Path("ask dedupe", "an ask that came again got the first one's answer", ("asks.repeated",)),
    Path("frame re-send", "token frames were sent again", ("streams.resent",)),
    Path("frame dedupe", "token frames that came twice were dropped", ("streams.duplicates",)),
    Path("frame gap", "missing token frames were asked for", ("streams.gaps",)),
    Path("stream fence", "the stream of a given-up incarnation was refused", ("streams.fenced",)),
    Path("journal fence", "a write of an older incarnation was refused", ("journals.fenced",)),
    Path("name fence", "an older incarnation lost its name to a newer one", ("names.superseded",)),
    Path("replay", "an actor rebuilt itself from its journal", ("journals.replayed",)),
    Path("torn write", "the last write was there in part, and dropped", ("journals.repaired",)),
    Path("lost commit", "a commit was cut off before it was reported to any actor", ("journals.cut_off",)),
    Path("suspended", "work waited for space on a full disk, and went on", ("journals.refused",)),
    Path("one_for_one", "a child alone was started again", ("restarts.one_for_one",)),
    Path("rest_for_one", "a child and those after it were started again", ("restarts.rest_for_one",)),
    Path("one_for_all", "all children were started again with one", ("restarts.one_for_all",)),
    Path("gang", "all processes of a trainer were started again with one", ("restarts.gang",)),
    Path("give up", "a supervisor failed upward after too many restarts", ("restarts.gave_up",)),
    Path("suspicion", "a silent process was suspected, and answered again", ("watches.unsuspected",)),
    Path("health check", "a child process that gave no heartbeat was killed", ("children.killed",)),
    Path("watchdog", "a node agent that hung was ended by its service manager", ("hosts.watchdog",)),
    Path("declared dead", "a silent process was given up for dead", ("watches.silent",)),
    Path(
        "trainer resume",
        "a trainer began a step again with the samples that were there",
        ("steps.resumed",),
    ),
    Path(
        "read back",
        "delivered groups were read from the journal for a trainer that requested them again",
        ("groups.read_back",),
    ),
    Path("rewind", "training went back to its last checkpoint", ("steps.rewound",)),
    Path("co-located", "a step went on without any preemptible instance", ("steps.colocated",)),
    Path("stair", "half of the engines left a window, and the trainer trained meanwhile", ("steps.stairs",)),
    Path("relaunched", "an engine was launched anew with another width", ("engines.relaunched",)),
    Path("partial re-pull", "a pull of weights went on from its last chunk", ("weights.resumed_pulls",)),
    Path("bad chunk", "a damaged chunk was found by its hash and pulled again", ("weights.bad_chunks",)),
    Path("delta", "a host made a version of what had changed since another one", ("weights.deltas",)),
    Path("relay", "a host pulled weights from one that was not their publisher", ("weights.relayed",)),
    Path("load again", "an engine did not load newer weights and served on", ("weights.failed_loads",)),
    Path("no room", "a host had no room for a version of the weights, and waited", ("weights.no_room",)),
    Path("scorer replaced", "a reward worker hung or died, and another one took over", ("rewards.deaths",)),
    Path("reward host lost", "items of a lost reward host ran elsewhere", ("rewards.lost_with_host",)),
    Path("reward host drained", "a reward host with a notice handed its items over", ("rewards.drained",)),
    Path("proxy outlived", "a result came to a later life of the proxy", ("rewards.outlived_proxy",)),
    Path("reward cancelled", "an item that ran on a reward host was cancelled", ("rewards.cancelled",)),
    Path("second result", "a result that was not needed any more was dropped", ("rewards.late_results",)),
    Path(
        "foreign result",
        "a result of a reward host that was not given the item was dropped",
        ("rewards.foreign_results",),
    ),
    Path("tried elsewhere", "an item that failed on a host ran on another one", ("rewards.tried_elsewhere",)),
    Path("stage elsewhere", "a program ran on another host than compiled it", ("rewards.blobs_fetched",)),
    Path("stage begun again", "what a stage left was lost: done again", ("rewards.begun_again",)),
    Path("planned workers", "the number of reward workers followed the batches", ("rewards.plans",)),
    Path(
        "registered again",
        "a worker found its manager again after one of them was gone",
        ("workers.registered_again",),
    ),
    Path("single request", "a single request of another client was answered", ("singles.answered",)),
    Path(
        "single retried",
        "a single request whose answer was lost was asked for again, and answered",
        ("singles.retried",),
    ),
    Path("single resumed", "a caller got the rest behind the prefix that it had", ("singles.resumed",)),
    Path(
        "single kept",
        "a single request was answered by a later manager than the one that began it",
        ("singles.kept",),
    ),
    Path(
        "single moved on",
        "a single request went on under newer weights, within its gate",
        ("singles.several_versions",),
    ),
    Path(
        "single refused",
        "an id with other contents, or a prefix that is none, was refused",
        ("singles.refused",),
    ),
    Path("gateway answer", "a call of an HTTP client was answered", ("gateway.answered",)),
    Path("gateway again", "a named call that broke was sent again, and answered", ("gateway.again",)),
    Path("gateway cut", "a client lost its connection in the middle of an answer", ("gateway.cut",)),
    Path("gateway left", "a client hung up before its answer was whole", ("gateway.left",)),
    Path("gateway refused", "a call was refused for now: the limit, or no engine", ("gateway.refused",)),
    Path("version not ready", "a single request's gate stayed closed", ("singles.not_ready",)),
    Path("kept", "requests stayed with their instance while its weights changed", ("requests.kept",)),
    Path("revoked", "dispatches that never arrived were given to others", ("requests.revoked",)),
)  # fmt: skip
BY_NAME: Mapping[str, Path] = {path.name: path for path in PATHS}


def taken(counts: Mapping[str, int]) -> dict[str, int]:
    """How often each path was taken, in the order of `PATHS`."""
    return {path.name: sum(counts.get(name, 0) for name in path.counts) for path in PATHS}


def never_taken(counts: Mapping[str, int], wanted: Iterable[str]) -> list[str]:
    """Names of `wanted` that were not taken. Raises KeyError for a name that is not in `PATHS`."""
    found = taken(counts)
    return [name for name in wanted if not found[BY_NAME[name].name]]


def unknown(wanted: Iterable[str]) -> list[str]:
    """Names that are not in `PATHS`."""
    return sorted(set(wanted) - BY_NAME.keys())
