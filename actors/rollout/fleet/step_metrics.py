"""StepMetrics: times and lengths of batches and instances, to plan the next step.

Owns the clocks of open batches. Soft state: a restarted manager starts new measurements, and has no times of
the batches that were open already.
"""

from collections.abc import Sequence

from gleaner.actors.protocol.rollout import BatchTimes
from gleaner.actors.protocol.throughput import Room
from gleaner.actors.rollout.batches.critical_path import BatchInstants
from gleaner.actors.rollout.fleet.batch_clock import BatchClock
from gleaner.actors.rollout.fleet.instance_table import Instance, Instances
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.request_log import RequestLog
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.token_log import Batch
from gleaner.supervisor import Context, Refused

MAX_GROUPS = 32  # whose lengths are reported: a sample of the batch, not all of it
MAX_SAMPLES = 16  # of each of them


class StepMetrics:
    """See the module."""

    def __init__(self, ctx: Context, state: RolloutState, instances: Instances) -> None:
        self._ctx, self._state, self._instances = ctx, state, instances
        now = ctx.now()
        self._clocks = {batch: BatchClock(now, whole=False) for batch in state.log.batches}
        self._instants: dict[str, BatchInstants] = {}
        self._served_s: dict[str, float] = {}  # since when an instance serves its present weights
        self._step_end_s = now
        self._path_from_s = now

    def opened(self, batch: str) -> None:
        """A batch starts."""
        clock = self._clocks[batch] = BatchClock(self._ctx.now())
        self._instants[batch] = BatchInstants(self._ctx.now())
        clock.present(self._ctx.now(), self._instances.present())

    def released(self, batch: str) -> None:
        """A batch is forgotten."""
        self._clocks.pop(batch, None)
        self._instants.pop(batch, None)

    def sent(self, instance: Instance, logs: list[RequestLog]) -> None:
        """These requests were sent to this instance."""
        counts: dict[str, int] = {}
        now, served_s = self._ctx.now(), self._served_s.get(instance.name, 0.0)
        for log in logs:
            counts[log.batch] = counts.get(log.batch, 0) + 1
            if (instants := self._instants.get(log.batch)) is not None:
                instants.sent(log.id, log.group, instance.name, served_s, now)
        for batch, count in counts.items():
            self._clocks[batch].dispatched(
                now, instance.name, count, preemptible=instance.kind == "preemptible"
            )

    def note(self, changes: Effects) -> None:
        """Requests started, left their instances, or were scored."""
        now, requests = self._ctx.now(), self._state.log.requests
        for ended in changes.ended:
            log = requests.get(ended.request)
            if log is not None:
                self._clocks[log.batch].returned(now, ended.instance)
        seen = (
            (changes.began, BatchInstants.began),
            (changes.finished, BatchInstants.finished),
            (changes.judged, BatchInstants.judged),
        )
        for names, what in seen:
            for request in names:
                log = requests.get(request)
                if log is not None and (instants := self._instants.get(log.batch)) is not None:
                    what(instants, request, now)
        for batch, group in changes.completed:
            if (instants := self._instants.get(batch)) is not None:
                instants.scored(group, now)

    def handed_out(self, batch: str, groups: Sequence[int]) -> None:
        """The trainer, or an evaluation, gets these groups."""
        if (instants := self._instants.get(batch)) is not None:
            instants.handed_out(groups, self._ctx.now())

    def serves(self, instance: str) -> None:
        """An instance serves other weights than before."""
        self._served_s[instance] = self._ctx.now()

    def there(self) -> None:
        """The number of instances has changed."""
        now, count = self._ctx.now(), self._instances.present()
        for clock in self._clocks.values():
            clock.present(now, count)

    def left(self, instance: str) -> None:
        """An instance is gone, and its requests were taken back."""
        self._served_s.pop(instance, None)
        for clock in self._clocks.values():
            clock.left(instance)

    def _room(self, kind: str) -> Room:
        """Capacity of an engine of this kind: that of the first registered instance."""
        there = next((instance for instance in self._instances.values() if instance.kind == kind), None)
        if there is None:
            return Room()
        return Room(slots=there.slots, cache_tokens=there.cache_tokens, weight_tokens=there.weight_tokens)

    def step_ended(self, name: str) -> None:
        """The step of this batch is over. Idempotent."""
        clock = self._clocks.get(name)
        if clock is not None and not clock.ended:
            clock.end(self._ctx.now())
            self._path_from_s, self._step_end_s = self._step_end_s, self._ctx.now()

    def report(self, name: str) -> BatchTimes:
        """The times of one batch. Raises Refused if its start was not seen."""
        clock, batch = self._clocks.get(name), self._state.log.batches.get(name)
        if clock is None or batch is None:
            raise Refused(f"batch {name} is not open")
        if not clock.whole:
            raise Refused(f"batch {name} began before this manager did: its times are not known")
        now, instances, instants = self._ctx.now(), self._instances, self._instants.get(name)
        figures = clock.figures(now)
        preemptible = len(instances.preemptible())
        return BatchTimes(
            step_s=figures.step_s,
            mean_prem=figures.mean_prem,
            next_prem=instances.present(),
            remote_s=figures.remote_s,
            remote_wait_s=figures.remote_wait_s,
            remote_start_s=figures.remote_start_s,
            rolled_s=figures.rolled_s,
            reserved_engines=instances.engines("reserved"),
            instance_engines=instances.engines("preemptible") / preemptible if preemptible else 1.0,
            reserved=self._room("reserved"),
            preemptible=self._room("preemptible"),
            requests=sum(map(len, batch.groups)),
            groups=len(batch.groups),
            limit=batch.submitted.max_new_tokens,
            lengths=lengths_of(batch),
            prompt_tokens=sum(len(group[0].prompt) for group in batch.groups) / len(batch.groups),
            carried_prem=instances.carried(),
            counted=batch.wanted if batch.submitted.race else 0,
            counted_samples=batch.submitted.counted or len(batch.prompt(0).seeds),
            path=None if instants is None else instants.critical_path(*self._span(clock, now)),
        )

    def _span(self, clock: BatchClock, now: float) -> tuple[float, float]:
        """From the end of the step before to that of the batch's own, or to now."""
        return (self._path_from_s, self._step_end_s) if clock.ended else (self._step_end_s, now)


def lengths_of(batch: Batch) -> list[list[int]]:
    """Tokens of the responses of at most `MAX_GROUPS` complete groups, evenly chosen from the group whose
    longest response is shortest to the one where it is longest; of at most `MAX_SAMPLES` of each."""
    groups = [
        sorted(len(log) for log in logs)[-MAX_SAMPLES:]
        for number, logs in enumerate(batch.groups)
        if logs and batch.complete(number)
    ]
    groups.sort(key=lambda lengths: (lengths[-1], sum(lengths)))
    count = min(len(groups), MAX_GROUPS)
    if count < 2:
        return groups[-count:] if count else []
    return [groups[number * (len(groups) - 1) // (count - 1)] for number in range(count)]
