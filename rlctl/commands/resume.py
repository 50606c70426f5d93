"""`rlctl resume`: continues a run that was stopped, killed or failed."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gleaner.actors.protocol.cluster import JobSpec
from gleaner.actors.training.history import End, HistoryError, read_history
from gleaner.actors.training.records import AnyRecord, Run
from gleaner.configs.schema import Config
from gleaner.configs.sections.rounds import Rounds
from gleaner.rlctl import runs
from gleaner.rlctl.commands.run import add_state_dir, add_view, cluster_of, execute, ready
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_head, add_runs_dir, run_async
from gleaner.rlctl.errors import failed, usage
from gleaner.rlctl.head import wait_for_remains
from gleaner.rlctl.runs import RunDir

_DESCRIPTION = """\
Continue a run after Ctrl-C, after a failure, or after `rlctl run` itself was killed.

The run's own settings are used. No finished step is done again: the trainer continues from its newest state,
the rollout from the collected tokens. A run that ended cannot be resumed."""

_EXAMPLES = """\
  rlctl resume                                the newest run
  rlctl resume quickstart-20250101-120000     by id, or a prefix of one
  rlctl resume runs/quickstart-20250101-120000-1a2b"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "resume", resume, description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument("name", nargs="?", default="", metavar="RUN", help="id or path (default: the newest)")
    add_view(parser)
    add_runs_dir(parser)
    add_head(parser)
    add_state_dir(parser)


def resume(args: argparse.Namespace) -> int:
    """Run the command."""
    run = runs.find(args.runs_dir, args.name)
    if run.driven():
        raise failed(f"{run.id} runs already; watch it with `rlctl ps --run {run.id}`")
    records = _records(run)
    refuse_finished(run, records)
    refuse_moved(run)
    config = run.config()
    refuse_other_rounds(run, config, records)
    elsewhere = cluster_of(args)
    ready(config, run.path, elsewhere)
    run_async(wait_for_remains(run))
    return execute(run, config, args, elsewhere)


def refuse_moved(run: RunDir) -> None:
    """Raises CommandError for a folder that was moved: its journals name the old place, and its hosts would
    continue there."""
    job_file = run.head / "job.json"
    try:
        made_as = msgspec.json.decode(job_file.read_bytes(), type=JobSpec).run_dir
    except FileNotFoundError:  # it was killed before it had a job
        return
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise usage(
            f"{job_file}: cannot be read: {problem}; remove it, the head writes it again"
        ) from problem
    if Path(made_as) != run.path:
        raise usage(f"{run.path}: this run was made as {made_as} and can go on only there; move it back")


def refuse_finished(run: RunDir, records: Sequence[AnyRecord]) -> None:
    """Raises CommandError where no work is left. records: the run's history."""
    if any(isinstance(record, End) for record in records):
        raise failed(f"{run.id} has ended; see {run.path / 'report.html'}, or start another with `rlctl run`")


def refuse_other_rounds(run: RunDir, config: Config, records: Sequence[AnyRecord]) -> None:
    """Raises CommandError for settings with rounds of a run that began without, or the other way round, as
    after a change of its `config.toml` by hand: draws of one kind in the controller's journal mean nothing to
    a job of the other kind. records: the run's history."""
    began = next((record for record in records if isinstance(record, Run)), None)
    if began is None:
        return
    section = began.config.get("rounds", {})  # {}: a history of an older program
    mode = section.get("mode", Rounds().mode) if isinstance(section, dict) else Rounds().mode
    if (mode != "off") != config.rounds.on:
        raise usage(
            f"{run.config_file}: rounds.mode: expected {mode}, with which this run began, got "
            f"{config.rounds.mode}: a run cannot begin or give up rounds on its way; set it back, or start "
            "another run with `rlctl run`"
        )


def _records(run: RunDir) -> list[AnyRecord]:
    """The history, none where there is no file. Raises CommandError."""
    if not run.history.exists():
        return []
    try:
        return read_history(run.history)
    except HistoryError as problem:
        raise usage(str(problem)) from problem
