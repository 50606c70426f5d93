"""`Backoff`: whether and when a call is made or repeated. Pure: chance is injected.

Capped exponential waits with jitter, so that calls that failed together do not return together. A server's
own `Retry-After` is a lower bound. A wait that would end after the deadline is not begun.
"""

import random
from dataclasses import dataclass

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 20.0
"""After the first failure, and at most: twice as long each time, and up to as much again by chance."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Tries of one call. attempts: calls in all. first_s, longest_s: waits between them, less the jitter."""

    attempts: int
    first_s: float = FIRST_WAIT_S
    longest_s: float = LONGEST_WAIT_S

    def wait_s(self, failed: int, after_s: float, left_s: float, rng: random.Random) -> float | None:
        """The wait before the next call; None: there is none.

        failed: calls that failed so far. after_s: until the server takes calls. left_s: until the deadline.
        """
        if failed >= self.attempts:
            return None
        step_s = min(self.first_s * 2.0 ** min(failed - 1, 30), self.longest_s) if failed else 0.0
        wait_s = step_s * (1 + rng.random())
        if after_s > 0:
            wait_s = max(wait_s, after_s + self.first_s * rng.random())
        return wait_s if wait_s < left_s else None
