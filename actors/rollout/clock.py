"""The times of one batch that Algorithm 1 asks for. Pure; the time is an argument."""

from actors.rollout.messages import BatchTimes


class BatchClock:
    """From submission on: when remote rollout began and ended, and how many instances served on average."""

    def __init__(self, now_s: float) -> None:
        self._begin_s = now_s
        self._since_s = now_s
        self._serving = 0
        self._instance_s = 0.0
        self._first_s: float | None = None
        self._last_s = now_s

    def dispatched(self, now_s: float) -> None:
        """A request went to a preemptible instance."""
        if self._first_s is None:
            self._first_s = now_s

    def remote_ended(self, now_s: float) -> None:
        """A request left a preemptible instance: finished, or handed over."""
        self._last_s = now_s

    def serving(self, now_s: float, count: int) -> None:
        """From now on `count` preemptible instances serve the batch."""
        self._instance_s += self._serving * (now_s - self._since_s)
        self._since_s, self._serving = now_s, count

    def times(self, now_s: float, serving: int) -> BatchTimes:
        """Up to now."""
        self.serving(now_s, serving)
        whole_s = now_s - self._begin_s
        return BatchTimes(
            remote_s=0.0 if self._first_s is None else max(0.0, self._last_s - self._first_s),
            since_last_s=now_s - self._last_s,
            mean_prem=self._instance_s / whole_s if whole_s > 0 else float(serving),
            next_prem=serving,
        )
