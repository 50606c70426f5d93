"""`WidthPlanner`: the width of the engines of preemptible hosts, from step to step.

Owns what is known of rounds and widths, as a value that the Scheduler journals. Pure. The rules are in
`widths`, predictions in `width_model`.
"""

from collections.abc import Sequence

import msgspec
from msgspec import structs

from gleaner.actors.cluster.round_parts import with_begun
from gleaner.actors.cluster.seeding import SeedingState
from gleaner.actors.cluster.seeding_model import LEAST_STEP_S
from gleaner.actors.cluster.step_statistics import StepStatistics, ready, with_machines
from gleaner.actors.cluster.width_model import paces_of, round_times
from gleaner.actors.cluster.widths import ROUNDS, KindWidth, published, shortest
from gleaner.actors.protocol.step_times import StepTimes, finite
from gleaner.actors.protocol.throughput import EnginePace
from gleaner.configs.schema import Engine


class WidthState(msgspec.Struct, frozen=True, kw_only=True):
    """width: of `step`, or of the coming one. kinds: by kind of round. paces: of one engine, as measured last
    at each width. counted: `StepTimes.retracted` of the last step. step: whose width is decided. idle_s: of
    the last steps, `StepTimes.idle_s`, the newest last."""

    width: int
    kinds: dict[str, KindWidth] = {}
    paces: dict[int, EnginePace] = {}
    counted: int = 0
    step: int = -1
    idle_s: tuple[float, ...] = ()


class WidthPlanner:
    """See the module."""

    def __init__(self, settings: Engine) -> None:
        self._settings = settings

    def initial(self) -> WidthState | None:
        """Of the first step; None where the settings have no widths."""
        widths = self._settings.widths
        return WidthState(width=widths[0]) if widths else None

    def early(self, state: WidthState, seeding: SeedingState, times: StepTimes, step: int) -> WidthState:
        """The state with the width of `step`, decided while the trainer still updates the weights; unchanged
        where it is decided, or data are missing. seeding, times: as far as they are known by then. A step
        with which rounds begin by them is a short round. The least idle time of the last steps hides a part
        of the relaunch, or all of it."""
        hidden_s = min(state.idle_s, default=0.0)
        relaunch_s = max(0.0, self._settings.relaunch_s - hidden_s)
        if step <= state.step:
            return state
        after, decided = self._next(state, seeding, with_begun(times, seeding.tail_gain), relaunch_s)
        return structs.replace(after, step=step) if decided else state

    def next(self, state: WidthState, seeding: SeedingState, times: StepTimes, step: int) -> WidthState:
        """The state of the coming step; its width is that of `early`, if that has decided. seeding: the plan
        of that step."""
        if times.idle_s is not None:
            state = structs.replace(state, idle_s=(*state.idle_s, finite(times.idle_s))[-ROUNDS:])
        if step <= state.step:
            return state
        times = with_begun(times, seeding.tail_gain)
        after, decided = self._next(state, seeding, times, self._settings.relaunch_s)
        return structs.replace(after, step=step) if decided else after

    def _next(
        self, state: WidthState, seeding: SeedingState, times: StepTimes, relaunch_s: float
    ) -> tuple[WidthState, bool]:
        """The state after a step, and whether there were data to decide by."""
        seen = times.seen
        if self._settings.width_plan == "off" or seen is None or times.mean_prem <= 0:
            return state, False
        paces = state.paces if seen.preemptible is None else {**state.paces, state.width: seen.preemptible}
        devices = max(1, round(times.instance_engines)) * state.width
        widths = [width for width in sorted(self._settings.widths) if devices % width == 0]
        now = structs.replace(state, paces=paces, counted=times.retracted)
        if self._settings.width_plan == "paper":
            return self._published(now, times, _since(state, times), widths), True
        width = self._predicted(now, seeding, times, widths, devices, relaunch_s)
        return (now, False) if width is None else (structs.replace(now, width=width), True)

    def _published(
        self, state: WidthState, times: StepTimes, retracted: int, widths: Sequence[int]
    ) -> WidthState:
        """The state after a round with so many retractions, by the paper's rule. A kind without a round yet
        has the present width."""
        seen, rounds = times.seen, times.rounds
        assert seen is not None, "checked by its caller"
        launched = round(seen.requests * (seen.groups + seen.surplus) / max(1, seen.groups))
        done, ahead = (rounds.done, rounds.ahead) if rounds is not None else ("plain", "plain")
        known = state.kinds.get(done, KindWidth(width=state.width))
        kinds = {**state.kinds, done: published(known, retracted, launched, widths)}
        return structs.replace(state, kinds=kinds, width=kinds.get(ahead, kinds[done]).width)

    def _predicted(
        self,
        state: WidthState,
        seeding: SeedingState,
        times: StepTimes,
        widths: Sequence[int],
        devices: int,
        relaunch_s: float,
    ) -> int | None:
        """The width of the coming step by prediction; None while data are missing. relaunch_s: what of a
        relaunch is not hidden."""
        learnt = _learnt(seeding, times)
        model = ready(learnt) if learnt is not None else None
        if model is None or times.seen is None or times.seen.step_s < LEAST_STEP_S or times.next_prem < 1:
            return None
        count = float(ROUNDS)
        if times.rounds is not None and times.rounds.ahead != "plain":
            count = min(times.rounds.shorts, 1e6) if times.rounds.ahead == "short" else 1.0
        paces = paces_of(state.paces, widths)
        rounds_s = round_times(*model, paces, devices, times.next_prem)
        return shortest(state.width, rounds_s, count, relaunch_s)


def _since(state: WidthState, times: StepTimes) -> int:
    """Retractions since the last step; those since its restart, of a LoadBalancer that was restarted."""
    return times.retracted - (state.counted if times.retracted >= state.counted else 0)


def _learnt(seeding: SeedingState, times: StepTimes) -> StepStatistics | None:
    """The lengths of the coming kind of round, on the machines as they were measured last."""
    if times.rounds is None:
        return seeding.learnt
    ahead, done = seeding.kinds.get(times.rounds.ahead), seeding.kinds.get(times.rounds.done)
    if ahead is None or done is None or ahead.learnt is None or done.learnt is None:
        return None
    return with_machines(ahead.learnt, done.learnt)
