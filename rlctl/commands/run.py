"""`rlctl run`: a run from its settings to its report."""

import argparse
import json
import shutil
import sys
from pathlib import Path

import msgspec

from gleaner.actors.reward.source import BadTask
from gleaner.actors.training.history import HistoryError
from gleaner.configs.load import ConfigError, load, presets
from gleaner.configs.schema import Config
from gleaner.nodeagent.model_discovery import NoModel, with_judge
from gleaner.nodeagent.reward_discovery import NoService, resolved
from gleaner.rlctl import models, preflight, report, runs
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_command,
    add_head,
    add_json,
    add_runs_dir,
    address,
    console,
    head_key,
    print_errors,
    run_async,
)
from gleaner.rlctl.errors import (
    FAILED,
    INTERRUPTED,
    OK,
    UNCHECKED,
    UNSCORED,
    UNSERVED,
    USAGE,
    CommandError,
    failed,
    unscored,
    unserved,
    usage,
)
from gleaner.rlctl.live_view import Mode, announce
from gleaner.rlctl.outcome import print_closing
from gleaner.rlctl.problem_counts import counted
from gleaner.rlctl.report.model import Report
from gleaner.rlctl.run_driver import ExternalCluster, View, drive, probe
from gleaner.rlctl.runs import RunDir
from gleaner.transport.keys import BadKeys

_DESCRIPTION = """\
Train a model with rollouts on hosts that may vanish at any instant.

Checks the settings first; makes runs/<id>/; makes a small model unless the settings name one; starts a head,
which starts the other hosts as processes of this machine and adds and removes them by the trace; shows
progress; audits journals and checkpoints; writes the report. The first Ctrl-C stops the run in order, the
second one at once."""

