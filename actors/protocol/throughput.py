"""EnginePace: measured decode speed of engines, in messages.

Owns the message shapes. `dispatch.throughput_table` owns the measurement; `gleaner.actors.cluster.step_model`
plans a step with it.
"""

import msgspec

from gleaner.supervisor import Message


class EnginePace(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of a kind. Seconds of a decode step: `step_s`, plus `row_s` for each request that is
    decoded, plus `context_s` for each token in their caches. `prefill_token_s`: of a token whose cache is
    computed, 0: not measured. slots, cache_tokens: requests, and tokens in the cache, that it takes at a
    time; 0: any number. weight_tokens: the size of its weights, in tokens of its cache; 0: not known.
    """

    step_s: float
    context_s: float
    row_s: float = 0.0
    prefill_token_s: float = 0.0
    slots: int = 0
    cache_tokens: int = 0
    weight_tokens: int = 0


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity of an engine: requests, and tokens in its cache, at a time; 0: any number. weight_tokens:
    as in `EnginePace`."""

    slots: int = 0
    cache_tokens: int = 0
    weight_tokens: int = 0


class Paces(Message, frozen=True):
    """Asks the LoadBalancer how fast instances decode."""


class PacesAre(Message, frozen=True):
    """By kind, of a whole instance with all of its engines; none for a kind that has not been measured.
    retracted: requests whose caches engines gave up for others, by kind, since the LoadBalancer's start."""

    instances: dict[str, EnginePace]
    retracted: dict[str, int] = {}


def engine_pace(instance: EnginePace | None, engines: float, room: Room) -> EnginePace | None:
    """The pace of one engine of such an instance: what an instance does for all of its requests, each engine
    does for its share of them, at the same time."""
    if instance is None:
        return None
    return EnginePace(
        step_s=instance.step_s,
        row_s=instance.row_s * engines,
        context_s=instance.context_s * engines,
        prefill_token_s=instance.prefill_token_s * engines,
        slots=room.slots,
        cache_tokens=room.cache_tokens,
        weight_tokens=room.weight_tokens,
    )


class Work(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Sums over turns of an engine: seconds, decode steps, tokens decoded, tokens in the cache of the rows
    (summed over the steps), tokens whose cache was computed."""

    seconds: float
    steps: float
    tokens: float
    attended: float
    prefilled: float = 0.0

    def plus(self, other: "Work", weight: float = 1.0) -> "Work":
        """This, `weight` times, and the other."""
        return Work(
            seconds=self.seconds * weight + other.seconds,
            steps=self.steps * weight + other.steps,
            tokens=self.tokens * weight + other.tokens,
            attended=self.attended * weight + other.attended,
            prefilled=self.prefilled * weight + other.prefilled,
        )

    @property
    def bucket(self) -> tuple[int, int]:
        """Octaves of the rows of a step and of the mean context of a row; (-1, -1) with prefill in it."""
        if self.prefilled or not self.tokens:
            return -1, -1
        return int(self.tokens / self.steps).bit_length(), int(self.attended / self.tokens).bit_length()


NOTHING = Work(seconds=0.0, steps=0.0, tokens=0.0, attended=0.0)
