"""Claims: the paper's figures (R1 to R13) and ours beside them, seed by seed.

Owns the arithmetic from results of cells to each figure. Pure. The reasons of differences are written by
hand, in `words.toml`, after looking.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from bench.evaluation import scenarios
from bench.evaluation.cells import KILLS_S, LIMITS, SEGMENTS, Cell
from bench.evaluation.grid import at_choice
from bench.evaluation.setups import HARDER, MODELS, PREEMPTIBLE_PER_HOUR, RESERVED_PER_HOUR
from bench.evaluation.simulated import CellResult

GPU_RATIO = 4  # GPUs of a reserved host over those of a spot instance


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure. paper: None where the paper gives a direction only. ours: one value a seed. unit: "x", "%",
    "", or "s"; percents are of 100."""

    id: str
    what: str
    unit: str
    paper: float | None
    ours: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return statistics.mean(self.ours)


class Results:
    """Results of the cells, with queries."""

    def __init__(self, results: Iterable[CellResult]) -> None:
        self._all = {result.cell: result for result in results if result.ok}

    def seeds(self, **wanted: object) -> dict[int, CellResult]:
        """The one cell with these attributes, by seed; other attributes have their defaults."""
        found: dict[int, CellResult] = {}
        fields = {"segment": "", "variant": "gleaner", "limit": 0, "token_scale": 0, **wanted}
        for cell, result in self._all.items():
            if all(getattr(cell, name) == value for name, value in fields.items()):
                found.setdefault(cell.seed, result)
        return dict(sorted(found.items()))

    def of(self, cell: Cell) -> CellResult | None:
        """The result of this cell."""
        return self._all.get(cell)

    def every(self) -> list[CellResult]:
        """All successful results."""
        return list(self._all.values())

    def base(self, model: str, limit: int = 0) -> dict[int, CellResult]:
        """The co-located runs, by seed."""
        return self.seeds(kind="colocated", model=model, limit=limit, hosts=0)

    def late(self, seed: int, kind: str, variant: str, after_s: float) -> CellResult | None:
        """The scenario whose event happens so long after its step's start."""
        calm = self.seeds(kind="kill", model="14b", at_s=0.0).get(seed)
        if calm is None:
            return None
        at_s = round(calm.steps[-1].begin_s, 1) + after_s
        return self.seeds(kind=kind, model="14b", variant=variant, at_s=at_s).get(seed)


def all_claims(results: Results) -> list[Claim]:
    """Claims in the paper's order; claims without simulated cells are left out."""
    parts = (_segments, _others, _static, _lengths, _waves, _kills, _prices)
    return [claim for part in parts for claim in part(results) if claim.ours]


def cost_rate(result: CellResult, preemptible_per_hour: float = PREEMPTIBLE_PER_HOUR) -> float:
    """Price of an hour."""
    model = {**MODELS, **HARDER}[result.cell.model]
    return model.hosts * RESERVED_PER_HOUR + result.hosts * preemptible_per_hour


def gain(result: CellResult, base: CellResult) -> float:
    """Throughput over that of the co-located run."""
    return result.tokens_per_s / base.tokens_per_s


def cost_gain(result: CellResult, base: CellResult) -> float:
    """Tokens per money over those of the co-located run."""
    return gain(result, base) * cost_rate(base) / cost_rate(result)


def over_segments(
    results: Results, model: str, of: Callable[[CellResult, CellResult], float], variant: str = "gleaner"
) -> list[float]:
    """The mean over the segments, for each seed that has all of them."""
    base = results.base(model)
    by = [results.seeds(kind="segment", model=model, segment=name, variant=variant) for name in SEGMENTS]
    seeds = [seed for seed in base if all(seed in of_segment for of_segment in by)]
    return [statistics.mean(of(one[seed], base[seed]) for one in by) for seed in seeds]


def segment_gains(results: Results, model: str, segment: str, variant: str = "gleaner") -> list[float]:
    """Throughput in one segment, by seed."""
    base = results.base(model)
    found = results.seeds(kind="segment", model=model, segment=segment, variant=variant)
    return [gain(found[seed], base[seed]) for seed in found if seed in base]


def _percent(values: Iterable[float]) -> list[float]:
    return [100 * (value - 1) for value in values]


