"""`rlctl plan --rewards`: workers and cost of a reward service under each policy, before any is rented."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, console, print_json
from gleaner.rlctl.errors import OK, usage

if TYPE_CHECKING:
    from gleaner.actors.reward.planning.items import Stage
    from gleaner.rlctl.reward_plan import PolicyUse
    from gleaner.sim.rewards.workload import Workload

_DESCRIPTION = """\
Compare how many reward workers a training job, or many, need under each scaling policy.

TRACE is a CSV file with the columns job, batch, arrival_s and one column for each stage of the pipeline, in
its order: the seconds for which an item ran there, empty where it skipped the stage. The word "cuda" is a
modelled workload instead: CUDA code that is compiled on cores and run on GPUs (DistRS, section 6).

Each row of the result is one policy: worker hours of each stage, their cost, the most workers at once, and by
how much batches were complete later than with unlimited workers. The first batch of each job is the history
from which the next ones are planned; it is not counted. docs/rewards.md has the policies and their limits."""

_EXAMPLES = """\
  rlctl plan --rewards trace.csv
  rlctl plan --rewards trace.csv --stage compile:1:120 --stage run:10:60 --max-delay 5
  rlctl plan --rewards cuda --jobs 6 --batches 10 --policy distrs --policy zero-queue-dedicated
  rlctl plan --rewards cuda --jobs 2 --write-trace cuda.csv --json"""

CUDA = "cuda"


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "plan", run, description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument("--rewards", required=True, metavar="TRACE", help=f"a CSV file, or {CUDA}")
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        metavar="NAME:COST:TIMEOUT",
        help="cost of a worker of this stage, and seconds after which it kills an item (default: 1 and the "
        "longest time in the trace); repeatable",
    )
    parser.add_argument(
        "--max-delay",
        type=float,
        default=5.0,
        metavar="S",
        help="tolerated extra delay of a batch, and 1%% of its duration at most (default: 5)",
    )
    parser.add_argument(
        "--max-workers", type=int, default=0, metavar="N", help="most workers of a stage (default: no limit)"
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help="this policy alone; repeatable (default: all)",
    )
    parser.add_argument("--jobs", type=int, default=6, metavar="N", help=f"jobs of {CUDA} (default: 6)")
    parser.add_argument("--batches", type=int, default=4, metavar="N", help="batches of each (default: 4)")
    parser.add_argument(
        "--runaways",
        type=float,
        default=0.02,
        metavar="SHARE",
        help=f"of {CUDA}'s runs, killed (default: 0.02)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all draws (default: 1)")
    parser.add_argument("--write-trace", type=Path, metavar="FILE", help="write the workload as a trace, too")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from gleaner.rlctl import reward_plan
    from gleaner.rlctl.reward_trace import write_trace

    names = args.policy or list(reward_plan.POLICIES)
    unknown = next((name for name in names if name not in reward_plan.POLICIES), None)
    if unknown is not None:
        raise usage(f"--policy {unknown}: there are {', '.join(reward_plan.POLICIES)}")
    if not 0 <= args.max_delay < float("inf"):
        raise usage(f"--max-delay: expected seconds from 0, got {args.max_delay:g}")
    if args.max_workers < 0:
        raise usage(f"--max-workers: expected a number from 1, got {args.max_workers}")
    workload = _workload(args)
    if args.write_trace is not None:
        try:
            write_trace(workload, args.write_trace)
        except OSError as problem:
            raise usage(f"{args.write_trace}: {problem.strerror}") from problem
    rows: list[PolicyUse] = []
    try:
        for row in reward_plan.compared(workload, names, args.max_delay, args.max_workers, args.seed):
            rows.append(row)
            if not args.json and sys.stderr.isatty():
                sys.stderr.write(f"{len(rows)} of {len(names)} policies: {row.policy}\n")
    except reward_plan.TooFewBatches as problem:
        raise usage(f"{args.rewards}: {problem}") from problem
    if args.json:
        print_json(
            reward_plan.RewardPlan(
                items=workload.items, jobs=len(workload.jobs), max_delay_s=args.max_delay, policies=rows
            )
        )
    else:
        _show(workload, rows)
    return OK


def _workload(args: argparse.Namespace) -> "Workload":
    from gleaner.rlctl.reward_trace import TraceError, read_trace
    from gleaner.sim.rewards.workload import CudaLaw, cuda_workload

    stages = dict(map(_stage, args.stage))
    if args.rewards == CUDA:
        if stages:
            raise usage(f"--stage: {CUDA} has its own stages")
        if args.jobs < 1 or args.batches < 2:
            raise usage(f"{CUDA}: expected 1 job and 2 batches at least, got {args.jobs} and {args.batches}")
        if not 0 <= args.runaways <= 1:
            raise usage(f"--runaways: expected a share from 0 to 1, got {args.runaways:g}")
        return cuda_workload(args.jobs, args.batches, CudaLaw(runaways=args.runaways), args.seed)
    try:
        return read_trace(Path(args.rewards), stages)
    except TraceError as problem:
        raise usage(str(problem)) from problem
    except OSError as problem:
        raise usage(f"{args.rewards}: {problem.strerror}") from problem


def _stage(words: str) -> "tuple[str, Stage]":
    from gleaner.actors.reward.planning.items import Stage

    name, *numbers = words.split(":")
    try:
        cost, timeout_s = map(float, numbers)
        return name, Stage(name, cost, timeout_s)
    except ValueError as problem:
        reason = str(problem) if len(numbers) == 2 else "expected NAME:COST:TIMEOUT"
        raise usage(f"--stage {words}: {reason}") from problem


def _show(workload: "Workload", rows: "Sequence[PolicyUse]") -> None:
    from rich.table import Table

    from gleaner.rlctl.reward_plan import POLICIES

    table = Table("policy", box=None, pad_edge=False, header_style="bold")
    table.add_column("cost", justify="right")
    for stage in workload.stages:
        for name in (f"{stage.name} h", "busy", "most"):
            table.add_column(name, justify="right")
    table.add_column("delay s", justify="right")
    table.add_column("worst", justify="right")
    for row in sorted(rows, key=lambda row: row.cost):
        cells = [row.policy, f"{row.cost:.1f}"]
        for use in row.stages:
            share = use.busy_hours / use.worker_hours if use.worker_hours else 0.0
            cells += [f"{use.worker_hours:.1f}", f"{share:.0%}", str(use.most)]
        table.add_row(*cells, f"{row.mean_delay_s:.2f}", f"{row.most_delay_s:.2f}")
    out = console()
    out.print(f"{workload.items} items, {len(workload.jobs)} jobs. h: worker hours; busy: share with an item")
    out.print(table)
    for row in sorted(rows, key=lambda row: row.cost):
        out.print(f"{row.policy}: {POLICIES[row.policy]}", style="dim")
        if row.short:
            out.print(f"{row.policy}: {row.short} of {row.plans} plans need more workers than --max-workers")
