"""`rlctl logs`: log lines of all processes of a run, in order of time."""

import argparse
import sys
import time
from collections.abc import Callable

from gleaner.rlctl import runs
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, add_runs_dir
from gleaner.rlctl.errors import OK, nothing, usage
from gleaner.rlctl.merged_logs import Line, Logbook, files_of
from gleaner.rlctl.runs import RunDir

_DESCRIPTION = """\
Show the logs of a run: of all its processes together, or of one actor, process or host.

Each line is preceded by host/process. `.out` files hold the output of a process, `.log` files its log; the
last lines of both are shown. Works during the run and after it."""

_EXAMPLES = """\
  rlctl logs                            the newest run, the last 20 lines
  rlctl logs rollout/manager -n 100
  rlctl logs spot-1 -f                  a host, as it writes
  rlctl logs trainer --run quickstart-2025 --json"""

POLL_S = 0.3
MAX_LINES = 100_000


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "logs", logs, description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument(
        "who",
        nargs="?",
        default="",
        metavar="ACTOR|PROCESS|NODE",
        help="actor, process or host (default: all)",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="follow new lines, until Ctrl-C")
    parser.add_argument(
        "-n", "--lines", type=int, default=20, metavar="N", help="show the last N lines (default: 20)"
    )
    parser.add_argument(
        "--run", dest="run_name", default="", metavar="RUN", help="id or path (default: the newest)"
    )
    add_runs_dir(parser)
    add_json(parser)


def logs(args: argparse.Namespace) -> int:
    """Run the command."""
    if not 0 <= args.lines <= MAX_LINES:
        raise usage(f"-n {args.lines}: expected 0 to {MAX_LINES}")
    run = runs.find(args.runs_dir, args.run_name)
    files = files_of(run.nodes, args.who)
    if not files:
        hosts = ", ".join(sorted(path.name for path in run.nodes.glob("*"))) or "none"
        raise nothing(f"{args.who or run.id}: no logs in {run.nodes}; hosts there: {hosts}")
    book = Logbook(files)
    for line in book.last(args.lines):
        _print(line, as_json=args.json)
    if args.follow:
        _follow(run, args.who, book, lambda line: _print(line, as_json=args.json))
    return OK


def _follow(run: RunDir, name: str, book: Logbook, show: Callable[[Line], None]) -> None:
    while True:
        driven = run.driven()
        for line in book.more(files_of(run.nodes, name)):
            show(line)
        sys.stdout.flush()
        if not driven:
            return
        time.sleep(POLL_S)


def _print(line: Line, *, as_json: bool) -> None:
    sys.stdout.write(line.as_json() + "\n" if as_json else f"{line.source}: {line.text}\n")
