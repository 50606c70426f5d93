"""`rlctl simulate`: what would this job cost, on those machines, with that availability?"""

import argparse
import sys
from pathlib import Path

import msgspec

from configs.load import ConfigError, load
from configs.schema import Config
from rlctl.commands.terminal import Subparsers, add_command, add_json, console
from rlctl.errors import INTERRUPTED, OK, failed, usage
from rlctl.modelled import Words, setting_of
from rlctl.simulate import Progress, Simulated, Stop, baseline_of, simulate
from rlctl.simulate_page import page_of, rows_of
from rlctl.wording import duration

_DESCRIPTION = """\
Run a job on modelled machines, on virtual time, before anything is rented.

The same actors as in `rlctl run`; engines, trainers, network and disks are models of real ones (see
docs/simulator.md for what they assume). Beside it the same job with the same seed is run co-located: on the
reserved host alone. Ctrl-C ends it and shows what was computed until then."""

_EXAMPLES = """\
  rlctl simulate quickstart
  rlctl simulate rlboost-14b --trace ../shared/data/spot/rlboost_like_segA.csv
  rlctl simulate rlboost-14b --preemptible h200x2:tp2 --set fleet.n_prem_max=12 --out what-if
  rlctl simulate quickstart --json --no-baseline"""

PRESETS: dict[str, Words] = {
    "rlboost-14b": Words(
        model="qwen3-14b",
        reserved="h100x8:tp2",
        preemptible="h100x2:tp2",
        lengths="5400,0.8,0.6",
        token_scale=64,
        gbit_s=200.0,
        boot_s=60.0,
    )
}
"""Machines of the settings that come with the package and need others than a laptop's."""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "simulate",
        run,
        help="what a job would cost on other machines",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("config", metavar="CONFIG", help="a TOML file, or the name of a preset: quickstart")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="one setting over the file's; repeatable"
    )
    parser.add_argument("--seed", metavar="N", help="short for --set job.seed=N")
    parser.add_argument("--trace", metavar="FILE", help="short for --set fleet.trace=FILE")
    parser.add_argument("--steps", metavar="N", help="short for --set job.steps=N")
    parser.add_argument("--model", metavar="NAME", help="qwen3-14b and the like; default: the settings' own")
    parser.add_argument("--reserved", metavar="RIG", help="what stands in the reserved host: h100x8:tp2")
    parser.add_argument("--preemptible", metavar="RIG", help="what stands in each preemptible host")
    parser.add_argument(
        "--lengths", metavar="MEDIAN,SIGMA,CORRELATION", help="log-normal law of response lengths, tokens"
    )
    parser.add_argument(
        "--token-scale", type=int, metavar="S", help="tokens that one simulated token stands for: faster"
    )
    parser.add_argument("--gbit", type=float, metavar="G", help="of each host's network card, Gbit/s")
    parser.add_argument("--boot", type=float, metavar="S", help="from the wish for a machine to its boot")
    parser.add_argument("--hours", type=float, metavar="H", help="give up after so many virtual hours")
    parser.add_argument("--no-baseline", action="store_true", help="leave the co-located run out")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write simulate.html and simulate.json there")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    config, words = _settings(args), _words(args)
    setting = setting_of(config, words)
    stop = Stop()
    settings = {"job": setting}
    if not args.no_baseline:
        settings["co-located"] = baseline_of(setting)
    done: list[Simulated] = []
    show = _Shown(args.json)
    with stop.listening():
        for name, each in settings.items():
            if not stop.asked:
                done.append(simulate(name, each, stop, show.progress, token_scale=words.token_scale))
    show.over()
    told = {
        "interrupted": stop.asked,
        "runs": {one.name: {"ended": one.outcome.ended, **_builtins(one)} for one in done},
    }
    if args.out is not None:
        _write(args.out, page_of(config, words, done), told)
    if args.json:
        sys.stdout.write(msgspec.json.encode({"kind": "result", **told}).decode() + "\n")
    else:
        _print(config, words, done, args.out)
    return INTERRUPTED if stop.asked else OK


def _settings(args: argparse.Namespace) -> Config:
    short = {"job.seed": args.seed, "fleet.trace": args.trace, "job.steps": args.steps}
    sets = [*args.set, *(f"{key}={value}" for key, value in short.items() if value is not None)]
    try:
        return load(args.config, sets)
    except ConfigError as problem:
        raise usage(*problem.problems) from problem


def _words(args: argparse.Namespace) -> Words:
    """The options over those of the preset."""
    words = PRESETS.get(str(args.config), Words())
    given = {
        "model": args.model,
        "reserved": args.reserved,
        "preemptible": args.preemptible,
        "lengths": args.lengths,
        "token_scale": args.token_scale,
        "gbit_s": args.gbit,
        "boot_s": args.boot,
        "hours": args.hours,
    }
    for option in ("gbit", "hours"):
        if getattr(args, option) is not None and not getattr(args, option) > 0:
            raise usage(f"--{option} {getattr(args, option):g}: expected more than 0")
    if args.boot is not None and not args.boot >= 0:
        raise usage(f"--boot {args.boot:g}: expected 0 or more")
    fields = {name: getattr(words, name) for name in Words.__slots__}
    return Words(**{**fields, **{name: value for name, value in given.items() if value is not None}})


def _builtins(one: Simulated) -> dict[str, object]:
    outcome = one.outcome
    return {
        "reason": outcome.reason,
        "virtual_s": outcome.virtual_s,
        "wall_s": outcome.wall_s,
        "trace_hash": outcome.trace_hash,
        "figures": msgspec.to_builtins(one.figures),
    }


def _write(folder: Path, page: str, told: dict[str, object]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "simulate.json").write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=2))
        (folder / "simulate.html").write_text(page)
    except OSError as problem:
        raise failed(f"{folder}: cannot be written: {problem.strerror}") from problem


def _print(config: Config, words: Words, done: list[Simulated], folder: Path | None) -> None:
    out = console()
    for line in rows_of(config, words, done):
        out.print(line, markup=False)
    if folder is not None:
        out.print(f"page: {folder / 'simulate.html'}", markup=False)


class _Shown:
    """Progress: JSON lines, a line that is written over in a terminal, or one now and then elsewhere."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._live = sys.stderr.isatty()
        self._step = -1

    def progress(self, at: Progress) -> None:
        """It went on."""
        if self._json:
            if at.step != self._step:
                sys.stdout.write(msgspec.json.encode(at).decode() + "\n")
                sys.stdout.flush()
        elif self._live or at.step != self._step:
            left = "" if at.left_s is None else f", {duration(at.left_s)} left"
            text = f"{at.run}: step {at.step} of {at.steps}, {duration(at.virtual_s)} simulated{left}"
            sys.stderr.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
            sys.stderr.flush()
        self._step = at.step

    def over(self) -> None:
        """No more comes."""
        if self._live and not self._json:
            sys.stderr.write("\r\x1b[K")