def _segments(results: Results) -> Iterator[Claim]:
    paper = {"8b": (1.66, 34.0, 36.0, 3.76), "14b": (1.97, 49.0, 53.0, 5.07), "32b": (1.51, 28.0, 45.0, 5.66)}
    for model, (throughput, *_) in paper.items():
        ours = over_segments(results, model, gain)
        yield Claim("R1", f"{model.upper()}: throughput over veRL, mean of A, B, C", "x", throughput, ours)
    for model, (_, money, in_a, _) in paper.items():
        ours = _percent(over_segments(results, model, cost_gain))
        yield Claim("R2", f"{model.upper()}: tokens a dollar over veRL, mean of A, B, C", "%", money, ours)
        yield Claim("R2", f"{model.upper()}: the same in A", "%", in_a, _money(results, model, "A"))
    yield Claim("R2", "14B: the same in B", "%", 37.0, _money(results, "14b", "B"))
    for model, (*_, hosts) in paper.items():
        used = over_segments(results, model, lambda one, _: one.hosts)
        yield Claim("R2", f"{model.upper()}: instances used (derived)", "", hosts, used)


def _money(results: Results, model: str, segment: str) -> list[float]:
    base = results.base(model)
    found = results.seeds(kind="segment", model=model, segment=segment)
    return _percent(cost_gain(found[seed], base[seed]) for seed in found if seed in base)


def _others(results: Results) -> Iterator[Claim]:
    """veRL on twice the hosts, and a disaggregated job on reserved instances."""
    penalties: list[float] = []
    double, base = results.seeds(kind="colocated", model="14b", hosts=2), results.base("14b")
    for seed, twice in double.items():
        best = max(
            (found[seed].tokens_per_s for name in SEGMENTS if seed in (found := _of(results, "14b", name))),
            default=0.0,
        )
        if best:
            penalties.append(100 * (1 - best / (1.24 * twice.tokens_per_s)))
    yield Claim(
        "R3",
        "14B: two-host penalty of veRL.2x at which the best segment is 24 % ahead",
        "%p",
        None,
        penalties,
    )
    ideal = [gain(double[seed], base[seed]) for seed in double if seed in base]
    yield Claim("R3", "14B: veRL.2x without any penalty, over veRL", "x", None, ideal)
    for model, higher in (("8b", 62.0), ("14b", 75.0), ("32b", 45.0)):
        apart = results.seeds(kind="static", model=model, variant="disaggregated")
        in_a, all_of = _of(results, model, "A"), [_of(results, model, name) for name in SEGMENTS]
        ahead = [in_a[seed].tokens_per_s / apart[seed].tokens_per_s for seed in apart if seed in in_a]
        if model == "14b":
            yield Claim("R4", "14B: throughput in A over Disagg.BAL", "%", 2.0, _percent(ahead))
        dearer = []
        for seed, one in apart.items():
            if all(seed in found for found in all_of):
                tokens = statistics.mean(found[seed].tokens_per_s for found in all_of)
                cost = statistics.mean(cost_rate(found[seed]) for found in all_of)
                per_token = cost_rate(one, RESERVED_PER_HOUR / GPU_RATIO) / one.tokens_per_s
                dearer.append(per_token / (cost / tokens))
        yield Claim("R4", f"{model.upper()}: cost of a token with Disagg.BAL", "%", higher, _percent(dearer))


def _of(results: Results, model: str, segment: str) -> dict[int, CellResult]:
    return results.seeds(kind="segment", model=model, segment=segment)


def static(results: Results, hosts: int) -> dict[int, CellResult]:
    """14B with so many instances, by seed: the steps after the first one, for whose window there was no
    measurement yet."""
    found = results.seeds(kind="static", model="14b", hosts=hosts, variant="static")
    return {seed: msgspec.structs.replace(one, steps=one.steps[1:]) for seed, one in found.items()}


def _static(results: Results) -> Iterator[Claim]:
    base = results.base("14b")
    one, six = static(results, 1), static(results, 6)
    yield Claim("R5", "14B, one instance: throughput over none", "x", 1.37, _ratios(gain, one, base))
    yield Claim("R5", "14B, one instance: cost of a token", "%", -22.0, _percent(_ratios(_cost, one, base)))
    yield Claim("R5", "14B, six instances over one: throughput", "x", 1.64, _ratios(gain, six, one))
    yield Claim(
        "R5", "14B, six instances over one: cost of a token", "%", -21.0, _percent(_ratios(_cost, six, one))
    )
    for model in MODELS:
        alone = results.base(model).values()
        shares = [_sum(r, "seeding_s") / _sum(r, "step_s") for r in alone]
        what = f"{model.upper()}: share of rollout in a co-located step (paper: up to)"
        yield Claim("R6", what, "share", 73.0, [100 * share for share in shares])


