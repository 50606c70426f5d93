"""`rlctl simulate`: cost of a job on other machines, with given availability.

Owns the arguments, the output and the exit code.
"""

import argparse
import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from gleaner.configs.load import ConfigError, load
from gleaner.configs.schema import Config
from gleaner.rlctl import runs
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, add_runs_dir, console
from gleaner.rlctl.errors import FAILED, INTERRUPTED, OK, failed, usage
from gleaner.rlctl.fitted_times import fitted
from gleaner.rlctl.quantity_format import duration
from gleaner.rlctl.simulate import Progress, Simulated, Stop, baseline_of, simulate_all
from gleaner.rlctl.simulate_page import RequestText, page_of, rows_of
from gleaner.rlctl.what_if_setup import WhatIfOptions, setting_of
from gleaner.rlctl.width_table import WidthRow, lines_of, width_rows
from gleaner.sim.models.hardware import device_names
from gleaner.sim.models.shapes import model_names
from gleaner.sim.run_setup import RunSetup

_DESCRIPTION = f"""\
Run a job on modelled machines, on virtual time, to estimate its cost before machines are rented.

The actors are those of `rlctl run`; engines, trainers, network and disks are models of real ones
(docs/simulator.md has their assumptions and errors). The same job with the same seed is also run co-located,
on the reserved host alone, as a baseline. Ctrl-C ends it and shows the results so far.

It prints a table and writes a page with plots: throughput, parts of a step's time, T_seed, instances in use,
tokens per money at the prices of the settings (--set prices.preemptible_per_hour=2). For hosts of several
devices it also prints the predicted step of each tensor-parallel width, and marks the best one.

devices: {", ".join(device_names())}
models:  {", ".join(model_names())}
A RIG is DEVICE, or DEVICExCOUNT:tpN for COUNT of them of which each N hold one copy of the model:
h100x8:tp2. A trace is a CSV of t_seconds,event,instance_id with the events add, notice and remove."""

_EXAMPLES = """\
  rlctl simulate quickstart                                half a minute; the machines are cores
  rlctl simulate rlboost-14b                               Qwen3-14B on H100, eight instances at any time
  rlctl simulate rlboost-14b --trace spot.csv --notice 120 hosts join and leave, with two minutes' notice
  rlctl simulate rlboost-14b --preemptible h200x2:tp2 --set fleet.n_prem_max=12 --out what-if
  rlctl simulate mine.toml --model qwen3-32b --reserved h100x8:tp4 --preemptible a100x4:tp4 --token-scale 64
  rlctl simulate quickstart --fit quickstart-2026          with the measured times of that run of `rlctl run`
  rlctl simulate quickstart --json --no-baseline"""

PRESETS: dict[str, WhatIfOptions] = {
    "rlboost-14b": WhatIfOptions(
        model="qwen3-14b",
        reserved="h100x8:tp2",
        preemptible="h100x2:tp2",
        lengths="5400,0.8,0.6",
        token_scale=64,
        gbit_s=200.0,
        boot_s=60.0,
    )
}
"""Packaged settings that need other machines than a laptop."""
WHAT_IF = "what-if"
"""Folder, in that of all runs, for pages without a given place."""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "simulate",
        run,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("config", metavar="CONFIG", help="a TOML file, or a preset: quickstart, rlboost-14b")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="one setting over the file's; repeatable"
    )
    parser.add_argument("--seed", metavar="N", help="short for --set job.seed=N")
    parser.add_argument("--steps", metavar="N", help="short for --set job.steps=N")
    parser.add_argument("--trace", metavar="FILE", help="short for --set fleet.trace=FILE")
    parser.add_argument(
        "--notice",
        type=float,
        metavar="S",
        help="each host gets a notice S seconds before the trace removes it",
    )
    parser.add_argument(
        "--model", metavar="NAME", help="one of the models above (default: the settings' own)"
    )
    parser.add_argument("--reserved", metavar="RIG", help="devices of the reserved host")
    parser.add_argument("--preemptible", metavar="RIG", help="devices of each preemptible host")
    parser.add_argument(
        "--lengths",
        metavar="MEDIAN,SIGMA,CORRELATION",
        help="log-normal distribution of response lengths, tokens",
    )
    parser.add_argument(
        "--fit", metavar="RUN", help="use the measured times and lengths of this run: its id or folder"
    )
    parser.add_argument(
        "--token-scale", type=int, metavar="S", help="model tokens per simulated token; larger is faster"
    )
    parser.add_argument("--gbit", type=float, metavar="G", help="rate of each host's network card, Gbit/s")
    parser.add_argument(
        "--boot",
        type=float,
        metavar="S",
        help="seconds from a request for a machine to its boot, up to twice that",
    )
    parser.add_argument("--hours", type=float, metavar="H", help="stop after H virtual hours")
    parser.add_argument("--no-baseline", action="store_true", help="skip the co-located run")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"folder for simulate.html and simulate.json (default: a new folder in runs/{WHAT_IF}; with "
        "--json they are written only if DIR is given)",
    )
    add_json(parser)
    add_runs_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    config, words = _settings(args), _words(args)
    setting, notes = _setting(args, config, words)
    folder = _folder(args, config)
    stop = Stop()
    settings = {"job": setting}
    if not args.no_baseline:
        settings["co-located"] = baseline_of(setting)
    show = _Shown(args.json)
    with stop.listening():
        done = simulate_all(settings, stop, show.progress)
    show.over()
    asked = RequestText(config, words, setting.trace, notes)
    widths = width_rows(setting)
    report = {
        "interrupted": stop.asked,
        "machines": asked.machines,
        "notes": list(notes),
        "runs": {one.name: _builtins(one) for one in done},
        "widths": msgspec.to_builtins(widths),
    }
    if folder is not None:
        _write(folder, page_of(asked, done), report)
    if args.json:
        sys.stdout.write(msgspec.json.encode({"kind": "result", **report}).decode() + "\n")
    else:
        _print(asked, done, widths, folder)
    if stop.asked:
        return INTERRUPTED
    return OK if all(one.outcome.ended == "done" for one in done) else FAILED


