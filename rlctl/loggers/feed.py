"""Feed: sends a run's history to its loggers, on a thread of its own.

Owns the thread and the handling of a failed logger: its failure is reported once and it gets no more figures;
the others and the run go on. The history is a file, so a slow logger only lags, and no memory is held for it.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Sequence

from gleaner.actors.training.history import AnyRecord, HistoryError, HistoryFollower
from gleaner.rlctl.live_view import follow
from gleaner.rlctl.loggers.figures import figures_of
from gleaner.rlctl.loggers.sink import Sink, SinkFailed

CLOSE_S = 30.0
"""Time for a logger after the run's end; then the feed stops waiting for it."""


def say(line: str) -> None:
    """Report a line to the user."""
    sys.stderr.write(f"{line}\n")


def feed(records: Iterable[AnyRecord], sinks: Sequence[Sink], tell: Callable[[str], None] = say) -> int:
    """Send every record's figures to every sink, and close them; return the number of records with
    figures."""
    working, count = list(sinks), 0
    for record in records:
        figures = figures_of(record)
        if figures is not None:
            count += 1
            for sink in list(working):
                try:
                    sink.write(figures)
                except SinkFailed as problem:
                    tell(f"{problem} (it gets no more figures)")
                    working.remove(sink)
    for sink in working:
        try:
            sink.close()
        except SinkFailed as problem:
            tell(str(problem))
    return count


class Feed:
    """Sends the records that the history gets from now on.

    Args:
        follower: has read the records that the loggers already have.
        open_sinks: makes the sinks, on the feed's thread: a service may block.
    """

    def __init__(
        self,
        follower: HistoryFollower,
        open_sinks: Callable[[], list[Sink]],
        tell: Callable[[str], None] = say,
    ) -> None:
        self._follower, self._open, self._tell = follower, open_sinks, tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loggers", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self, within_s: float = CLOSE_S) -> None:
        """Finish after the last record: all remaining figures are written. A logger that takes longer is
        reported and abandoned."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(within_s)
            if self._thread.is_alive():
                self._tell(f"a logger takes longer than {within_s:.0f} s to end: left alone")

    def _run(self) -> None:
        try:
            sinks = self._open()
        except SinkFailed as problem:
            self._tell(f"{problem} (the run goes on without)")
            return
        for sink in sinks:
            self._tell(f"figures: {sink.where}")
        try:
            feed(
                follow(self._follower, lambda: not self._over.is_set(), sleep=self._over.wait),
                sinks,
                self._tell,
            )
        except HistoryError as problem:
            self._tell(f"loggers: {problem}")
