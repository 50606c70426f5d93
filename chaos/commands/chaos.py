"""`rlctl chaos`: injects faults into a cluster of real processes on this machine.

Owns the arguments, the output and the exit code. Slow imports happen when a command runs.
"""

import argparse
import errno
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gleaner.rlctl.commands.terminal import Subparsers, add_command, console, print_errors, print_json
from gleaner.rlctl.errors import FAILED, INTERRUPTED, OK, CommandError, failed, usage

if TYPE_CHECKING:
    from gleaner.chaos.real.campaign import Campaign
    from gleaner.chaos.real.report_schema import CampaignReport

_DESCRIPTION = """\
Inject faults into a cluster of real processes and check recovery. A head, a reserved and some preemptible
hosts run as network namespaces of this machine, with a job of a tiny model. The faults are kills, freezes,
cuts, bad links, full disks and torn journals. The next fault waits until the cluster has recovered from the
last one, or its deadline has passed."""

_RUN_EXAMPLES = """\
  rlctl chaos run real-ci --seed 7                 under four minutes; exit code 1 on a violation
  rlctl chaos run my-campaign.toml --json out.json
  rlctl chaos run real-10min --plain > chaos.log   lines instead of a live panel"""

_EPILOG = """\
examples:
  rlctl chaos list                                 the packaged campaigns
  rlctl chaos run real-ci --seed 7                 under four minutes
  make chaos                                       ten minutes, with a live view

It needs root (namespaces, tmpfs, TUN devices) and changes nothing else on the machine. `rlctl sim run` checks
the same guarantees on virtual time, in thousands of runs. See docs/chaos.md and docs/reliability.md."""
_LIST_EXAMPLES = "  rlctl chaos list --json"
CHAOS_DIR = Path("runs/chaos")
IMPOSSIBLE = "impossible"
"""Option value for every kind of fault that this machine cannot inject."""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "chaos",
        help="inject faults into a real multi-process cluster and check recovery",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = parser.add_subparsers(dest="chaos_command", required=True, metavar="run|list")
    run = add_command(
        below, "run", chaos_run, help="run a campaign", description=_DESCRIPTION, examples=_RUN_EXAMPLES
    )
    run.add_argument("campaign", metavar="CAMPAIGN", help="a TOML file, or a name from `rlctl chaos list`")
    run.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the faults (default: 0)")
    run.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON; - is stdout")
    run.add_argument(
        "--out", type=Path, metavar="DIR", help=f"a new folder for logs and report (default: in {CHAOS_DIR})"
    )
    run.add_argument("--plain", action="store_true", help="print lines, not a live panel")
    run.add_argument(
        "--without", default="", metavar="KIND,...",
        help="leave these faults out; `impossible`: all that are impossible here. The report names them",
    )  # fmt: skip
    listed = add_command(
        below, "list", chaos_list, help="list the packaged campaigns",
        description="Campaigns on real processes, by name.", examples=_LIST_EXAMPLES,
    )  # fmt: skip
    listed.add_argument("--json", action="store_true", help="one JSON object for machines")


def chaos_list(args: argparse.Namespace) -> int:
    """Run the command."""
    from gleaner.chaos.real import campaign as campaigns

    found = {name: campaigns.load(name) for name in campaigns.names()}
    if args.json:
        print_json({name: {"about": one.about, "minutes": one.minutes} for name, one in found.items()})
        return OK
    for name, one in found.items():
        console().print(f"{name:14} {one.about}", markup=False)
    return OK


def chaos_run(args: argparse.Namespace) -> int:
    """Run the command."""
    from gleaner.chaos.netns import NoNamespaces, why_not
    from gleaner.chaos.real import campaign as campaigns
    from gleaner.chaos.real import unsupported_faults
    from gleaner.chaos.real.campaign_run import run as run_campaign
    from gleaner.chaos.real.cluster import ClusterFailed
    from gleaner.chaos.real.job import JobsFailed
    from gleaner.chaos.real.view import LiveView, PlainView
    from gleaner.configs.load import ConfigError

    if args.seed < 0:
        raise usage(f"--seed {args.seed}: expected a number ≥ 0")
    without = [kind.strip() for kind in args.without.split(",") if kind.strip()]
    try:
        campaign = campaigns.load(args.campaign).leaving_out(kind for kind in without if kind != IMPOSSIBLE)
        if reason := why_not():
            raise failed(f"chaos on real processes is not possible here: {reason}")
        lacking = {
            kind: why for kind, why in unsupported_faults.impossible().items() if kind in campaign.drawn
        }
        if lacking and IMPOSSIBLE not in without:
            raise failed(
                f"{campaign.name} cannot be done here: {unsupported_faults.description(lacking)}",
                f"what can be done: --without {','.join(lacking)}, or --without {IMPOSSIBLE}",
            )
        if lacking:
            sys.stderr.write(f"left out: {unsupported_faults.description(lacking)}\n")
            campaign = campaign.leaving_out(lacking)
    except campaigns.BadCampaign as problem:
        raise usage(str(problem)) from problem
    except NoNamespaces as problem:
        raise failed(f"chaos on real processes is not possible here: {problem}") from problem
    _make_room(args.json)
    root = _folder(args.out, campaign, args.seed)
    to_stdout = str(args.json) == "-"
    out = sys.stderr if to_stdout else sys.stdout
    live = not args.plain and out.isatty()
    try:
        with _stoppable(), LiveView(campaign, args.seed, out) if live else PlainView(out) as view:
            report = run_campaign(campaign, args.seed, root, view)
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped on request; the cluster is gone, what it left to read is in {root}\n")
        return INTERRUPTED
    except (NoNamespaces, ClusterFailed, JobsFailed, ConfigError) as problem:
        raise failed(f"{campaign.name} could not be run: {problem}", f"logs are in {root}") from problem
    _keep(report, root, args.json)
    if not to_stdout:
        _print(report, root)
    return OK if report.ok else FAILED


