"""`rlctl log`: sends the figures of a run to TensorBoard or Weights & Biases."""

import argparse

import msgspec

from gleaner.actors.training.history import HistoryError, HistoryFollower
from gleaner.configs.schema import Loggers
from gleaner.rlctl import runs
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_runs_dir
from gleaner.rlctl.errors import OK, failed, nothing, usage
from gleaner.rlctl.live_view import follow
from gleaner.rlctl.loggers.factory import open_sinks
from gleaner.rlctl.loggers.feed import feed
from gleaner.rlctl.loggers.sink import SinkFailed

_DESCRIPTION = """\
Send the figures of a run to TensorBoard or Weights & Biases: first the existing ones, then new ones while the
run continues, until its end.

`rlctl run` does it by itself where the settings ask for it ([loggers]); this command is for a run without it,
or for watching from elsewhere. The x axis is the step for steps and evaluations, and seconds for polls of the
fleet."""

_EXAMPLES = """\
  rlctl log --tensorboard                     the newest run, into runs/<id>/tensorboard
  rlctl log quickstart-2026 --wandb my-project --offline
  rlctl run quickstart --set loggers.tensorboard=true"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "log",
        log,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("name", nargs="?", default="", metavar="RUN", help="id or path (default: the newest)")
    parser.add_argument("--tensorboard", action="store_true", help="event files in the run's folder")
    parser.add_argument(
        "--wandb", default="", metavar="PROJECT", help="project; the run there has the same id"
    )
    parser.add_argument(
        "--offline", action="store_true", help="with --wandb: write files that `wandb sync` sends later"
    )
    add_runs_dir(parser)


def log(args: argparse.Namespace) -> int:
    """Run the command."""
    if not (args.tensorboard or args.wandb):
        raise usage("name a logger: --tensorboard, --wandb PROJECT, or both")
    run = runs.find(args.runs_dir, args.name)
    if not run.history.exists():
        raise nothing(f"{run.id} has no history yet: it never began to train")
    asked = {"tensorboard": args.tensorboard, "wandb": args.wandb, "wandb_offline": args.offline}
    try:
        wanted = msgspec.convert(asked, Loggers)
    except msgspec.ValidationError as problem:
        raise usage(f"--wandb {args.wandb!r}: {problem}") from problem
    failures: list[str] = []
    try:
        sinks = open_sinks(run, run.config(), wanted)
        count = feed(follow(HistoryFollower(run.history), run.driven), sinks, failures.append)
    except (SinkFailed, HistoryError) as problem:
        raise failed(str(problem)) from problem
    if failures:
        raise failed(*failures)
    for sink in sinks:
        print(f"{count} records: {sink.where}")
    return OK
