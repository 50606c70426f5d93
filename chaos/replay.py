"""Replay: runs one seed again and writes its story, up to the first violation.

Owns the output: a file, or the last lines in memory. `story` makes the lines.
"""

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gleaner.chaos.plan import Loaded
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.sim_run import run
from gleaner.chaos.story_filter import StoryFilter
from gleaner.chaos.tally import RunReport


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay: the run, the last lines of its story (none of them with a file), and how many there were."""

    run: RunReport
    tail: tuple[str, ...]
    lines: int


def replay(
    loaded: Loaded,
    seed: int,
    schedule: Schedule | None = None,
    *,
    trace: Path | None = None,
    tail: int = 60,
    go_on: bool = False,
    shown: StoryFilter | None = None,
) -> Replayed:
    """Run it. go_on: to the end, whatever is found. shown: the part of the story; None: all. Raises OSError
    where the trace cannot be written."""
    kept: deque[str] = deque(maxlen=max(tail, 0))
    lines = 0
    with ExitStack() as stack:
        file = stack.enter_context(trace.open("w", encoding="utf-8")) if trace is not None else None

        def tell(line: str) -> None:
            nonlocal lines
            lines += 1
            if file is not None:
                file.write(f"{line}\n")
            else:
                kept.append(line)

        result = run(loaded, seed, schedule, tell=tell, stop_at=None if go_on else "", shown=shown)
    return Replayed(result, tuple(kept), lines)