_EXAMPLES = """\
  rlctl run quickstart                                     one to two minutes on two cores
  rlctl run configs/quickstart.toml --set rollout.samples=16 --seed 1
  rlctl run quickstart --trace my-trace.csv                t_seconds,event,instance_id
  rlctl run quickstart --json > progress.jsonl             every record, then the result
  rlctl run big.toml --head tcp://10.0.0.1:7700 --head-key head.public --keys keys/laptop
                                                           on a cluster that runs (shared runs folder)"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "run",
        run,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "config", metavar="CONFIG", help=f"a TOML file, or the name of a preset: {', '.join(presets())}"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        help="one setting over the file's; may be repeated",
    )
    parser.add_argument("--seed", metavar="N", help="short for --set job.seed=N")
    parser.add_argument("--trace", metavar="FILE", help="short for --set fleet.trace=FILE")
    parser.add_argument("--name", help="short for --set job.name=NAME; prefix of the run's id")
    add_view(parser)
    add_runs_dir(parser)
    add_head(parser)
    add_state_dir(parser)


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """Add the options for the journals of an external cluster."""
    parser.add_argument(
        "--state-dir", type=Path, action="append", default=[], metavar="DIR",
        help="with --head: a state directory of a host of that cluster, for the audit; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--journal",
        default="",
        metavar="URL",
        help="with --head: the database of its journals, for the audit",
    )


def add_view(parser: argparse.ArgumentParser) -> None:
    """The mode of the progress display."""
    add_json(parser)
    parser.add_argument("--plain", action="store_true", help="print lines, not a live panel")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    config = settings(args)
    elsewhere = cluster_of(args)
    ready(config, args.runs_dir, elsewhere)
    try:
        config = counted(config)
    except BadTask as problem:
        raise usage(str(problem)) from problem
    folder = runs.create(args.runs_dir, config)
    code = execute(folder, config, args, elsewhere)
    if code == USAGE and not folder.history.exists():
        shutil.rmtree(folder.path)  # the run could not begin: its folder holds nothing useful
    return code


def ready(config: Config, place: Path, elsewhere: ExternalCluster | None) -> None:
    """Check everything that can be checked before any file is made. Raises CommandError."""
    if problems := preflight.problems(config, place, here=elsewhere is None):
        raise usage(*problems)
    if elsewhere is not None:
        try:
            run_async(probe(elsewhere))
        except BadKeys as problem:
            raise usage(str(problem)) from problem
        except KeyboardInterrupt:
            raise CommandError(INTERRUPTED, "stopped on request") from None


def settings(args: argparse.Namespace) -> Config:
    """The settings, overridden by the options. Raises CommandError."""
    short = {"job.seed": args.seed, "fleet.trace": args.trace, "job.name": args.name}
    sets = [*args.set, *(f"{key}={value}" for key, value in short.items() if value is not None)]
    try:
        return with_judge(resolved(load(args.config, sets)))
    except ConfigError as problem:
        raise usage(*problem.problems) from problem
    except (NoService, NoModel) as problem:
        raise usage(str(problem)) from problem


def cluster_of(args: argparse.Namespace) -> ExternalCluster | None:
    """The cluster of `--head`, if one is named. Raises CommandError."""
    if not args.head:
        if args.head_key or args.keys or args.state_dir or args.journal:
            raise usage(
                "--head-key, --keys, --state-dir and --journal go with --head; a run of this machine has "
                "its keys from the setting network.keys"
            )
        return None
    return ExternalCluster(address(args.head), head_key(args), args.keys, tuple(args.state_dir), args.journal)


def execute(
    folder: RunDir, config: Config, args: argparse.Namespace, elsewhere: ExternalCluster | None
) -> int:
    """Drive the run in its folder; return the exit code."""
    mode: Mode = "json" if args.json else "plain" if args.plain else "auto"
    ended: CommandError | None = None
    code = OK
    with folder.lock():
        try:
            model = _model(folder, config, mode)
            violations = run_async(drive(folder, config, View(mode, sys.stdout), elsewhere, model))
            code = (FAILED if any(one.checked for one in violations) else UNCHECKED) if violations else OK
        except KeyboardInterrupt:
            ended = CommandError(INTERRUPTED, "stopped on request")
        except BadKeys as problem:
            ended = usage(str(problem))
        except CommandError as problem:
            ended = problem
        except (OSError, HistoryError) as problem:
            ended = failed(f"{folder.path}: {problem}")
        if ended is not None and ended.code == FAILED:
            ended = failed(*ended.lines, *preflight.full_disks(folder.path))
        made, ended = _report(folder, ended)
        ended = ended or _alone(made, config) or _unscored(made)
        _tell_outcome(folder, args.json, made, ended, code)
    if ended is not None:
        print_errors(ended)
        finished = made is not None and made.finished
        if ended.code in (FAILED, INTERRUPTED, UNSERVED, UNSCORED) and not finished:
            sys.stderr.write(
                f"rlctl resume {folder.id}  continues it; rlctl logs --run {folder.id}  shows more\n"
            )
        return ended.code
    return code


def _model(folder: RunDir, config: Config, mode: Mode) -> models.Preparation | None:
    """The making of the model, or the check of the one that the settings name, for `drive`."""
    if not config.model.path and folder.model.exists():  # a resume: the model was written atomically
        return None
    announce("model", mode, sys.stdout)
    if config.model.path:
        return models.check(Path(config.model.path), folder.config_file)
    return models.make(folder.model, folder.config_file, progress_printer(mode))


def progress_printer(mode: Mode) -> models.OnProgress:
    """Shows the progress of the warm start."""
    live = mode == "auto" and sys.stdout.isatty()

    def show(at: models.Progress) -> None:
        last = at.step == at.steps
        if mode == "json":
            sys.stdout.write(msgspec.json.encode(at).decode() + "\n")
        elif live:
            text = f"making the model: {at.step}/{at.steps}, loss {at.loss:.3f}"
            sys.stdout.write(f"\r{text}{chr(10) if last else ''}")
        elif last or at.step % 100 == 0:
            sys.stdout.write(f"making the model: step {at.step}/{at.steps}  loss {at.loss:.3f}\n")
        sys.stdout.flush()

    return show


def _report(folder: RunDir, ended: CommandError | None) -> tuple[Report | None, CommandError | None]:
    """Write the report if the run has a history. Returns the report and the error that ended the run; that
    error takes precedence over a failure of the report."""
    if not folder.history.exists():
        return None, ended
    try:
        return report.make(folder.path), ended
    except (HistoryError, ConfigError, OSError) as problem:
        return None, ended or failed(f"{folder.path}: no report: {problem}")


def _alone(made: Report | None, config: Config) -> CommandError | None:
    """The error for a job that ended, before its settings' wait was over, without the instance that they
    require."""
    if not config.fleet.require_instance or made is None or made.instances is None or made.instances.served:
        return None
    why = f": {made.instances.why}" if made.instances.why else ""
    return unserved(f"no preemptible instance has served until the job's end{why} (fleet.require_instance)")


def _unscored(made: Report | None) -> CommandError | None:
    """The error for a job that ended without a score for any sample."""
    if made is None or made.verdicts is None or made.verdicts.scored:
        return None
    return unscored(f"no sample was scored: {made.verdicts.words}")


def _tell_outcome(
    folder: RunDir, as_json: bool, made: Report | None, ended: CommandError | None, code: int
) -> None:
    """Show the figures; `code`: the exit code of a run that ended by itself."""
    if as_json:
        result = {
            "kind": "result",
            "run_id": folder.id,
            "path": str(folder.path),
            "exit_code": ended.code if ended else code,
            "outcome": msgspec.to_builtins(made.outcome) if made else None,
            "errors": list(ended.lines) if ended else [],
            "report": msgspec.to_builtins(made),
        }
        sys.stdout.write(json.dumps(result) + "\n")
    elif made is not None:
        print_closing(made, folder, console())
    sys.stdout.flush()
