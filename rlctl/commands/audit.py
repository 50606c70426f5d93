"""`rlctl audit`: did a run keep its promises?"""

import argparse
from pathlib import Path

from actors.training.history import End, HistoryError, read_history
from rlctl import runs
from rlctl.audit import audit as judge
from rlctl.commands.terminal import Subparsers, add_command, add_json, add_runs_dir, console, print_json
from rlctl.errors import FAILED, OK, failed
from rlctl.evidence import gather
from rlctl.runs import RunDir

_DESCRIPTION = """\
Check a run's invariants again, from its journals and checkpoints (`rlctl run` does it at the end).

I1  each request reaches the trainer exactly once; its tokens are its spans joined, without gap or overlap
I2  no collected token was lost, none was generated twice
I3  every token of a step was made under that step's version
I4  an older incarnation changed nothing
I5  each step was done exactly once; checkpoints hold what was trained

Evidence that is missing is reported, never passed over. Of a run that did not end, what is there is
checked."""

_EXAMPLES = """\
  rlctl audit                                 the newest run
  rlctl audit quickstart-20250101 --json
  rlctl audit RUN --state-dir /var/lib/gleaner/head    journals of a cluster that runs elsewhere"""

NAMES = {
    "I1": "each request exactly once",
    "I2": "nothing lost, nothing twice",
    "I3": "on-policy",
    "I4": "older incarnations changed nothing",
    "I5": "each step exactly once",
}


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "audit",
        audit,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("name", nargs="?", default="", metavar="RUN", help="id or path (default: the newest)")
    parser.add_argument(
        "--state-dir", type=Path, action="append", default=[], metavar="DIR",
        help="a host's state directory that is not under the run's nodes/; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--journal", default="", metavar="URL", help="the database of the head's journals, if it has one"
    )
    add_json(parser)
    add_runs_dir(parser)


def audit(args: argparse.Namespace) -> int:
    """Do it."""
    run = runs.find(args.runs_dir, args.name)
    if run.driven():
        raise failed(f"{run.id} still runs: what it journals is not whole yet; wait for its end")
    complete = has_ended(run)
    evidence = gather(
        run.path, run.config(), complete=complete, state_dirs=args.state_dir, database=args.journal
    )
    violations = judge(evidence)
    if args.json:
        print_json(
            {
                "run_id": run.id,
                "complete": complete,
                "ok": not violations,
                "violations": [{"invariant": it.invariant, "text": it.text} for it in violations],
            }
        )
        return FAILED if violations else OK
    out = console()
    steps = f"{len(set(evidence.finished))} of {evidence.steps} steps"
    out.print(f"{run.id}: {steps}{'' if complete else ', the run did not end'}")
    for invariant, meaning in NAMES.items():
        texts = [violation.text for violation in violations if violation.invariant == invariant]
        out.print(f"  {invariant}  {'held  ' if not texts else 'BROKEN'}  {meaning}")
        for text in texts:
            out.print(f"      {text}", markup=False)
    return FAILED if violations else OK


def has_ended(run: RunDir) -> bool:
    """Whether every step is due. Raises CommandError for a damaged history."""
    if not run.history.exists():
        return False
    try:
        return any(isinstance(record, End) for record in read_history(run.history))
    except HistoryError as problem:
        raise failed(str(problem)) from problem
