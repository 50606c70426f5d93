"""Plots of a campaign as SVG text: recoveries by kind, events over time. Pure."""

from typing import Any

from gleaner.chaos.real.report_schema import CampaignReport
from gleaner.rlctl.report.plots import COLOURS, svg

MIN_S = 0.1
"""Recoveries seen at the first poll are drawn here: polls are a few a second."""
ROW_IN = 0.3
WINDOW_S = 3.0  # over which the rate of tokens is taken
SILENCE_S = 3 * WINDOW_S  # a longer time without any token is drawn as silence


def recovery_plot(report: CampaignReport) -> str:
    """Every recovery as a dot, on a row for its kind; median and 95th percentile as marks."""
    kinds = [one for one in report.recovery if one.fired]

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for row, kind in enumerate(kinds):
            seconds = [one.recovered_s for one in report.faults if one.kind == kind.kind and not one.missed]
            times = [max(value, MIN_S) for value in seconds if value is not None]
            axes.scatter(times, [row] * len(times), s=26, color=COLOURS["accent"], alpha=0.6, linewidth=0)
            for value, colour in ((kind.recovered_p50_s, "join"), (kind.recovered_p95_s, "notice")):
                if value is not None:
                    axes.plot(
                        [max(value, MIN_S)] * 2, [row - 0.32, row + 0.32], color=COLOURS[colour], linewidth=2
                    )
            if lost := sum(value is None for value in seconds):
                axes.annotate(f"{lost} never", (1.0, row), xycoords=("axes fraction", "data"), ha="right",
                              va="center", color=COLOURS["kill"])  # fmt: skip
        axes.set_yticks(range(len(kinds)), [f"{kind.kind} ({kind.fired})" for kind in kinds])
        axes.set_ylim(len(kinds) - 0.4, -0.6)
        axes.set_xscale("log")
        axes.set_xlim(left=MIN_S * 0.9)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(visible=True, axis="x")
        axes.set_xlabel("seconds from the mending to the recovery")

    return svg("recovery", "Recovery times by kind of fault", max(1.6, ROW_IN * len(kinds) + 0.8), draw)


def time_plot(report: CampaignReport) -> str:
    """Tokens collected a second, with faults (red) and recoveries (amber) behind it."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        times, rates = rates_of(report.pace)
        for one in report.faults:
            if one.missed or one.broken_s is None:
                continue
            mended_s = one.at_s + one.broken_s
            axes.axvspan(
                one.at_s, max(mended_s, one.at_s + 0.3), color=COLOURS["kill"], alpha=0.35, linewidth=0
            )
            if one.recovered_s is not None:
                axes.axvspan(
                    mended_s, mended_s + one.recovered_s, color=COLOURS["notice"], alpha=0.22, linewidth=0
                )
        axes.plot(times, rates, color=COLOURS["accent"], linewidth=1.3)
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, max([report.seconds, *times, 1.0]))
        axes.set_xlabel("seconds since the campaign began")
        axes.set_ylabel("tokens/s")

    return svg("campaign", "Tokens a second, with every fault and recovery", 2.6, draw)


def rates_of(pace: tuple[tuple[float, int], ...]) -> tuple[list[float], list[float]]:
    """Tokens a second over windows of at least `WINDOW_S`, at their ends."""
    times, rates = [], []
    usual_s = (pace[-1][0] - pace[0][0]) / len(pace) if pace else 0.0  # long campaigns are thinned
    last: tuple[float, int] | None = None
    for at_s, tokens in pace:
        if last is None:
            last = (at_s, tokens)
        elif at_s - last[0] >= WINDOW_S:
            if at_s - last[0] >= max(
                SILENCE_S, 5 * usual_s
            ):  # between two jobs, for example: a pause, then tokens again
                times.append(last[0] + WINDOW_S)
                rates.append(0.0)
            times.append(at_s)
            rates.append(max(0, tokens - last[1]) / (at_s - last[0]))
            last = (at_s, tokens)
    return times, rates
