"""Picture of the measured waves: seconds until the last receiver has a version.

Relayed and as a star.
"""

from collections.abc import Sequence
from typing import Any

from bench.weights.fan_out_picture import alone
from gleaner.rlctl.report.plots import COLOURS, svg

NAME = "relay.svg"
HEIGHT_IN = 2.8
WIDTH = 0.38
LABEL = "Seconds until the last receiver has a version, by receivers, with relays and as a star"


def picture(waves: Sequence[tuple[int, str, bool, float]]) -> str:
    """The file's text. `waves`: receivers, mode, whether one was killed, seconds."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        cases = list(dict.fromkeys((receivers, killed) for receivers, _, killed, _ in waves))
        for mode, colour, shift in (("relay", "reserved", -0.5), ("star", "preemptible", 0.5)):
            some = [seconds for _, its, _, seconds in waves if its == mode]
            places = [place + shift * WIDTH for place in range(len(cases))]
            bars = axes.bar(places, some, WIDTH, color=COLOURS[colour], label=mode)
            axes.bar_label(bars, fmt="%.1f", fontsize=8, color=COLOURS["muted"])
        words = [f"{receivers}, one killed" if killed else str(receivers) for receivers, killed in cases]
        axes.set_xticks(range(len(cases)), words)
        axes.set_xlabel("receivers")
        axes.set_title("seconds until the last one has the version", fontsize=10, loc="left")
        axes.legend(frameon=False, fontsize=8)

    return alone(svg("relay", LABEL, HEIGHT_IN, draw))
