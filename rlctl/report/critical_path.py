"""Critical path of a run: seconds by stage, over all measured steps.

The path is what the ends of steps waited for. Owns the sums and the picture. Pure: records of a history go
in, numbers and SVG come out.
"""

from collections.abc import Sequence
from statistics import mean, median
from typing import Any

import msgspec

from gleaner.actors.training.records import StepPath
from gleaner.actors.training.step_path import STAGES

COLOURS = {
    "control": "other", "evaluation": "evaluation", "weights": "weights",
    "place": "preemptible", "prefill": "preemptible", "decode": "preemptible", "verdict": "accent",
    "hand_out": "accent", "train": "training", "update": "training", "seal": "training",
    "publish": "weights", "record": "training", "messages": "other",
}  # fmt: skip
"""Of the bars, by stage: names of `plots.COLOURS`."""
LEAST_S = 5e-4
"""Stages that never took as long are left out of the picture."""


class StageTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one stage of the critical path over the steps of a run. share: of the mean step."""

    stage: str
    mean_s: float
    median_s: float
    most_s: float
    share: float


class ScoringTime(msgspec.Struct, frozen=True, kw_only=True):
    """Means of a step. scoring_s: seconds in which any response waited for its verdict; hidden_s: of those,
    beside decoding or training; exposed_s: those for which the end of the step waited, stage `verdict`."""

    scoring_s: float
    hidden_s: float
    exposed_s: float

    @property
    def words(self) -> str:
        """For people."""
        share = f" ({self.hidden_s / self.scoring_s:.0%})" if self.scoring_s > 0 else ""
        return (
            f"responses waited for verdicts in {self.scoring_s:.3f} s of a step: "
            f"{self.hidden_s:.3f} s{share} beside decoding or training, {self.exposed_s:.3f} s exposed"
        )


def scoring_time(paths: Sequence[StepPath]) -> ScoringTime | None:
    """Scoring of the steps in which it was measured; None where there is none."""
    found = [
        (path.scoring_s, path.stages.get("verdict", 0.0)) for path in paths if path.scoring_s is not None
    ]
    if not found:
        return None
    scoring_s, exposed_s = (mean(column) for column in zip(*found, strict=True))
    hidden_s = mean(max(0.0, whole_s - part_s) for whole_s, part_s in found)
    return ScoringTime(scoring_s=scoring_s, hidden_s=hidden_s, exposed_s=exposed_s)


def stage_times(paths: Sequence[StepPath]) -> list[StageTime]:
    """Stage times in the order of the stages; empty without steps."""
    if not paths:
        return []
    seconds = {stage: [path.stages.get(stage, 0.0) for path in paths] for stage in STAGES}
    whole_s = sum(map(mean, seconds.values()))
    return [
        StageTime(
            stage=stage,
            mean_s=mean(found),
            median_s=median(found),
            most_s=max(found),
            share=mean(found) / whole_s if whole_s > 0 else 0.0,
        )
        for stage, found in seconds.items()
    ]


def newest(paths: Sequence[StepPath]) -> list[StepPath]:
    """The newest record of each step, in order."""
    found = {path.step: path for path in paths}
    return [found[step] for step in sorted(found)]


def path_plot(paths: Sequence[StepPath]) -> str:
    """The mean step from left to right, a row for each stage: its bar begins where the one above it ends. The
    thin line ends at its longest time."""
    from gleaner.rlctl.report import plots  # loads matplotlib

    times = [one for one in stage_times(paths) if one.most_s >= LEAST_S]

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        at_s = 0.0
        end_s = max(sum(one.mean_s for one in times), 1e-6)
        for row, one in enumerate(times):
            colour = plots.COLOURS[COLOURS[one.stage]]
            axes.barh(row, one.mean_s, left=at_s, height=0.62, color=colour, linewidth=0)
            axes.plot([at_s, at_s + one.most_s], [row, row], color=colour, linewidth=1.1, alpha=0.7)
            text = f"{one.mean_s:.3f} s  {one.share:.0%}"
            axes.annotate(text, (at_s + max(one.mean_s, one.most_s), row), (6, 0), va="center",
                          textcoords="offset points", color=plots.COLOURS["muted"])  # fmt: skip
            at_s += one.mean_s
        axes.set_yticks(range(len(times)), [one.stage.replace("_", " ") for one in times])
        axes.set_ylim(len(times) - 0.4, -0.6)
        axes.set_xlim(0, 1.16 * max(end_s, axes.get_xlim()[1]))
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("seconds since the end of the step before")

    return plots.svg("path", "The critical path of the mean step", 0.34 * len(times) + 0.7, draw)
