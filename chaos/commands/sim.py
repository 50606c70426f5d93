"""`rlctl sim run|replay|list`: campaigns of faults against the simulated cluster.

Owns the arguments, the output and the exit code. Slow imports happen when a command runs.
"""

import argparse
import asyncio
import os
import subprocess
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from gleaner.rlctl.commands.terminal import Subparsers, add_command, console
from gleaner.rlctl.errors import FAILED, INTERRUPTED, MEANINGS, OK, failed, usage

if TYPE_CHECKING:
    from gleaner.chaos.campaign import Minimal
    from gleaner.chaos.plan import Loaded
    from gleaner.chaos.tally import CampaignReport, RunReport

_DESCRIPTION = """\
Run fault-injection campaigns against a simulated cluster, in thousands of runs, and check its guarantees.

The cluster is the product itself: its actors, its messages, its supervision. Time, network, disks, engines
and trainers are simulated. A seed determines every event, so a failed run fails again.

Begin with `rlctl sim run --seeds 0:20`. The exit code is 1 where a check failed, and where a campaign is
invalid: a wanted fault never fired, or a named recovery path was never taken. docs/reliability.md has the
guarantees; docs/chaos.md explains how to write faults, checks and campaigns."""

_EXAMPLES = """\
  rlctl sim run                                    the ci campaign: 600 seeds
  rlctl sim run --campaign nightly --seeds 0:2000 --json nightly.json
  rlctl sim run --seeds 0:20 --availability spot.csv
                                                   hosts join and leave as on a real cloud
  rlctl sim replay 17                              seed 17 again, up to the first violation
  rlctl sim replay 17 --schedule minimal.toml --trace trace.txt
  rlctl sim list                                   campaigns, faults, checks and recovery paths"""

_RUN = """\
Run a campaign: one simulated job for each seed, each with its own faults.

Every check watches every run, and judges it at its end. A seed that fails is run again with ever fewer faults
until no fault can be dropped: that schedule is shown. A campaign in which a wanted fault never fired, or a
named recovery path was never taken, is invalid and fails too, because it proves nothing about them.

Ctrl-C ends it early; the finished runs are reported, and written with --json."""

_REPLAY = """\
Run one seed again and write every message, commit and fault, up to the first violation.

The trace goes to --trace, or its last --tail lines to standard output. With --schedule the faults of that
file are used, such as the minimal ones that `rlctl sim run` wrote."""

_RUN_EXAMPLES = """\
  rlctl sim run                                    all 600 seeds of ci
  rlctl sim run --seeds 0:50 --json ci.json        fired faults, recovery paths, violations, trace hashes
  rlctl sim run --campaign my-campaign.toml        one of your own; see docs/chaos.md
  rlctl sim run --seeds 0:20 --availability traces/"""

_REPLAY_EXAMPLES = """\
  rlctl sim replay 17 --trace trace.txt            every message up to the first violation, in a file
  rlctl sim replay 17 --schedule seed-17.toml      with the fewest faults that still fail
  rlctl sim replay 17 --campaign nightly --on      to its end, despite violations
  rlctl sim replay 17 --on --request step-2/4/1    one request: its dispatches, tokens, moves and scores
  rlctl sim replay 4 --mutation "deliver an incomplete group"
                                                   with a planted bug (docs/reliability.md)"""

