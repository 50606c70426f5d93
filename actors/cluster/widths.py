"""Widths: rules that choose the tensor-parallel width of engines for a round of a kind.

Pure. Owns RollPacker's rule as printed (arXiv 2509.21009, section 4.2) and the rule by prediction. The
printed one compares a round with earlier ones; here these are rounds of the same kind, because short rounds
launch more requests and lose more caches than long ones, so that a comparison across kinds would alternate.
"""

from collections.abc import Mapping, Sequence

import msgspec

ROUNDS = 4  # of a kind, that are compared with, and that go without a retraction before engines narrow
RISE = 1.05  # of the mean of those
LEAST_SHARE = 0.01
"""Of the requests of a round. The paper has none: then one retraction more in hundreds of requests counts."""
CLEARLY = 0.02  # of a round: less is no gain


class KindWidth(msgspec.Struct, frozen=True, kw_only=True):
    """The width for rounds of a kind, and the retractions of the last ones under it, the newest last."""

    width: int
    retracted: tuple[int, ...] = ()


def fitting(widths: Sequence[int], wanted: int, devices: int) -> int:
    """The width for a host with so many devices: the widest one up to the wanted one that cuts them into
    equal groups; without any so narrow the narrowest that does; 0 if none does."""
    there = sorted(width for width in widths if width <= devices and devices % width == 0)
    return max((width for width in there if width <= wanted), default=min(there, default=0))


def published(known: KindWidth, retracted: int, requests: int, widths: Sequence[int]) -> KindWidth:
    """The width after a round of this kind, under `known.width`, with so many retractions and requests.

    It doubles if retractions rise above `RISE` times the mean of the last rounds of this kind under this
    width, and above `LEAST_SHARE` of the requests; it halves after `ROUNDS` of them without any. A change
    begins with no earlier rounds, so a doubling stays for at least `ROUNDS` rounds. widths: those that the
    hosts can have.
    """
    wider = [width for width in widths if width > known.width]
    narrower = [width for width in widths if width < known.width]
    earlier = known.retracted
    rises = bool(earlier) and retracted * len(earlier) > RISE * sum(earlier)
    if rises and retracted > LEAST_SHARE * requests and wider:
        return KindWidth(width=min(wider))
    rounds = (*earlier, retracted)[-ROUNDS:]
    if len(rounds) == ROUNDS and not any(rounds) and narrower:
        return KindWidth(width=max(narrower))
    return KindWidth(width=known.width, retracted=rounds)


def shortest(now: int, rounds_s: Mapping[int, float], count: float, relaunch_s: float) -> int:
    """The width with the shortest predicted round, the narrower one of equals; `now` if a change to it gains
    no more than `relaunch_s` over `count` rounds, or next to nothing. rounds_s: by width."""
    best = min(rounds_s, key=lambda width: (rounds_s[width], width), default=now)
    if now not in rounds_s:
        return best
    gain_s = rounds_s[now] - rounds_s[best]
    return best if gain_s > CLEARLY * rounds_s[now] and gain_s * count > relaunch_s else now
