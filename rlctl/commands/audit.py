"""`rlctl audit`: checks a run's invariants."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gleaner.actors.training.history import End, HistoryError, read_history
from gleaner.rlctl import runs
from gleaner.rlctl.audit.evidence import Evidence
from gleaner.rlctl.audit.invariants import State, Violation, states
from gleaner.rlctl.audit.invariants import audit as judge
from gleaner.rlctl.audit.run_files import gather
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_command,
    add_json,
    add_runs_dir,
    console,
    print_json,
)
from gleaner.rlctl.errors import FAILED, OK, UNCHECKED, failed
from gleaner.rlctl.runs import RunDir

_DESCRIPTION = """\
Check a run's invariants again, from its journals and checkpoints (`rlctl run` does it at the end).

I1  each request reaches the trainer exactly once; its tokens are its spans joined, without gap or overlap
I2  no collected token was lost, none was generated twice
I3  every token of a step was made under that step's version
I4  an older incarnation changed nothing
I5  each step was done exactly once; checkpoints hold the trained weights
I7  each verdict counts once, for a request of the run, with the score that the reward proxy gave

Every journal is verified first (`rlctl journal verify`), and a damaged one is named. Each invariant then
holds, is broken, or is not checked, with the reason: missing or damaged evidence is always reported, and
never counts as a breach. For a run that did not end, the existing records are checked.

Exit code 0: all hold, every journal is whole. 1: at least one is broken. 5: none is known to be broken, but
not everything could be checked, or a journal is damaged."""

_EXAMPLES = """\
  rlctl audit                                 the newest run
  rlctl audit quickstart-20250101 --json
  rlctl audit RUN --state-dir /var/lib/gleaner/head    journals of a cluster that runs elsewhere"""

_WORDS = {State.HOLDS: "holds", State.BROKEN: "BROKEN", State.UNCHECKED: "not checked"}
NAMES = {
    "I1": "each request exactly once",
    "I2": "nothing lost, nothing twice",
    "I3": "on-policy",
    "I4": "older incarnations changed nothing",
    "I5": "each step exactly once",
    "I7": "each verdict exactly once",
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
        help="state directory of a host outside the run's nodes/; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--journal",
        default="",
        metavar="URL",
        help="URL of the database with the head's journals, if it has one",
    )
    add_json(parser)
    add_runs_dir(parser)


def audit(args: argparse.Namespace) -> int:
    """Run the command."""
    run = runs.find(args.runs_dir, args.name)
    if run.driven():
        raise failed(f"{run.id} still runs: what it journals is not whole yet; wait for its end")
    complete = has_ended(run)
    evidence = gather(
        run.path, run.config(), complete=complete, state_dirs=args.state_dir, database=args.journal
    )
    violations = judge(evidence)
    if args.json:
        print_json(_shown(run.id, complete, evidence, violations))
        return code_of(evidence, violations)
    out = console()
    steps = f"{len(set(evidence.finished))} of {evidence.steps} steps"
    out.print(f"{run.id}: {steps}{'' if complete else ', the run did not end'}")
    for place, fault in evidence.damaged:
        out.print(f"  DAMAGED {place}", markup=False)
        out.print(f"      {fault}", markup=False)
    for invariant, state in states(violations).items():
        out.print(f"  {invariant}  {_WORDS[state]:11}  {NAMES[invariant]}")
        for violation in violations:
            if violation.invariant == invariant:
                out.print(f"      {violation.text}", markup=False)
    return code_of(evidence, violations)


def code_of(evidence: Evidence, violations: Sequence[Violation]) -> int:
    """The exit code of an audit."""
    if any(violation.checked for violation in violations):
        return FAILED
    return UNCHECKED if violations or evidence.damaged else OK


def _shown(
    run_id: str, complete: bool, evidence: Evidence, violations: Sequence[Violation]
) -> dict[str, object]:
    """The JSON object."""
    return {
        "run_id": run_id,
        "complete": complete,
        "ok": code_of(evidence, violations) == OK,
        "invariants": {invariant: state.value for invariant, state in states(violations).items()},
        "violations": [
            {"invariant": it.invariant, "checked": it.checked, "text": it.text} for it in violations
        ],
        "damaged": [{"journal": place, "fault": fault} for place, fault in evidence.damaged],
    }


def has_ended(run: RunDir) -> bool:
    """Whether every step is due. Raises CommandError for a damaged history."""
    if not run.history.exists():
        return False
    try:
        return any(isinstance(record, End) for record in read_history(run.history))
    except HistoryError as problem:
        raise failed(str(problem)) from problem