_LIST = "List campaigns, kinds of faults, checks with their meanings, and recovery paths."


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "sim",
        _sim,
        help="run fault-injection campaigns in the simulator",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="run|replay|list")
    run = _action(actions, "run", "run a campaign", _RUN, _RUN_EXAMPLES)
    run.add_argument("--campaign", default="ci", metavar="NAME", help="name or TOML file (default: ci)")
    _add_availability(run, "--trace")
    run.add_argument(
        "--seeds", default="", metavar="A:B", help="seeds from A to B - 1 (default: the campaign's)"
    )
    run.add_argument("--json", type=Path, metavar="FILE", help="write the whole result to this file")
    run.add_argument(
        "--jobs", type=int, default=0, metavar="N", help="parallel processes (default: one a core)"
    )
    run.add_argument("--no-shrink", action="store_true", help="do not search for the fewest faults that fail")
    run.add_argument(
        "--minimal",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder for minimal schedules (default: here)",
    )
    run.set_defaults(run=_run)
    replay = _action(
        actions,
        "replay",
        "run one seed again, with its trace",
        _REPLAY,
        _REPLAY_EXAMPLES,
    )
    replay.add_argument("seed", type=int, metavar="SEED")
    replay.add_argument("--campaign", default="ci", metavar="NAME", help="name or TOML file (default: ci)")
    _add_availability(replay)
    replay.add_argument("--schedule", type=Path, metavar="FILE", help="use the faults of this TOML file")
    replay.add_argument("--trace", type=Path, metavar="FILE", help="write the whole trace to this file")
    replay.add_argument(
        "--tail", type=int, default=60, metavar="N", help="lines shown without --trace (default: 60)"
    )
    replay.add_argument("--on", action="store_true", help="continue after the first violation, to the end")
    for name, metavar, text in (
        ("request", "ID", "show what concerns this request (step-2/4/1), group (step-2/4) or batch (step-2)"),
        ("host", "NAME", "show what happens on this host"),
        ("actor", "NAME", "show messages from and to this actor, and commits of its stream"),
        ("mutation", "NAME", "plant this bug, or make this mutant, first (docs/reliability.md)"),
    ):
        replay.add_argument(f"--{name}", default="", metavar=metavar, help=text)
    replay.set_defaults(run=_replay)
    show = _action(
        actions, "list", "list campaigns, faults, checks and recovery paths", _LIST, "  rlctl sim list"
    )
    show.set_defaults(run=_list)


