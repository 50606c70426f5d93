"""`rlctl profile`: critical path of a run's steps, stage by stage."""

import argparse
from pathlib import Path

import msgspec

from gleaner.actors.training.history import HistoryError, read_history
from gleaner.actors.training.records import StepPath
from gleaner.actors.training.step_path import STAGES
from gleaner.rlctl import runs
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, add_runs_dir, console
from gleaner.rlctl.errors import OK, failed, nothing
from gleaner.rlctl.page_templates import style_sheet
from gleaner.rlctl.report.critical_path import (
    ScoringTime,
    StageTime,
    newest,
    path_plot,
    scoring_time,
    stage_times,
)

BAR = 24
"""Characters of the longest bar."""

_DESCRIPTION = """\
Show the critical path of a run's steps: the stages between the end of one step and the end of the next.

The path follows the response that the trainer received last: until an instance served the weights, until the
request was dispatched there, decoded, scored and handed out, and the trainer's work after it. To make steps
shorter, shorten the longest stage; work outside the path may take as long as it does. Works during a run."""

_EXAMPLES = """\
  rlctl profile                          the newest run
  rlctl profile quickstart-20250101 --json
  rlctl profile --picture path.svg       the mean step as a picture; report.html has it too"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "profile", profile, description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument("name", nargs="?", default="", metavar="RUN", help="id or path (default: the newest)")
    parser.add_argument(
        "--picture", metavar="FILE", default="", help="write the mean step as SVG to this file"
    )
    add_json(parser)
    add_runs_dir(parser)


def profile(args: argparse.Namespace) -> int:
    """Run the command."""
    run = runs.find(args.runs_dir, args.name)
    if not run.history.exists():
        raise nothing(f"{run.id} has no history yet: it never began to train")
    try:
        records = read_history(run.history)
    except HistoryError as problem:
        raise failed(str(problem)) from problem
    paths = newest([record for record in records if isinstance(record, StepPath)])
    if not paths:
        raise nothing(f"{run.id} has no step whose path was measured")
    if args.picture:
        _write(Path(args.picture), path_plot(paths))
    times = stage_times(paths)
    if args.json:
        profile = Profile(steps=paths, stages=times, scoring=scoring_time(paths))
        print(msgspec.json.format(msgspec.json.encode(profile), indent=2).decode())
    else:
        _show(run.id, paths, times)
    return OK


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """`rlctl profile --json`. steps: each measured step; stages: over all steps; scoring: of a mean step,
    None where it was not measured."""

    steps: list[StepPath]
    stages: list[StageTime]
    scoring: ScoringTime | None = None


def _show(run: str, paths: list[StepPath], times: list[StageTime]) -> None:
    from rich.table import Table

    out = console()
    table = Table("stage", box=None, pad_edge=False, header_style="bold")
    for name in ("mean s", "median s", "most s", "share"):
        table.add_column(name, justify="right")
    table.add_column("")
    table.add_column("what it is", style="dim")
    longest_s = max(one.mean_s for one in times)
    for one in times:
        bar = "█" * round(BAR * one.mean_s / longest_s) if longest_s > 0 else ""
        numbers = (f"{one.mean_s:.3f}", f"{one.median_s:.3f}", f"{one.most_s:.3f}", f"{one.share:.0%}")
        table.add_row(one.stage.replace("_", " "), *numbers, bar, STAGES[one.stage])
    out.print(table)
    longest = max(times, key=lambda one: one.mean_s)
    mean_s = sum(one.mean_s for one in times)
    steps = f"{len(paths)} steps" if len(paths) > 1 else "1 step"
    out.print(
        f"{run}: {steps}, {mean_s:.2f} s each; the longest stage is {longest.stage.replace('_', ' ')}, "
        f"{longest.mean_s:.2f} s ({longest.share:.0%})"
    )
    if (scoring := scoring_time(paths)) is not None:
        out.print(scoring.words)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(_whole(text), encoding="utf-8")
    except OSError as problem:
        raise failed(f"{file}: cannot be written: {problem.strerror}") from problem


def _whole(text: str) -> str:
    """The picture as an SVG file of its own, with the page's colours in it."""
    style = style_sheet()
    colours = style[: style.index("* {")]
    at = text.index(">") + 1
    head = text[: at - 1] + ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return f'{head}<style>{colours}</style><rect width="100%" height="100%" fill="var(--page)"/>{text[at:]}'