def _sum(result: CellResult, what: str) -> float:
    return float(sum(getattr(step, what) for step in result.steps))


def _cost(result: CellResult, base: CellResult) -> float:
    return 1 / cost_gain(result, base)


def _ratios(
    of: Callable[[CellResult, CellResult], float], ours: dict[int, CellResult], base: dict[int, CellResult]
) -> list[float]:
    return [of(ours[seed], base[seed]) for seed in ours if seed in base]


def chosen(results: Results, limit: int) -> dict[int, CellResult]:
    """14B with the chosen number of instances, by seed."""
    choices = results.seeds(kind="chosen", model="14b", limit=limit)
    return {seed: here for seed, one in choices.items() if (here := results.of(at_choice(one))) is not None}


def _lengths(results: Results) -> Iterator[Claim]:
    paper = {LIMITS[0]: (1.47, 1.24, 3.0), 0: (2.22, 1.61, 6.0)}
    for limit in (*LIMITS, 0):
        base = results.base("14b", limit)
        found = chosen(results, limit)
        known = paper.get(limit, (None, None, None))
        name = f"14B, responses of at most {limit or 14_336:,}"
        yield Claim("R7", f"{name}: throughput over veRL", "x", known[0], _ratios(gain, found, base))
        yield Claim(
            "R7", f"{name}: tokens a dollar over veRL", "x", known[1], _ratios(cost_gain, found, base)
        )
        yield Claim("R7", f"{name}: instances", "", known[2], [one.hosts for one in found.values()])


def after_the_wave(result: CellResult) -> CellResult:
    """Its steps from the one on in which the instances leave."""
    steps = [step for step in result.steps if step.begin_s + step.step_s > scenarios.WAVE_S]
    return msgspec.structs.replace(result, steps=steps)


def _waves(results: Results) -> Iterator[Claim]:
    by = {
        variant: {
            seed: after_the_wave(one)
            for seed, one in results.seeds(kind="wave", model="14b", variant=variant).items()
        }
        for variant in ("gleaner", "no-seeding", "algorithm-1", "algorithm-1-no-memory")
    }
    without, full = by["no-seeding"], by["gleaner"]
    memory, bare = by["algorithm-1"], by["algorithm-1-no-memory"]
    yield Claim(
        "R8",
        "14B, 1 of 6 and back to 6: throughput without seeding",
        "%",
        -19.0,
        _percent(_ratios(gain, without, full)),
    )
    yield Claim(
        "R9",
        "the same, by Algorithm 1: throughput with its memory over none",
        "%",
        6.0,
        _percent(_ratios(gain, memory, bare)),
    )


def overhead_s(results: Results, seed: int, variant: str, after_s: float) -> float | None:
    """Seconds that the step takes longer in which three of six leave so long after its start."""
    calm = results.seeds(kind="kill", model="14b", at_s=0.0).get(seed)
    hit = results.late(seed, "kill", variant, after_s)
    return hit.steps[-1].step_s - calm.steps[-1].step_s if calm is not None and hit is not None else None


def _kills(results: Results) -> Iterator[Claim]:
    for after_s, less in zip(KILLS_S, (-33.0, -76.0), strict=True):
        ours = []
        for seed in results.seeds(kind="kill", model="14b", at_s=0.0):
            migrated = overhead_s(results, seed, "gleaner", after_s)
            anew = overhead_s(results, seed, "recompute", after_s)
            if migrated is not None and anew is not None and anew > 0:
                ours.append(migrated / anew)
        what = (
            f"14B, 3 of 6 go {after_s:.0f} s into a step: overhead of migrating over that of beginning anew"
        )
        yield Claim("R11", what, "%", less, _percent(ours))


def break_even(results: Results, model: str) -> list[float]:
    """The spot discount in percent from which on tokens cost no more than with veRL; by seed."""
    found = []
    nodes = MODELS[model].hosts
    for speed, hosts in zip(
        over_segments(results, model, gain),
        over_segments(results, model, lambda one, _: one.hosts),
        strict=True,
    ):
        price = (speed - 1) * nodes * RESERVED_PER_HOUR / hosts
        found.append(100 * (1 - price * GPU_RATIO / RESERVED_PER_HOUR))
    return found


def _prices(results: Results) -> Iterator[Claim]:
    for model in MODELS:
        what = f"{model.upper()}: spot discount at which a token costs as much as with veRL"
        yield Claim("R12", what, "share", 30.0, break_even(results, model))
