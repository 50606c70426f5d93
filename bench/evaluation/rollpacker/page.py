"""Generated parts of docs/evaluation_rounds.md: tables from results, between marks.

Owns the tables. The page's other text is written by hand, after reading the results. A figure without a
result is not in a table.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from bench.evaluation.cells import SEGMENTS, Cell
from bench.evaluation.rollpacker import grid
from bench.evaluation.rollpacker.chosen import chosen_text, factors_text, returning_text
from bench.evaluation.rollpacker.known_lengths import known_text
from bench.evaluation.rollpacker.periods import Found, Shares, in_common, rollout_share
from bench.evaluation.rollpacker.setups import HARD, MODELS
from bench.evaluation.rollpacker.wide_tail import wide_text
from bench.page_sections import put

PAPER_GAIN = {"7b-8k": 1.30, "14b-16k": 1.48, "32b-32k": 2.21}
"""Paper, table 2: tail batching alone, a step."""
PAPER_SHARE = {"14b-16k": 72 / (72 + 23)}
"""Paper, table 1 (math): rollout in rollout and training."""
EXPECTED = {"tail": (4, 1), "tail-1.125": (8, 1), "tail-1.5": (2, 1)}
"""Short and long rounds of a period that must hold exactly: 1 / (factor - 1), and one."""
WORDS = {
    "tail": "defaults: 1.25 x prompts, own seeds, race of tokens",
    "samples": "1.25 x samples alone",
    "both": "1.25 x prompts and 1.25 x samples",
    "new-seeds": "1.25 x prompts, new seeds",
    "by-time": "1.25 x prompts, race of time",
    "preset": "the paper as printed: both, new seeds, race of time",
}


def write(file: Path, found: Found) -> None:
    """Bring the page's tables up to date."""
    put(file, "gains", gains_text(found))
    put(file, "ablations", ablations_text(found))
    put(file, "hard shares", hard_text(found))
    put(file, "where it does not pay", few_text(found))
    put(file, "periods", periods_text(found))
    put(file, "rounds by prediction", chosen_text(found))
    put(file, "fixed factors", factors_text(found))
    put(file, "history of problems", returning_text(found))
    put(file, "wide tail", wide_text())
    put(file, "known lengths", known_text())
    put(file, "round cells", cells_text(found))


def gains(
    found: Found, model: str, variant: str, steps: int = grid.STEPS, until: int | None = None
) -> dict[int, Shares]:
    """Of a co-located job of a model, by seed, against the plain one of 10 steps; up to the step `until`."""

    def plain(seed: int) -> Cell:
        return grid.alone(model, "off", seed, grid.STEPS)

    return found.pairs(lambda seed: grid.alone(model, variant, seed, steps), plain, grid.SEEDS, until)


def swept_gains(found: Found) -> dict[int, dict[int, Shares]]:
    """Of one period of the defaults, by share of hard prompts and seed."""
    tables = [_pairs(found, partial(_swept, hard)) for hard in grid.HARD_SHARES]
    return dict(zip(grid.HARD_SHARES, in_common(tables), strict=True))