def _action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    help: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    return actions.add_parser(
        name,
        help=help,
        description=description,
        epilog=f"examples:\n{examples}\n\n{MEANINGS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_availability(parser: argparse.ArgumentParser, *also: str) -> None:
    parser.add_argument(
        "--availability",
        *also,
        dest="availability",
        action="append",
        default=[],
        metavar="CSV",
        help="let the preemptible hosts of every run join and leave by a piece of this trace (a file of "
        "t_seconds,event,instance_id, or a folder of such files); may be repeated",
    )


def _sim(args: argparse.Namespace) -> int:
    raise usage("expected a subcommand: run, replay or list (see rlctl sim --help)")


def _loaded(args: argparse.Namespace) -> "Loaded":
    from gleaner.chaos.plan import BadCampaign, load

    try:
        return load(args.campaign, args.availability)
    except BadCampaign as problem:
        raise usage(str(problem)) from problem


# -- run --


def _run(args: argparse.Namespace) -> int:
    """`rlctl sim run`."""
    from gleaner.chaos.campaign import campaign, first_broken, minimal, span
    from gleaner.chaos.commands.sim_text import Progress, minimal_lines, report_lines
    from gleaner.chaos.plan import BadCampaign, parse_seeds
    from gleaner.chaos.tally import tally

    loaded = _loaded(args)
    try:
        seeds = parse_seeds(args.seeds or loaded.campaign.seeds)
    except BadCampaign as problem:
        raise usage(str(problem)) from problem
    if args.jobs < 0:
        raise usage(f"--jobs {args.jobs}: expected a number of processes ≥ 1")
    workers = args.jobs or len(os.sched_getaffinity(0))
    runs: list[RunReport] = []
    progress = Progress(sys.stderr)
    code, whole = OK, True
    try:
        report = asyncio.run(
            campaign(loaded, args.campaign, seeds, workers=workers, on_run=progress.run, runs=runs)
        )
    except KeyboardInterrupt:
        report = tally(loaded, span(seeds), runs, progress.passed_s, whole=False)
        code, whole = INTERRUPTED, False
    except (OSError, ValueError) as problem:
        raise failed(f"the campaign could not be run: {problem}") from problem
    progress.end()
    out = console()
    again = " ".join([args.campaign, *(f"--availability {quote(path)}" for path in args.availability)])
    for line in report_lines(report, again):  # before the search: a user who ends the search has the report
        out.print(line, markup=False)
    shrunk = []
    if whole and not args.no_shrink:
        for broken in first_broken(runs):
            sys.stderr.write(
                f"seed {broken.seed} breaks {broken.broken[0].check}: searching for fewest faults\n"
            )
            try:
                shrunk.append(minimal(loaded, args.campaign, broken))
            except ValueError as problem:
                sys.stderr.write(f"seed {broken.seed}: {problem}\n")
                continue
            for line in minimal_lines(shrunk[-1], again, args.minimal):
                out.print(line, markup=False)
    _write(args, report, shrunk)
    if report.violations or not report.valid:
        return FAILED
    return code


def _write(args: argparse.Namespace, report: "CampaignReport", shrunk: "list[Minimal]") -> None:
    from gleaner.chaos.campaign import as_json
    from gleaner.chaos.schedule import dump

    if args.json is not None:
        args.json.write_bytes(as_json(report, shrunk) + b"\n")
    for found in shrunk:
        (args.minimal / f"seed-{found.seed}.toml").write_text(dump(found.schedule))


# -- replay --


def _replay(args: argparse.Namespace) -> int:
    """`rlctl sim replay`."""
    from gleaner.chaos import schedule as schedules
    from gleaner.chaos.commands.sim_text import replay_lines
    from gleaner.chaos.replay import replay
    from gleaner.chaos.story_filter import StoryFilter

    if args.mutation:
        return _replay_with(args)
    loaded = _loaded(args)
    if args.seed < 0:
        raise usage(f"SEED {args.seed}: expected a number ≥ 0")
    schedule = None
    if args.schedule is not None:
        try:
            schedule = schedules.load(args.schedule.read_text(), str(args.schedule))
        except (OSError, UnicodeDecodeError, schedules.BadSchedule) as problem:
            raise usage(str(problem)) from problem
    if args.trace is not None and _is_availability(args.trace):
        raise usage(
            f"--trace {args.trace}: is an availability trace, and would be written over; name it with "
            "--availability, and a new file for the messages"
        )
    chosen = args.request or args.host or args.actor
    shown = StoryFilter(args.request, args.host, args.actor) if chosen else None
    replayed = replay(
        loaded, args.seed, schedule, trace=args.trace, tail=args.tail, go_on=args.on, shown=shown
    )
    out = console()
    for line in replay_lines(replayed, args.trace):
        out.print(line, markup=False)
    return FAILED if replayed.run.broken else OK


def _replay_with(args: argparse.Namespace) -> int:
    """The same in a process of its own, in which the bug is planted before anything is imported."""
    from gleaner.chaos.mutants import NoMutant, edits_of
    from gleaner.chaos.mutate import CannotPlant

    try:
        edits_of(args.mutation)
    except (NoMutant, CannotPlant) as problem:
        raise usage(f"--mutation {args.mutation}: {problem}") from problem
    words = ["sim", "replay", str(args.seed), "--campaign", args.campaign, "--tail", str(args.tail)]
    for name in ("schedule", "trace", "request", "host", "actor"):
        if value := getattr(args, name):
            words += [f"--{name}", str(value)]
    for file in args.availability:
        words += ["--availability", str(file)]
    words += ["--on"] if args.on else []
    command = [sys.executable, "-m", "gleaner.chaos.planted_rlctl", args.mutation, *words]
    return subprocess.run(command, check=False).returncode


def _is_availability(file: Path) -> bool:
    from gleaner.configs import trace

    try:
        trace.read(file)
    except trace.TraceError:
        return False
    return True


# -- list --


def _list(args: argparse.Namespace) -> int:
    """`rlctl sim list`."""
    from gleaner.chaos.commands.sim_text import list_lines

    out = console()
    for line in list_lines():
        out.print(line, markup=False)
    return OK
