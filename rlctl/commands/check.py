"""`rlctl check`: checks a user's settings and problems before a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from gleaner.rlctl import preflight
from gleaner.rlctl.commands.run import settings
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_command,
    add_json,
    add_runs_dir,
    console,
    print_json,
)
from gleaner.rlctl.errors import OK, USAGE, usage
from gleaner.rlctl.problem_counts import counted

if TYPE_CHECKING:
    from gleaner.rlctl.data_check import Checked

_DESCRIPTION = """\
Check the settings of a run and every problem of its data, without starting the run.

Each row is read as in a run. Listed with file and line are missing fields, fields of other types, prompts
that are too long for the engine (with a tokenizer: --model, or model.path), prompts that are both held out
and trained on, and rows that lack fields of their verifier; and a compiler that the verifier needs and this
machine lacks. With --verify-reference each problem's reference solution (`solution` or `reference`, in its
`info` or as a column) is scored: one that does not score 1 is listed, with the first test that it fails.
Judges are not called for it.

Exit code 0: no problem was found. 2: the printed lines list the problems."""

_EXAMPLES = """\
  rlctl check job.toml
  rlctl check job.toml --verify-reference             score the reference solutions
  rlctl check job.toml --verify-reference --sample 50
  rlctl check job.toml --model ~/models/Qwen3-1.7B --json | jq '.tasks[].findings[]'"""

MAX_SHOWN = 20
"""Findings of one task in the terminal; --json gives up to 1000."""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "check", run, description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument("config", metavar="CONFIG", help="a TOML file, or the name of a preset")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="one setting over the file's"
    )
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="checkpoint whose tokenizer measures prompts"
    )
    parser.add_argument(
        "--verify-reference",
        "--solutions",
        action="store_true",
        dest="solutions",
        help="score each problem's reference solution",
    )
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="with --verify-reference: of N rows of each file, evenly spread (default: of all)",
    )
    parser.set_defaults(seed=None, trace=None, name=None)
    add_runs_dir(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from gleaner.rlctl import data_check  # loads tokenizers and verifiers

    config = settings(args)
    problems = preflight.problems(config, args.runs_dir)
    model = args.model or (Path(config.model.path) if config.model.path else None)
    try:
        checked = data_check.check(
            config, model, solutions=_solutions(args), on_row=_progress(as_json=args.json)
        )
    except (
        data_check.BadTask,
        data_check.BadTokenizer,
        data_check.NoSandbox,
        data_check.SandboxFailed,
    ) as problem:
        raise usage(*dict.fromkeys([*problems, str(problem)])) from problem
    if not any(one.found for one in checked):
        try:
            counted(config)
        except data_check.BadTask as problem:
            problems.append(str(problem))
    wrong = bool(problems) or any(one.found for one in checked)
    if args.json:
        print_json({"settings": problems, "tasks": checked})
    else:
        _show(problems, checked, measured=model is not None)
    return USAGE if wrong else OK


def _solutions(args: argparse.Namespace) -> int:
    """Rows of each file whose reference solution is scored."""
    from gleaner.rlctl.data_check import ALL

    if args.sample is None:
        return ALL if args.solutions else 0
    if not args.solutions:
        raise usage("--sample needs --verify-reference")
    if args.sample < 1:
        raise usage(f"--sample: expected a number of rows, at least 1, got {args.sample}")
    return int(args.sample)


def _progress(*, as_json: bool) -> Callable[[int], None]:
    live = not as_json and sys.stderr.isatty()

    def show(rows: int) -> None:
        if live and rows % 1000 == 0:
            sys.stderr.write(f"\r{rows:,} rows")
            sys.stderr.flush()

    return show


def _show(problems: list[str], checked: list[Checked], *, measured: bool) -> None:
    out = console()
    for problem in problems:
        out.print(f"settings: {problem}", style="red", markup=False)
    if not problems:
        out.print("settings: nothing is wrong", style="green")
    rows = Table(box=None, pad_edge=False)
    for name in (
        "task",
        "verifier",
        "rows",
        "trained on",
        "held out",
        "longest prompt",
        "solutions",
        "wrong",
    ):
        rows.add_column(name, justify="left" if name in ("task", "verifier") else "right")
    for one in checked:
        longest = f"{one.longest_tokens} tokens" if measured else "not measured"
        counts = [f"{count:,}" for count in (one.rows, one.train, one.heldout)]
        rows.add_row(one.task, one.verifier, *counts, longest, f"{one.solutions:,}", f"{one.found:,}")
    if checked:
        out.print(rows)
    for one in checked:
        for finding in one.findings[:MAX_SHOWN]:
            out.print(f"{finding.place}: {finding.text}", markup=False, highlight=False)
        if one.found > MAX_SHOWN:
            out.print(f"{one.task}: {one.found - MAX_SHOWN:,} more; --json lists up to 1,000", markup=False)