def gains_text(found: Found) -> str:
    """The paper's gain of a step, and ours with the defaults and with the paper's settings."""
    rows = [
        "| model, limit, devices | steps, seeds | a step: paper | defaults | the paper's settings "
        "| rollout in a plain step (paper) | short round over plain rollout "
        "| long round over plain rollout | tokens aborted | estimated bias |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for model, made in MODELS.items():
        tail, preset = gains(found, model, "tail"), gains(found, model, "preset")
        if not tail:
            continue
        plain = [found.of(grid.alone(model, "off", seed, grid.STEPS)) for seed in tail]
        share = [rollout_share(one) for one in plain if one is not None]
        paper = f" ({PAPER_SHARE[model]:.0%})" if model in PAPER_SHARE else ""
        cells = [
            f"{model.split('-')[0].upper()}, {made.limit:,}, {made.devices} (TP {made.tp})",
            f"{_steps(tail)}, {len(tail)}",
            f"{PAPER_GAIN[model]:.2f} x",
            spread([one.gain for one in tail.values()], ".2f", " x"),
            spread([one.gain for one in preset.values()], ".2f", " x"),
            f"{spread(share, '.0%')}{paper}",
            spread([one.short for one in tail.values()], ".2f"),
            spread([one.long for one in tail.values()], ".2f"),
            spread([one.aborted for one in tail.values()], ".0%"),
            spread([one.shown for one in tail.values()], ".2f"),
        ]
        rows.append(_row(cells))
    return "\n".join(rows)


def ablations_text(found: Found) -> str:
    """Each setting of rounds on the model of ablations, over one period of the same seeds."""
    rows = [
        "| 14B/16k | steps, seeds | a step over plain | short round over plain rollout "
        "| long round over plain rollout | tokens aborted | trained length over the plain job's "
        "| reward minus the plain job's | estimated bias |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    tables = [
        gains(found, grid.LARGE, variant, grid.STEPS if variant in grid.MAIN else grid.PERIOD, grid.PERIOD)
        for variant in WORDS
    ]
    for words, some in zip(WORDS.values(), in_common(tables), strict=True):
        if not some:
            continue
        all_of = list(some.values())
        cells = [
            words,
            f"{_steps(some)}, {len(some)}",
            spread([one.gain for one in all_of], ".2f", " x"),
            spread([one.short for one in all_of], ".2f"),
            spread([one.long for one in all_of], ".2f"),
            spread([one.aborted for one in all_of], ".0%"),
            spread([one.length for one in all_of], ".3f"),
            spread([one.reward for one in all_of], "+.3f"),
            spread([one.shown for one in all_of], ".2f"),
        ]
        rows.append(_row(cells))
    return "\n".join(rows)


def hard_text(found: Found) -> str:
    """The gain of the defaults over the share of hard prompts."""
    rows = [
        "| hard prompts | steps, seeds | a step over plain | short round over plain rollout "
        "| long round over plain rollout | tokens aborted | rollout in a plain step |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for hard, some in swept_gains(found).items():
        if not some:
            continue
        all_of = list(some.values())
        plain = [found.of(grid.swept(hard, "off", seed)) for seed in some]
        cells = [
            f"{hard} %" + (" (assumed elsewhere)" if hard == HARD else ""),
            f"{_steps(some)}, {len(some)}",
            spread([one.gain for one in all_of], ".2f", " x"),
            spread([one.short for one in all_of], ".2f"),
            spread([one.long for one in all_of], ".2f"),
            spread([one.aborted for one in all_of], ".0%"),
            spread([rollout_share(one) for one in plain if one is not None], ".0%"),
        ]
        rows.append(_row(cells))
    return "\n".join(rows)


def few_text(found: Found) -> str:
    """RLBoost's set-up, and RollPacker's job on a fourth of its devices."""
    rows = [
        "| set-up | steps, seeds | a step over plain | step with a short round over a plain one "
        "| step with a long round over a plain one | tokens aborted |",
        "|---|---|---:|---:|---:|---:|",
    ]
    wanted: list[tuple[str, Callable[[str, int], Cell], tuple[str, str]]] = []
    for segment in SEGMENTS:
        words = f"RLBoost: 14B, 8 reserved devices, segment {segment}"
        wanted.append((words, partial(grid.rlboost, segment), grid.RLBOOST))
    wanted.append(("the same with at most two instances", partial(grid.rlboost, ""), grid.RLBOOST))
    fewer = "RollPacker's 14B/16k on 8 devices instead of 32"
    wanted.append((fewer, grid.on_few_devices, ("off", "tail")))
    for words, make, (off, tail) in wanted:
        some = found.pairs(partial(make, tail), partial(make, off), grid.SEEDS)
        if not some:
            continue
        all_of = list(some.values())
        cells = [
            words,
            f"{_steps(some)}, {len(some)}",
            spread([one.gain for one in all_of], ".2f", " x"),
            spread([one.short_step for one in all_of], ".2f"),
            spread([one.long_step for one in all_of], ".2f"),
            spread([one.aborted for one in all_of], ".0%"),
        ]
        rows.append(_row(cells))
    return "\n".join(rows)


def periods_text(found: Found) -> str:
    """Periods as they were, beside what must hold; the gain at each factor; the effect of the token scale."""
    rows = [
        "| `rounds.prompts_factor` | a period must be | it was | periods, seeds | a step over plain |",
        "|---:|---|---|---:|---:|",
    ]
    for variant, (short, long) in EXPECTED.items():
        steps = grid.FACTORS.get(variant, grid.STEPS)
        some = gains(found, grid.LARGE, variant, steps)
        if not some:
            continue
        seen = [period for one in some.values() for period in one.periods]
        was = ", ".join(f"{a} + {b}" for a, b in sorted(set(seen)))
        factor = variant.partition("-")[2] or "1.25"
        gain = spread([one.gain for one in some.values()], ".2f", " x")
        rows.append(_row([factor, f"{short} + {long}", was, f"{len(seen)}, {len(some)}", gain]))
    usual = gains(found, grid.LARGE, "tail", until=grid.PERIOD)
    usual, half = in_common([usual, _pairs(found, grid.fine)])
    if usual and half:
        two = [spread([one.gain for one in some.values()], ".2f", " x") for some in (usual, half)]
        rows += [
            "",
            f"A plain step over a step of the defaults is {two[0]} with {MODELS[grid.LARGE].scale} tokens of "
            f"the model in a message token, and {two[1]} with {grid.FINE_SCALE} (seed by seed, one period).",
        ]
    return "\n".join(rows)


def cells_text(found: Found) -> str:
    """What is there, and its cost."""
    every = found.every()
    minutes = sum(one.cpu_s for one in every) / 60
    hours = sum(one.virtual_s for one in every) / 3600
    wanted = {cell for seed in grid.SEEDS for cell in grid.cells(seed)}
    missing = len(wanted - {one.cell for one in every})
    text = f"{len(every)} cells, {hours:.0f} simulated hours, {minutes:.0f} minutes of one core's time."
    return text + (f" {missing} cells of the grid have no result yet." if missing else "")


def spread(values: Sequence[float | None], form: str, unit: str = "") -> str:
    """The mean, and the least and the most where they differ as shown; "-" without values."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, least, most = (f"{v:{form}}" for v in (sum(known) / len(known), min(known), max(known)))
    return f"{mean}{unit}" if least == most else f"{mean}{unit} ({least} to {most})"


def _swept(hard: int, variant: str, seed: int) -> Cell:
    return grid.swept(hard, variant, seed)


def _pairs(found: Found, make: Callable[[str, int], Cell]) -> dict[int, Shares]:
    return found.pairs(partial(make, "tail"), partial(make, "off"), grid.SEEDS, grid.PERIOD)


def _steps(some: dict[int, Shares]) -> str:
    return ", ".join(str(count) for count in sorted({one.steps for one in some.values()}))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
