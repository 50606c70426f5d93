"""BatchClock: times of one batch for Algorithm 1. Pure; the time is an argument.

Owns which preemptible instances generated when, until the step ends. Source: RLBoost, section 4.1 and
algorithm 1 (lines 6 to 8); `Figures` defines each figure.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, and preemptible instances; of the time from the batch's start to the step's end.

    Attributes:
        mean_prem: n̄, instances that were present, averaged over the step; one that still pulls the step's
            weights counts too, or no step would ever count as undisturbed.
        remote_s: t_remote, such that `remote_s * mean_prem` is the time that instances generated, all
            together: line 10 takes that product for the step's remote rollout.
        remote_wait_s: t_remote^wait, from an instance's last response to the step's end, the mean over those
            that generated and are still present.
        remote_start_s: from the first presence of a preemptible instance until the first request went to
            one: it had the weights. rolled_s: until the last response of the batch. step_s: all of it.
    """

    step_s: float
    mean_prem: float
    remote_s: float
    remote_wait_s: float
    remote_start_s: float
    rolled_s: float


@dataclass(slots=True)
class _Served:
    """One preemptible instance that got requests of the batch. `live`: how many it has; `since_s`: since
    when; `last_s`: when one of them ended last."""

    live: int = 0
    since_s: float = 0.0
    busy_s: float = 0.0
    last_s: float = 0.0


@dataclass(slots=True)
class BatchClock:
    """See the module. `whole`: it runs since the start of the batch (the clocks of a restarted manager do
    not)."""

    begin_s: float
    whole: bool = True
    _present: int = 0
    _since_s: float = 0.0
    _instance_s: float = 0.0
    _there_s: float | None = None
    _first_s: float | None = None
    _last_s: float = 0.0
    _served: dict[str, _Served] = field(default_factory=dict)
    _gone_s: float = 0.0
    _end_s: float | None = None

    def __post_init__(self) -> None:
        self._since_s = self._last_s = self.begin_s

    @property
    def ended(self) -> bool:
        """The step is over: nothing changes any more."""
        return self._end_s is not None

    def present(self, now_s: float, count: int) -> None:
        """Set the number of preemptible instances from now on."""
        if self.ended:
            return
        self._instance_s += self._present * (now_s - self._since_s)
        self._since_s, self._present = now_s, count
        if count and self._there_s is None:
            self._there_s = now_s

    def dispatched(self, now_s: float, instance: str, count: int, *, preemptible: bool) -> None:
        """`count` requests of the batch went to an instance."""
        if self.ended or not preemptible:
            return
        if self._first_s is None:
            self._first_s = now_s
        served = self._served.setdefault(instance, _Served())
        if not served.live:
            served.since_s = now_s
        served.live += count

    def returned(self, now_s: float, instance: str) -> None:
        """A request of the batch left an instance: finished, aborted, or taken back."""
        if self.ended:
            return
        self._last_s = now_s
        served = self._served.get(instance)
        if served is None or not served.live:
            return
        served.live -= 1
        served.last_s = now_s
        if not served.live:
            served.busy_s += now_s - served.since_s

    def left(self, instance: str) -> None:
        """An instance is gone, and its requests were taken back: it waits for no step's end."""
        served = self._served.pop(instance, None) if not self.ended else None
        if served is not None:
            self._gone_s += served.busy_s

    def end(self, now_s: float) -> None:
        """The trainer has completed the step."""
        if not self.ended:
            self.present(now_s, self._present)
            self._end_s = now_s

    def figures(self, now_s: float) -> Figures:
        """The figures up to the step's end, or up to now."""
        end_s = now_s if self._end_s is None else self._end_s
        whole_s = end_s - self.begin_s
        instance_s = self._instance_s + self._present * (end_s - self._since_s)
        mean_prem = instance_s / whole_s if whole_s > 0 else float(self._present)
        there_s = end_s if self._there_s is None else self._there_s
        served = list(self._served.values())
        busy_s = self._gone_s + sum(one.busy_s + (end_s - one.since_s if one.live else 0.0) for one in served)
        waits = [0.0 if one.live else end_s - one.last_s for one in served]
        return Figures(
            step_s=whole_s,
            mean_prem=mean_prem,
            remote_s=busy_s / mean_prem if mean_prem > 0 else 0.0,
            remote_wait_s=sum(waits) / len(waits) if waits else 0.0,
            remote_start_s=max(0.0, (end_s if self._first_s is None else self._first_s) - there_s),
            rolled_s=self._last_s - self.begin_s,
        )
