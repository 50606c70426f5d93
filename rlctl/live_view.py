"""Live progress of a run: a terminal panel, plain lines, or JSON lines.

Owns following the history file and showing it. `gleaner.rlctl.progress` computes the numbers; this module has
the clock and the terminal, and changes nothing of the run itself.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, TextIO

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gleaner.actors.reward.verdicts import OURS
from gleaner.actors.training.history import AnyRecord, End, HistoryFollower, Phase, Sample
from gleaner.actors.training.records import PhaseName
from gleaner.rlctl.progress import PHASE_WORDS, Progress, cost_line, end_line, end_style, plain_line
from gleaner.rlctl.quantity_format import duration

POLL_S = 0.2
"""Between polls of the file: shorter than a person notices."""
MAX_EVENT_CELLS = 200
"""Width of an event; a cause can be a whole traceback."""
SPARKS = "▁▂▃▄▅▆▇█"
Mode = Literal["auto", "live", "plain", "json"]


def follow(
    history: str | Path | HistoryFollower,
    alive: Callable[[], bool],
    *,
    poll_s: float = POLL_S,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[AnyRecord]:
    """Records of a history as they are written, until the run's end or until its processes are gone.

    history: its file, or a follower that has read a part of it. alive: whether the run's processes live;
    after it returns false, the file is read once more.
    """
    follower = history if isinstance(history, HistoryFollower) else HistoryFollower(history)
    while True:
        last_look = not alive()
        for record in follower.poll():
            yield record
            if isinstance(record, End):
                return
        if last_look:
            return
        sleep(poll_s)


def show(records: Iterable[AnyRecord], mode: Mode, out: TextIO, known: Progress | None = None) -> Progress:
    """Show records until they end; return the state, which includes what was `known` (before a resume).

    mode: "live" draws a panel that changes in place; "plain" writes a line for each step and event, without
    control codes; "json" writes every record as one JSON object a line; "auto" is live where `out` is a
    terminal, else plain.
    """
    if mode == "auto":
        mode = "live" if out.isatty() else "plain"
    if mode == "live":
        return _show_live(records, Console(file=out), known or Progress())
    progress = known or Progress()
    for record in records:
        progress.observe(record)
        line = msgspec.json.encode(record).decode() if mode == "json" else plain_line(progress, record)
        if line is not None:
            out.write(f"{line}\n")
            out.flush()
    return progress


def announce(phase: PhaseName, mode: Mode, out: TextIO) -> None:
    """Print the phase of a run that has no history yet."""
    text = PHASE_WORDS[phase]
    if mode == "json":
        text = msgspec.json.encode(Phase(t_s=0.0, phase=phase)).decode()
    with contextlib.suppress(BrokenPipeError):  # a closed pipe is fine
        out.write(f"{text}\n")
        out.flush()


def _show_live(records: Iterable[AnyRecord], console: Console, progress: Progress) -> Progress:
    heard_at = time.monotonic()

    def panel() -> RenderableType:  # drawn by rich's own thread, also while no record arrives
        return render(progress, progress.t_s + time.monotonic() - heard_at)

    with Live(get_renderable=panel, console=console, refresh_per_second=4):
        for record in records:
            progress.observe(record)
            heard_at = time.monotonic()
        heard_at = time.monotonic()
    if progress.end is not None:
        console.print(Text(end_line(progress), style=end_style(progress.end)))
    return progress


def render(progress: Progress, now_s: float) -> RenderableType:
    """The panel. now_s: seconds of run time."""
    if progress.end is not None:
        now_s = progress.t_s
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    if progress.phase and progress.end is None:
        facts.add_row("now", progress.phase)
    facts.add_row("step", _bar(progress))
    if progress.unserved:  # would be lost among the events
        facts.add_row("instances", Text(progress.unserved, style="bold red"))
    if progress.sick:
        facts.add_row("verifier", Text(progress.sick, style="bold red"))
    facts.add_row("time", _time(progress, now_s))
    facts.add_row("reward", _reward(progress))
    sample = progress.last_sample
    if sample:
        facts.add_row("tokens", f"{sample.tokens_per_s:,.0f}/s   {sample.tokens_collected:,} collected")
        facts.add_row(
            "hosts",
            f"{sample.reserved} reserved + {sample.preemptible} preemptible   {sample.serving} serving",
        )
        facts.add_row(
            "requests",
            f"{sample.executing} executing   {sample.pending} pending   {sample.migrations} migrations, "
            f"{sample.moves} of them to balance load",
        )
    else:
        facts.add_row("hosts", "starting")
    if sample and (sample.verdicts or sample.asked_again):
        facts.add_row("verdicts", verdicts_line(sample))
    if progress.run_id:
        facts.add_row("cost", cost_line(progress.account()))
    facts.add_row(
        "faults",
        f"{progress.killed} killed   {progress.noticed} with notice   {progress.restarts} restarts",
    )
    lines = [_event(t_s, text) for t_s, text in progress.events]
    title = Text(progress.run_id or "run", style="bold")
    return Panel(Group(facts, *([Text("")] if lines else []), *lines), title=title, title_align="left")


def verdicts_line(sample: Sample) -> Text:
    """Counts by status, first those of failures that do not depend on the response."""
    counts = sorted((Counter(sample.verdicts) + Counter(sample.asked_again)).items())
    ours = [f"{count:,} {status}" for status, count in counts if status in OURS]
    others = [f"{count:,} {status}" for status, count in counts if status not in OURS]
    line = Text("   ".join(ours), style="red")
    line.append("   " if ours and others else "", style="default")
    line.append("   ".join(others), style="default")
    return line


def sparkline(values: Iterable[float], width: int = 40) -> str:
    """The last `width` values as bars between their own least and greatest."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, span = min(shown), (max(shown) - min(shown)) or 1.0
    return "".join(SPARKS[round((value - low) / span * (len(SPARKS) - 1))] for value in shown)


def _bar(progress: Progress) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    bar = ProgressBar(
        total=max(progress.steps_planned, 1), completed=progress.steps_done, width=40, complete_style="cyan"
    )
    row.add_row(bar, f"{progress.steps_done}/{progress.steps_planned or '?'}")
    return row


def _time(progress: Progress, now_s: float) -> str:
    left_s = progress.left_s(now_s)
    if progress.end is not None:
        state = "   ended"
    elif progress.steps_planned and progress.steps_done >= progress.steps_planned:
        state = "   last checks"
    else:
        state = f"   about {duration(left_s)} left" if left_s is not None else ""
    return f"{duration(now_s)}{state}"


def _reward(progress: Progress) -> Text:
    text = Text(sparkline(progress.rewards), style="cyan")
    if progress.rewards:
        text.append(f"  {progress.rewards[-1]:.3f}", style="bold")
    if progress.heldout_first is not None:
        last = "" if progress.heldout_last is None else f" → {progress.heldout_last:.3f}"
        text.append(f"   held-out {progress.heldout_first:.3f}{last}", style="default")
    return text


def _event(t_s: float, text: str) -> Text:
    style = "default"
    if "WARNING" in text or "cannot run" in text:
        style = "bold red"
    elif "killed" in text:
        style = "red"
    elif "notice" in text or "restarted" in text:
        style = "yellow"
    line = Text.assemble((f"{t_s:7.1f} s  ", "dim"), (text, style))
    line.truncate(MAX_EVENT_CELLS, overflow="ellipsis")
    return line
