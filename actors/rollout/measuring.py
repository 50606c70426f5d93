"""Measuring: what the batches and the instances of the manager show, for the plan of the next step.

Owns the clocks of open batches and the paces of engines. Soft state: a manager that was restarted measures
anew, and has no times of the batches that it found open.
"""

import msgspec

from actors.rollout.changes import Changes
from actors.rollout.clock import BatchClock
from actors.rollout.instances import Instance, Instances
from actors.rollout.messages import BatchTimes
from actors.rollout.pace import EnginePace, Look, Paces
from actors.rollout.state import RolloutState
from actors.rollout.tickets import Stream
from actors.rollout.token_log import Batch, RequestLog
from supervisor import Context, Refused

MAX_GROUPS = 32  # of which the lengths are told: a sample of the batch, not all of it
MAX_SAMPLES = 16  # of each of them
LOOKED_AT = 64  # requests of an instance whose context stands for that of all


class Measuring:
    """See the module; `look` now and then."""

    def __init__(self, ctx: Context, state: RolloutState, instances: Instances) -> None:
        self._ctx, self._state, self._instances = ctx, state, instances
        now = ctx.now()
        self._clocks = {batch: BatchClock(now, whole=False) for batch in state.log.batches}
        self._paces = Paces()

    def opened(self, batch: str) -> None:
        """A batch begins."""
        clock = self._clocks[batch] = BatchClock(self._ctx.now())
        clock.present(self._ctx.now(), self._instances.present())

    def released(self, batch: str) -> None:
        """A batch is forgotten."""
        self._clocks.pop(batch, None)

    def sent(self, instance: Instance, logs: list[RequestLog]) -> None:
        """These requests are on their way to this instance."""
        counts: dict[str, int] = {}
        for log in logs:
            counts[log.batch] = counts.get(log.batch, 0) + 1
        for batch, count in counts.items():
            self._clocks[batch].dispatched(
                self._ctx.now(), instance.name, count, preemptible=instance.kind == "preemptible"
            )

    def ended(self, changes: Changes) -> None:
        """Requests left their instances."""
        now, requests = self._ctx.now(), self._state.log.requests
        for ended in changes.ended:
            log = requests.get(ended.request)
            if log is not None:
                self._clocks[log.batch].returned(now, ended.instance)

    def there(self) -> None:
        """Instances came or went."""
        now, count = self._ctx.now(), self._instances.present()
        for clock in self._clocks.values():
            clock.present(now, count)

    def left(self, instance: str) -> None:
        """An instance is gone, and what it had has been taken back."""
        self._paces.forget(instance)
        for clock in self._clocks.values():
            clock.left(instance)

    def look(self) -> None:
        """At what the instances decode."""
        for name, instance in self._instances.items():
            stream = self._state.streams.alive(name, instance.incarnation)
            if stream is not None and instance.frames:
                self._paces.look(name, instance.kind, instance.engines, self._looks(instance, stream))

    def _looks(self, instance: Instance, stream: Stream) -> Look:
        live = stream.live()
        started = [ticket.request for ticket in live.values() if ticket.started]
        requests = self._state.log.requests
        some = [log for request in started[:LOOKED_AT] if (log := requests.get(request)) is not None]
        context = sum(len(log.prompt) + len(log) for log in some)
        return Look(
            frames=instance.frames,
            rows=instance.rows,
            frame_s=instance.frame_s,
            live=len(live),
            context=context / len(some) if some else 0.0,
        )

    def _pace(self, kind: str) -> EnginePace | None:
        """Of one engine of this kind, with the room that the first one has that is there."""
        pace = self._paces.of(kind)
        there = next((instance for instance in self._instances.values() if instance.kind == kind), None)
        if pace is None or there is None:
            return pace
        return msgspec.structs.replace(pace, slots=there.slots, cache_tokens=there.cache_tokens)

    def step_ended(self, name: str) -> None:
        """The step of this batch is over. Saying it again changes nothing."""
        clock = self._clocks.get(name)
        if clock is not None and not clock.ended:
            clock.end(self._ctx.now())
            self._paces.batch_ended()

    def report(self, name: str) -> BatchTimes:
        """Of one batch. Raises Refused where its begin was not seen."""
        clock, batch = self._clocks.get(name), self._state.log.batches.get(name)
        if clock is None or batch is None:
            raise Refused(f"batch {name} is not open")
        if not clock.whole:
            raise Refused(f"batch {name} began before this manager did: its times are not known")
        now, instances = self._ctx.now(), self._instances
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
            reserved=self._pace("reserved"),
            preemptible=self._pace("preemptible"),
            requests=sum(map(len, batch.groups)),
            groups=len(batch.groups),
            limit=batch.submitted.max_new_tokens,
            lengths=lengths_of(batch),
            prompt_tokens=sum(len(group[0].prompt) for group in batch.groups) / len(batch.groups),
        )


def lengths_of(batch: Batch) -> list[list[int]]:
    """Tokens of the responses of at most `MAX_GROUPS` complete groups, evenly chosen from the group with the
    shortest longest response to the one with the longest; of at most `MAX_SAMPLES` of each."""
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