def _folder(out: Path | None, campaign: "Campaign", seed: int) -> Path:
    """A new, empty folder. Raises CommandError."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    root = out or CHAOS_DIR / f"{campaign.name}-{seed}-{stamp}-{secrets.token_hex(2)}"
    try:
        root.mkdir(parents=True, exist_ok=out is not None)
    except OSError as problem:
        raise usage(f"--out {root}: cannot be made: {problem.strerror}") from problem
    if any(root.iterdir()):
        raise usage(f"--out {root}: is not empty; name a new folder")
    return root.absolute()


def _make_room(json_file: Path | None) -> None:
    """Check that the output can be written before minutes are spent. Raises CommandError."""
    if json_file is None or str(json_file) == "-":
        return
    try:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        if json_file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as problem:
        raise usage(f"--json {json_file}: cannot be written: {problem.strerror}") from problem


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal end the campaign; the teardown of the cluster ignores them."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = [each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
               if signal.getsignal(each) is not signal.SIG_IGN]  # fmt: skip
    before = {each: signal.signal(each, stop) for each in numbers}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _keep(report: "CampaignReport", root: Path, json_file: Path | None) -> None:
    import msgspec

    from gleaner.chaos.real.page import page_of

    text = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    (root / "chaos.json").write_bytes(text)
    (root / "chaos.html").write_text(page_of(report), encoding="utf-8")
    if json_file is None:
        return
    if str(json_file) == "-":
        sys.stdout.write(text.decode())
    else:
        json_file.write_bytes(text)


def _print(report: "CampaignReport", root: Path) -> None:
    """The closing table."""
    out = console()
    out.print(
        f"{'fault':14} {'fired':>5} {'missed':>6} {'recovered':>9} {'p50':>8} {'p95':>8} {'longest':>8}"
    )
    for one in report.recovery:
        times = (one.recovered_p50_s, one.recovered_p95_s, one.recovered_max_s)
        shown = " ".join(f"{'-' if value is None else f'{value:.1f} s':>8}" for value in times)
        out.print(f"{one.kind:14} {one.fired:>5} {one.missed:>6} {one.recovered:>9} {shown}", markup=False)
    if report.without:
        out.print(f"left out: {', '.join(report.without)}", markup=False)
    taken = ", ".join(f"{name} {count}" for name, count in report.paths.items() if count)
    out.print(f"recovery paths: {taken or 'none'}", markup=False)
    for text in report.violations:
        out.print(f"VIOLATED  {text}", markup=False)
    for text in report.invalid:
        out.print(f"INVALID   {text}", markup=False)
    word = "every invariant held" if report.ok else "FAILED"
    steps = sum(job.steps for job in report.jobs)
    out.print(
        f"{report.campaign}, seed {report.seed}: {word}; {sum(report.fired.values())} faults "
        f"of {len(report.fired)} "
        f"kinds, {steps} steps, {report.seconds:.0f} s", markup=False,
    )  # fmt: skip
    out.print(f"report: {root / 'chaos.html'}", markup=False)


def main() -> int:
    """`python -m gleaner.chaos.commands.chaos run|list`: for a checkout whose entry points are not
    installed."""
    root = argparse.ArgumentParser(prog="rlctl")
    add(root.add_subparsers(required=True, metavar="COMMAND"))
    args = root.parse_args(["chaos", *sys.argv[1:]])
    try:
        return int(args.run(args))
    except CommandError as problem:
        print_errors(problem)
        return problem.code


if __name__ == "__main__":
    sys.exit(main())
