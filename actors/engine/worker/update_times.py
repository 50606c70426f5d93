"""`UpdateTimes`: pull, wait and load times of the weights that an instance serves.

For the operator. Pure.
"""

import logging

from gleaner.actors.protocol.weights import Fetched

Figures = dict[str, str | int | float]


class UpdateTimes:
    """Times of the last loaded version. Every moment is on its worker's clock, in seconds."""

    def __init__(self) -> None:
        self._told_s = 0.0
        self._fetched: Fetched | None = None
        self._fetched_s = self._staged_s = 0.0
        self._figures: Figures = {}

    def announced(self, now_s: float) -> None:
        """A new version should be served."""
        self._told_s = now_s

    def fetched(self, fetched: Fetched, now_s: float) -> None:
        """The version is on this host."""
        self._fetched, self._fetched_s = fetched, now_s

    def staged(self, now_s: float) -> None:
        """The engine has prepared it, while it decoded."""
        self._staged_s = now_s

    def loaded(self, began_s: float, now_s: float, log: logging.LoggerAdapter[logging.Logger]) -> None:
        """The engine serves it; from `began_s` on it did nothing else."""
        fetched = self._fetched
        if fetched is None:
            return
        self._figures = {
            "fetched_s": round(self._fetched_s - self._told_s, 4),
            "pulled_s": round(fetched.seconds, 4),
            "pulled_mb": round(fetched.pulled_bytes / 1e6, 3),
            "staged_s": round(self._staged_s - self._fetched_s, 4),
            "waited_s": round(began_s - self._staged_s, 4),
            "paused_s": round(now_s - began_s, 4),
        }
        log.info(
            "weights %d: %.1f MB pulled in %.3f s, here %.3f s after their announcement, staged in %.3f s, "
            "loaded in %.3f s",
            fetched.version,
            fetched.pulled_bytes / 1e6,
            fetched.seconds,
            self._fetched_s - self._told_s,
            self._staged_s - self._fetched_s,
            now_s - began_s,
        )

    def summary(self) -> Figures:
        """Times of the last version; empty before the first.

        Seconds from the announcement to the image on this host (`fetched_s`; of these `pulled_s` for
        `pulled_mb` megabytes), of preparation by the engine while it decoded (`staged_s`), from there to the
        start of the load (`waited_s`: the current step, requests that drain), and of the pause for the load
        (`paused_s`)."""
        return self._figures
