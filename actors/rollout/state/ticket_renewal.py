"""Ticket renewal: a dispatch continues on its instance under other weights.

Pure. In the log of its request that is another attempt of the same instance, so its tokens are another span.
Only the order of the stream shows which weights made a token: an instance asks when all rows of the version
before are journaled, and makes no token before it is answered.
"""

from collections.abc import Iterable

from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import TicketsRenewed
from gleaner.actors.rollout.state.tickets import Stream
from gleaner.actors.rollout.state.token_log import TokenLog
from gleaner.actors.rollout.state.versions import Versions


def may_renew(
    log: TokenLog, versions: Versions, stream: Stream, version: int, tickets: Iterable[int]
) -> list[int]:
    """Of these tickets those that count and may continue under this version: it is known, the gate of the
    request is a least version, and admits it. A request that is due, or made for exactly one version, may
    not."""
    may: list[int] = []
    for number in dict.fromkeys(tickets):
        if not stream.is_live(number) or version not in versions.known:
            continue
        request = log.requests[stream.tickets[number].request]
        if not request.due and request.min_version is not None and request.admits(version):
            may.append(number)
    return may


def renew(log: TokenLog, versions: Versions, stream: Stream, event: TicketsRenewed, changes: Effects) -> None:
    """Later tokens of these tickets count as made under the version of the event."""
    tickets = may_renew(log, versions, stream, event.version, event.tickets)
    changes.refused += ["wrong_version"] * (len(set(event.tickets)) - len(tickets))
    for number in tickets:
        request = log.requests[stream.tickets[number].request]
        request.attempts += 1
        stream.renew(number, request.attempts, event.version)
