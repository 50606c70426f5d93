"""Time of one step's rollout on a few engines, without actors, for estimates.

The checks use it too. Owns a small event simulation: engines of `batching` and one queue, from which every
engine takes a request as soon as it has a free slot. There are no messages, no faults and no delays here;
`gleaner.sim.cluster` is for those.
"""

import heapq
from collections import deque
from dataclasses import dataclass

from gleaner.sim.models.batching import ContinuousBatch, Entry, Limits
from gleaner.sim.models.engine_cost import engine_cost, kv_capacity_tokens
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.shapes import ModelShape
from gleaner.sim.models.tokens import mix
from gleaner.sim.models.training_cost import TrainingCost
from gleaner.transport.token_frame import Flag

TOKEN_SCALE = 32  # of these estimates: a turn is so many decode steps
WINDOWS = 12  # seeding windows that are tried
_FINISHED = int(Flag.FINISHED)
MICRO_BATCHES = 64  # a step's samples are trained in so many


@dataclass(frozen=True, slots=True)
class Fleet:
    """A batch of `groups` x `samples` requests; lengths in tokens of the model. slots: of each copy of it."""

    shape: ModelShape
    law: LengthLaw
    groups: int
    samples: int
    limit: int
    prompt: int
    slots: int

    def requests(self) -> list[Entry]:
        """All of them; the seeds are numbers."""
        law, limit = self.law.scaled(1 / TOKEN_SCALE), self.limit // TOKEN_SCALE
        return [
            Entry(
                ticket=number,
                key=number,
                prompt_id=mix(number // self.samples),
                prompt=max(1, self.prompt // TOKEN_SCALE),
                made=0,
                end=law.length(mix(number), mix(number // self.samples), limit),
            )
            for number in range(self.groups * self.samples)
        ]

    def engines(self, host_devices: HostDevices) -> list[ContinuousBatch]:
        """One for each copy of the model on a rig."""
        limits = Limits(
            slots=self.slots,
            cache_tokens=kv_capacity_tokens(self.shape, host_devices),
            reserve_tokens=host_devices.assumptions.admission_reserve_tokens,
            token_scale=TOKEN_SCALE,
        )
        cost = engine_cost(self.shape, host_devices)
        return [
            ContinuousBatch(cost, limits, vocabulary=self.shape.vocabulary)
            for _ in range(host_devices.replicas)
        ]

    def training_s(self, train: TrainingCost) -> float:
        """Seconds to train on all responses, the optimizer's step among them."""
        lengths = [(one.prompt + one.end) * TOKEN_SCALE for one in self.requests()]
        return train.micro_batch(lengths) + (MICRO_BATCHES - 1) * train.micro_batch_s + train.step_s


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step: until the last response, and in all."""

    rollout_s: float
    step_s: float


def rollout_s(fleet: Fleet, engines: list[ContinuousBatch], leaving: int = 0, leave_s: float = 0.0) -> float:
    """Seconds until every response is complete. The first `leaving` engines stop at `leave_s`, and their
    requests go on elsewhere from the last token; if there are no other engines, they stay."""
    queue = deque(fleet.requests())
    progress = {entry.ticket: entry for entry in queue}
    held: list[dict[int, Entry]] = [{} for _ in engines]
    stays = leaving >= len(engines)
    heap = [(0.0, number) for number in range(len(engines))]
    share = -(-len(queue) // max(1, len(engines) - (0 if stays else leaving)))
    end_s = 0.0
    while heap:
        now_s, number = heapq.heappop(heap)
        engine = engines[number]
        if number < leaving and not stays and now_s >= leave_s:
            queue.extendleft(progress[ticket] for ticket in held[number])
            held[number] = {}
            continue
        while queue and len(held[number]) < min(fleet.slots, share):
            entry = queue.popleft()
            held[number][entry.ticket] = entry
            engine.add([entry])
        if engine.idle:
            if queue or any(held):  # an engine may hand requests over: look again soon
                heapq.heappush(heap, (now_s + 1.0, number))
            continue
        output, seconds = engine.turn()
        for ticket, flags in zip(output.tickets.tolist(), output.flags.tolist(), strict=True):
            entry = progress[ticket]
            progress[ticket] = Entry(
                ticket, entry.key, entry.prompt_id, entry.prompt, entry.made + 1, entry.end
            )
            if flags & _FINISHED:
                held[number].pop(ticket)
                end_s = max(end_s, now_s + seconds)
        heapq.heappush(heap, (now_s + seconds, number))
    return end_s


def colocated_step(fleet: Fleet, host_devices: HostDevices, train: TrainingCost) -> StepTimes:
    """Rollout on all devices of the trainer, then training."""
    rolled_s = rollout_s(fleet, fleet.engines(host_devices))
    return StepTimes(rolled_s, rolled_s + fleet.training_s(train))


def hybrid_step(
    fleet: Fleet, reserved: HostDevices, instance: HostDevices, count: int, train: TrainingCost
) -> StepTimes:
    """The best seeding window with `count` instances: the trainer's devices roll out first, then train on the
    responses that arrive, as RLBoost's Algorithm 1 settles on."""
    training_s = fleet.training_s(train)
    last_s = training_s / MICRO_BATCHES + train.step_s
    best = StepTimes(0.0, float("inf"))
    longest_s = colocated_step(fleet, reserved, train).rollout_s
    for window in range(WINDOWS):
        leave_s = longest_s * window / WINDOWS
        engines = fleet.engines(reserved)
        leaving = len(engines)
        engines += [engine for _ in range(count) for engine in fleet.engines(instance)]
        rolled_s = rollout_s(fleet, engines, leaving, leave_s)
        step_s = max(leave_s + training_s, rolled_s + last_s)
        if step_s < best.step_s:
            best = StepTimes(rolled_s, step_s)
    return best
