"""Plot of docs/evaluation_rounds.md: the gain by model, and over the share of hard prompts."""

from pathlib import Path

from matplotlib import pyplot

from bench.evaluation.plots import DPI, OURS, PAPER
from bench.evaluation.rollpacker import grid, page
from bench.evaluation.rollpacker.periods import Found
from bench.evaluation.rollpacker.setups import MODELS


def write(found: Found, file: Path) -> None:
    """Draw what there is."""
    drawing, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4))
    for at, model in enumerate(MODELS):
        left.bar(at - 0.2, page.PAPER_GAIN[model], 0.36, color=PAPER, label=None if at else "paper")
        ours = [one.gain for one in page.gains(found, model, "tail").values()]
        if ours:
            left.bar(at + 0.2, sum(ours) / len(ours), 0.36, color=OURS, label=None if at else "simulated")
            left.plot([at + 0.2] * len(ours), ours, "k.", markersize=4)
    left.set_xticks(range(len(MODELS)), list(MODELS))
    left.set_title("plain step over a step with tail batching", fontsize=10)
    left.legend(fontsize=8)
    points = [(hard, one.gain) for hard, some in page.swept_gains(found).items() for one in some.values()]
    right.plot([hard for hard, _ in points], [gain for _, gain in points], "o", color=OURS, markersize=4)
    right.set_title("14B/16k, over the share of hard prompts (%)", fontsize=10)
    right.set_xticks(grid.HARD_SHARES)
    right.set_ylim(bottom=0)
    for panel in (left, right):
        panel.axhline(1, color="grey", linewidth=0.8, linestyle="--")
    drawing.tight_layout()
    drawing.savefig(file, dpi=DPI)
    pyplot.close(drawing)