def _settings(args: argparse.Namespace) -> Config:
    short = {"job.seed": args.seed, "fleet.trace": args.trace, "job.steps": args.steps}
    sets = [*args.set, *(f"{key}={value}" for key, value in short.items() if value is not None)]
    try:
        return load(args.config, sets)
    except ConfigError as problem:
        raise usage(*problem.problems) from problem


def _words(args: argparse.Namespace) -> WhatIfOptions:
    """The options over those of the preset."""
    words = PRESETS.get(str(args.config), WhatIfOptions())
    given = {
        "model": args.model,
        "reserved": args.reserved,
        "preemptible": args.preemptible,
        "lengths": args.lengths,
        "token_scale": args.token_scale,
        "gbit_s": args.gbit,
        "boot_s": args.boot,
        "hours": args.hours,
        "notice_s": args.notice,
    }
    for option in ("gbit", "hours"):
        if getattr(args, option) is not None and not getattr(args, option) > 0:
            raise usage(f"--{option} {getattr(args, option):g}: expected more than 0")
    for option in ("boot", "notice"):
        if getattr(args, option) is not None and not getattr(args, option) >= 0:
            raise usage(f"--{option} {getattr(args, option):g}: expected 0 or more")
    fields = {name: getattr(words, name) for name in WhatIfOptions.__slots__}
    return WhatIfOptions(**{**fields, **{name: value for name, value in given.items() if value is not None}})


def _setting(
    args: argparse.Namespace, config: Config, words: WhatIfOptions
) -> tuple[RunSetup, tuple[str, ...]]:
    """The setting, and the source of its figures where that is not the tables. Raises CommandError."""
    setting = setting_of(config, words)
    if args.notice is not None and setting.trace is None:
        raise usage("--notice goes with a trace, which takes hosts away; give one with --trace")
    if args.fit is None:
        return setting, ()
    if args.model is not None:
        raise usage("--fit takes the model's times from a run, so --model has no effect; leave one out")
    found = fitted(runs.find(args.runs_dir, args.fit), setting.job_model, setting.reserved)
    job_model = found.job_model(setting.job_model, keep_lengths=args.lengths is not None)
    return replace(setting, job_model=job_model), found.remarks


def _folder(args: argparse.Namespace, config: Config) -> Path | None:
    out: Path | None = args.out
    if out is not None or args.json:
        return out
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder: Path = args.runs_dir / WHAT_IF
    return folder / f"{config.job.name}-{config.job.seed}-{stamp}-{secrets.token_hex(2)}"


def _builtins(one: Simulated) -> dict[str, object]:
    outcome = one.outcome
    return {
        "ended": outcome.ended,
        "reason": outcome.reason,
        "virtual_s": outcome.virtual_s,
        "wall_s": outcome.wall_s,
        "trace_hash": outcome.trace_hash,
        "figures": msgspec.to_builtins(one.figures),
    }


def _write(folder: Path, page: str, report: dict[str, object]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "simulate.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
        (folder / "simulate.html").write_text(page, encoding="utf-8")
    except OSError as problem:
        raise failed(f"{folder}: cannot be written: {problem.strerror}") from problem


def _print(asked: RequestText, done: list[Simulated], widths: list[WidthRow], folder: Path | None) -> None:
    out = console()
    for line in [*rows_of(asked, done), *lines_of(widths)]:
        out.print(line, markup=False)
    if folder is not None:
        out.print(f"page with plots: {folder / 'simulate.html'}", markup=False)


class _Shown:
    """Progress: JSON lines, one line overwritten in a terminal, or an occasional line elsewhere."""

    EVERY_S = 5.0  # between two lines, where they are not overwritten

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._live = sys.stderr.isatty()
        self._at = ("", -1)
        self._told_s = 0.0

    def progress(self, at: Progress) -> None:
        """Show an update."""
        began, stepped = at.run != self._at[0], (at.run, at.step) != self._at
        late = at.wall_s - self._told_s >= self.EVERY_S
        if not (self._live or began or late or (self._json and stepped)):
            return
        self._at, self._told_s = (at.run, at.step), at.wall_s
        if self._json:
            sys.stdout.write(msgspec.json.encode(at).decode() + "\n")
            sys.stdout.flush()
        else:
            self._line(at)

    def over(self) -> None:
        """Close the display."""
        if self._live and not self._json:
            sys.stderr.write("\r\x1b[K")

    def _line(self, at: Progress) -> None:
        which = f"{at.run} ({at.number} of {at.runs})" if at.runs > 1 else at.run
        left = "" if at.left_s is None else f", {duration(at.left_s)} left of this run"
        text = f"{which}: step {at.step} of {at.steps}, {duration(at.virtual_s)} simulated{left}"
        sys.stderr.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        sys.stderr.flush()
