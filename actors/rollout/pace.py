"""How fast engines decode: seconds of a decode step against the tokens in the cache, from what arrives.

Owns the sums of a straight line through what was seen of each kind of instance. Pure.

A decode step reads the weights and the cache of keys and values, so on a given engine it takes
`step_s + context * context_s` (context: tokens in the cache of the requests that are decoded). Each step is a
frame with a row for each request, so what came between two looks at an instance gives one point of that line.
Points weigh as many tokens as they stand for, and half as much with every batch that ends: engines that are
replaced by others are forgotten.
"""

from dataclasses import dataclass

import msgspec

LEAST_FRAMES = 3  # of each engine between two points: when a frame came is known to a turn
MAX_INSTANCES = 4096  # of which the last look is kept
FORGET = 0.5  # weight of a point at the end of each batch that it has seen


class EnginePace(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of a kind.

    step_s: of a decode step with an empty cache; context_s: more of it for each token in the cache.
    slots, cache_tokens: requests, and tokens in the cache, that it takes at a time; 0: any number.
    """

    step_s: float
    context_s: float
    slots: int = 0
    cache_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """An instance at a moment. frames, rows: totals; frame_s: when the last frame came; live: requests that
    it has; context: mean tokens of those that it has begun, prompts among them."""

    frames: int
    rows: int
    frame_s: float
    live: int
    context: float


@dataclass(slots=True)
class _Line:
    """Weighted sums: 1, x, x squared, y, x times y."""

    n: float = 0.0
    x: float = 0.0
    xx: float = 0.0
    y: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float, weight: float) -> None:
        self.n += weight
        self.x += weight * x
        self.xx += weight * x * x
        self.y += weight * y
        self.xy += weight * x * y

    def forget(self) -> None:
        for name in ("n", "x", "xx", "y", "xy"):
            setattr(self, name, getattr(self, name) * FORGET)

    def pace(self) -> EnginePace | None:
        """The line; level where all points lie at one context, or where it would fall."""
        if self.n <= 0:
            return None
        mean_x, mean_y = self.x / self.n, self.y / self.n
        spread = self.xx / self.n - mean_x * mean_x
        slope = (self.xy / self.n - mean_x * mean_y) / spread if spread > 1e-9 * (1.0 + mean_x**2) else 0.0
        slope = min(max(slope, 0.0), mean_y / mean_x if mean_x > 0 else 0.0)
        return EnginePace(step_s=max(0.0, mean_y - slope * mean_x), context_s=slope)


class Paces:
    """See the module."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._looks: dict[str, Look] = {}

    def look(self, name: str, kind: str, engines: int, now: Look) -> None:
        """Instance `name` of `kind`, with so many engines, looks like this now."""
        before = self._looks.get(name)
        idled = before is not None and (not before.live or not now.live)
        new = now.frames - before.frames if before is not None else 0
        if before is not None and now.live and 0 <= new < (1 if idled else LEAST_FRAMES * engines):
            return
        if before is None and len(self._looks) >= MAX_INSTANCES:
            del self._looks[next(iter(self._looks))]
        self._looks[name] = now
        if before is None or idled:  # from the first frame after a pause on, time is time of decoding
            return
        frames, seconds = now.frames - before.frames, now.frame_s - before.frame_s
        rows = (now.rows - before.rows) / frames if frames > 0 else 0.0
        if rows <= 0 or seconds <= 0:
            return  # it was replaced
        line = self._lines.setdefault(kind, _Line())
        context = rows * (before.context + now.context) / 2
        line.add(context, seconds * engines / frames, now.rows - before.rows)

    def forget(self, name: str) -> None:
        """This instance is gone, or was replaced."""
        self._looks.pop(name, None)

    def batch_ended(self) -> None:
        """Older points count less from now on."""
        for line in self._lines.values():
            line.forget()

    def of(self, kind: str) -> EnginePace | None:
        """One engine of this kind; None where nothing was seen."""
        line = self._lines.get(kind)
        return line.pace() if line is not None else None
