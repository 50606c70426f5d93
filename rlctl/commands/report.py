"""`rlctl report`: report.html and report.json of a run."""

import argparse

import msgspec

from gleaner.actors.training.history import HistoryError
from gleaner.configs.load import ConfigError
from gleaner.rlctl import runs
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, add_runs_dir, console
from gleaner.rlctl.errors import OK, failed, nothing
from gleaner.rlctl.outcome import print_closing
from gleaner.rlctl.report import make

_DESCRIPTION = """\
Write a run's report.html (one self-contained page) and report.json, and show the figures.

Works at any time: a run that continues or was stopped gives its figures so far."""

_EXAMPLES = """\
  rlctl report                          the newest run
  rlctl report quickstart-20250101 --json
  open "$(rlctl report --open-path)"    only the path of the page"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "report",
        report,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("name", nargs="?", default="", metavar="RUN", help="id or path (default: the newest)")
    parser.add_argument("--open-path", action="store_true", help="print only the path of report.html")
    add_json(parser)
    add_runs_dir(parser)


def report(args: argparse.Namespace) -> int:
    """Run the command."""
    run = runs.find(args.runs_dir, args.name)
    if not run.history.exists():
        raise nothing(f"{run.id} has no history yet: it never began to train")
    try:
        made = make(run.path)
    except (HistoryError, ConfigError) as problem:
        raise failed(str(problem)) from problem
    except OSError as problem:
        raise failed(f"{run.path}: the report cannot be written: {problem}") from problem
    if args.open_path:
        print(run.path / "report.html")
    elif args.json:
        print(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())
    else:
        print_closing(made, run, console())
    return OK
