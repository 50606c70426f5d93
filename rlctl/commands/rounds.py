"""`rlctl rounds`: the rounds of a run, and what they change."""

import argparse

import msgspec
from rich.table import Table

from gleaner.actors.training.history import HistoryError, read_history
from gleaner.configs.load import ConfigError
from gleaner.rlctl import runs
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_command,
    add_json,
    add_runs_dir,
    console,
    print_json,
)
from gleaner.rlctl.errors import OK, failed, nothing
from gleaner.rlctl.round_table import PeriodRow, RoundRow, RoundTable, round_table

_DESCRIPTION = """\
Show the rounds of a run (rounds.mode = tail): what each step launched, counted and deferred, and by period
the mean step, reward and response length, and the bias.

The bias is the mean length of the responses that were trained on, over the mean length of those that were
launched. 1 means that long responses count as much as in a job without rounds; below 1 they are trained less
often than the policy makes them. With own seeds and no surplus samples a whole period trains all that it
launched, and the bias is 1. Otherwise the lengths of aborted responses are estimated; where nothing beyond
the edge ended, that is a lower bound, and the bias is too high. Works while the run goes on."""

_EXAMPLES = """\
  rlctl rounds                           the newest run
  rlctl rounds quickstart-20250101 --json
  rlctl rounds --periods                 only the periods"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "rounds", rounds, description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument("name", nargs="?", default="", metavar="RUN", help="id or path (default: the newest)")
    parser.add_argument("--periods", action="store_true", help="leave the single steps out")
    add_json(parser)
    add_runs_dir(parser)


def rounds(args: argparse.Namespace) -> int:
    """Run the command."""
    run = runs.find(args.runs_dir, args.name)
    if not run.history.exists():
        raise nothing(f"{run.id} has no history yet: it never began to train")
    try:
        config = run.config()
        come_again = config.rounds.seeds == "own" and config.engine.kind == "builtin"
        whole = config.rounds.samples_factor == 1 and not config.rollout.drop_uniform
        found = round_table(run.id, read_history(run.history), all_trained=come_again and whole)
    except (HistoryError, ConfigError) as problem:
        raise failed(str(problem)) from problem
    if not found.rounds:
        raise nothing(f"{run.id} has no rounds: none has ended yet, or its setting rounds.mode is off")
    if args.json:
        print_json(msgspec.to_builtins(found))
        return OK
    out = console()
    if not args.periods:
        out.print(_steps(found.rounds))
    out.print(_periods(found.periods))
    out.print(_summary(found))
    return OK


def _steps(rows: list[RoundRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("step", "round", "launched", "counted", "over", "deferred", "queue", "edge", "longest"):
        table.add_column(name, justify="left" if name == "round" else "right")
    for name in ("step s", "aborted tokens", "reward"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            *map(str, (row.step, row.round, row.launched, row.counted, row.over, row.deferred, row.queued)),
            f"{row.edge:,}",
            f"{row.longest:,}",
            f"{row.step_s:.2f}",
            f"{row.aborted_tokens:,}",
            _number(row.reward, 3),
        )
    return table


def _periods(rows: list[PeriodRow]) -> Table:
    table = Table(box=None, pad_edge=False, title="by period", title_justify="left")
    for name in ("steps", "short", "long", "step s", "reward", "trained length", "launched length"):
        table.add_column(name, justify="right")
    for name in ("bias", "oldest age", "aborted tokens"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row.first}-{row.last}" + ("" if row.whole else " ..."),
            str(row.short),
            str(row.long),
            f"{row.step_s:.2f}",
            _number(row.reward, 3),
            _number(row.trained_length, 1),
            _number(row.launched_length, 1),
            _number(row.bias, 3),
            str(row.oldest_age),
            f"{row.aborted_tokens:,}",
        )
    return table


def _summary(found: RoundTable) -> str:
    if found.bias is None:
        return "bias: known when the first period is whole"
    return f"bias over whole periods: {found.bias:.3f} (trained over launched mean length)"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
