"""Newest failure of each actor name of this process, with its chain of causes.

Owns the record, bounded. The supervisor decides what follows from a failure.
"""

import traceback
from collections import OrderedDict
from pathlib import PurePath

import msgspec

MAX_NAMES = 256
"""Actors whose newest failures are kept; the one with the oldest failure goes first."""
MAX_CHAIN = 8
"""Exceptions of one chain that are kept; more of them mean recursion, not reasons."""
MAX_LINE = 300
"""Characters of one exception's text."""


class ActorFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A failed incarnation. `at_s`: the process's loop time; `chain`: a line for each exception, the last
    raised first, then its causes; `count`: failures of this name so far."""

    at_s: float
    incarnation: int
    chain: list[str]
    count: int


class Failures:
    """Bounded by `MAX_NAMES`."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, ActorFailure] = OrderedDict()

    def add(self, name: str, incarnation: int, problem: BaseException, now_s: float) -> None:
        """An incarnation of `name` ended with `problem`."""
        before = self._newest.pop(name, None)
        count = before.count + 1 if before is not None else 1
        chain = chain_of(problem)
        self._newest[name] = ActorFailure(at_s=now_s, incarnation=incarnation, chain=chain, count=count)
        if len(self._newest) > MAX_NAMES:
            self._newest.popitem(last=False)

    def newest(self, name: str) -> ActorFailure | None:
        """The last failure of `name`, if it is kept."""
        return self._newest.get(name)


def chain_of(problem: BaseException) -> list[str]:
    """`ValueError: bad (actors/rollout/manager.py:88 in on_start)` for each exception of the chain."""
    lines: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = problem
    while link is not None and id(link) not in seen and len(lines) < MAX_CHAIN:
        seen.add(id(link))
        text = " ".join(f"{type(link).__name__}: {link}".split())
        lines.append(f"{text[:MAX_LINE]}{_place(link)}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return lines


def _place(problem: BaseException) -> str:
    frames = traceback.extract_tb(problem.__traceback__, limit=-1)
    if not frames:
        return ""
    file = "/".join(PurePath(frames[0].filename).parts[-3:])
    return f" ({file}:{frames[0].lineno} in {frames[0].name})"
