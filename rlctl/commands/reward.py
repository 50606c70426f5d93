"""`rlctl reward`: scores one response as a job would, or any number over HTTP."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gleaner.rlctl.commands import reward_serve, reward_state, reward_top
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, console, print_json
from gleaner.rlctl.errors import OK, UNSCORED, CommandError, usage

if TYPE_CHECKING:
    from gleaner.actors.reward.entries import Entry
    from gleaner.configs.schema import Config, Task
    from gleaner.rlctl.reward_trial import Tried

_DESCRIPTION = """\
Score one response as a job's reward worker would, and show the parts of the score.

PROBLEM is a file with one problem, as a row of a task's data (docs/tasks.md): a JSON object with prompt,
answer, tests, info. With --index it is a problem of the task's own. RESPONSE is a file with a model's
response; a last line break is left out. Either may be -, standard input.

The verifier is that of the settings in --config, or --verifier NAME. Shown are score and status, its parts,
times (separately the start of the sandbox, which a worker pays once), the program's isolation, the part of
the response that was read, the program's output, the text of a judge with its calls and waits and, for
functions of your own, the refusals of the sandbox.

Exit code 0: the response has a score, even if it is 0 (a wrong answer, a time-out, a crash). 6: it has none,
for a reason outside the response: the function raised, the service is away, there is no sandbox. 2: the
problem or the settings cannot be used."""

_ALL = """\
Score one response as a job would (try), serve scores over HTTP to other trainers (serve), and show the reward
tier of a running job: stages, hosts and batches (ps; top: live), and where one request is (tap).
docs/rewards.md describes the tier."""

_ALL_EXAMPLES = """\
  rlctl reward try problem.json answer.txt --config job.toml
  rlctl reward serve job.toml --listen 127.0.0.1:8900
  rlctl reward ps
  rlctl reward top
  rlctl reward tap step-12/3/1"""

_EXAMPLES = """\
  rlctl reward try problem.json answer.txt --config job.toml
  echo "So it is 42" | rlctl reward try --config job.toml --index 3 -
  rlctl reward try problem.json answer.txt --verifier math --json | jq .score
  rlctl reward try problem.json answer.txt --verifier python --param call=my_rewards:score
  rlctl reward try problem.json answer.txt --verifier judge --param url=http://judge:8000/v1 \\
      --param model=Qwen2.5-7B-Instruct --param rubric=rubric.txt"""

MAX_RESPONSE_BYTES = 16 * 2**20
MAX_LINES = 20
"""Characters of a shown text; --json has all of it."""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "reward", try_, description=_ALL, examples=_ALL_EXAMPLES)
    kinds = cast(Subparsers, parser.add_subparsers(dest="what", required=True, metavar="COMMAND"))
    reward_state.add(kinds)
    reward_top.add(kinds)
    reward_serve.add(kinds)
    one = add_command(
        kinds, "try", try_, help="score one response", description=_DESCRIPTION, examples=_EXAMPLES
    )
    one.add_argument(
        "files", nargs="+", metavar="FILE", help="PROBLEM and RESPONSE; with --index RESPONSE alone"
    )
    one.add_argument("--config", default="", metavar="CONFIG", help="settings: a TOML file or a preset")
    one.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="one setting over the file's"
    )
    one.add_argument(
        "--task", default="", metavar="NAME", help="task of the settings, where they have several"
    )
    one.add_argument("--index", type=int, metavar="N", help="problem N of the task, from 0")
    one.add_argument(
        "--split", choices=("train", "heldout"), default="train", help="split of --index (default: train)"
    )
    one.add_argument(
        "--verifier", default="", metavar="NAME", help="use this verifier, not the one of the settings"
    )
    one.add_argument(
        "--param", action="append", default=[], metavar="K=V", help="a parameter of the verifier; repeated"
    )
    add_json(one)


def try_(args: argparse.Namespace) -> int:
    """Run the command."""
    wanted = 1 if args.index is not None else 2
    if len(args.files) != wanted:
        what = "RESPONSE" if wanted == 1 else "PROBLEM and RESPONSE"
        raise usage(f"expected {what}, got {len(args.files)} files")
    if args.files.count("-") > 1:
        raise usage("standard input is one text: give the problem or the response as a file")
    if not args.config and not args.verifier:
        raise usage("what scores it? give --config CONFIG or --verifier NAME")
    if args.index is not None and not args.config:
        raise usage("--index needs --config, whose task has the problem")
    params = dict(map(_param, args.param))
    from gleaner.actors.reward.sandbox.detection import NoSandbox
    from gleaner.actors.reward.sandbox.program_pipes import SandboxFailed
    from gleaner.rlctl import reward_trial

    config = _config(args)
    response = _text(args.files[-1]).removesuffix("\n").removesuffix("\r")
    try:
        task = reward_trial.task_of(config, args.task) if args.config else None
        entry = _problem(args, config, task)
        spec = reward_trial.verifier_spec(config, task, args.verifier, params)
        found = reward_trial.tried(spec, entry, response, time.perf_counter)
    except (reward_trial.BadTask, reward_trial.BadVerifier) as problem:
        raise usage(str(problem)) from problem
    except (NoSandbox, SandboxFailed) as problem:
        raise CommandError(UNSCORED, str(problem)) from problem
    if args.json:
        print_json(found)
    else:
        _show(found, entry)
    return OK if found.scored else UNSCORED


def _config(args: argparse.Namespace) -> "Config":
    from gleaner.configs.load import ConfigError, load
    from gleaner.nodeagent.model_discovery import NoModel, with_judge

    try:
        return with_judge(load(args.config or None, args.set))
    except ConfigError as problem:
        raise usage(*problem.problems) from problem
    except NoModel as problem:
        raise usage(str(problem)) from problem


def _problem(args: argparse.Namespace, config: "Config", task: "Task | None") -> "Entry":
    from gleaner.actors.reward import rows
    from gleaner.rlctl import reward_trial

    if args.index is not None:
        assert task is not None
        return reward_trial.problem_of(task, config, args.split, args.index)
    fields, system = (task.fields, task.system) if task and task.data else ({}, "")
    try:
        return rows.line(_text(args.files[0]), fields, system)
    except rows.BadRow as problem:
        raise usage(f"{args.files[0]}: {problem}") from problem


def _text(file: str) -> str:
    try:
        if file == "-":
            data = sys.stdin.buffer.read(MAX_RESPONSE_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(MAX_RESPONSE_BYTES + 1)
        if len(data) > MAX_RESPONSE_BYTES:
            raise usage(f"{file}: more than {MAX_RESPONSE_BYTES} bytes")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise usage(f"{file}: expected UTF-8 text, got other bytes at offset {problem.start}") from problem
    except OSError as problem:
        raise usage(f"{file}: cannot be read: {problem.strerror or problem}") from problem


def _param(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise usage(f"--param {text!r}: expected NAME=VALUE")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def _show(found: "Tried", entry: "Entry") -> None:
    out = console()
    score = "none" if found.score is None else f"{found.score:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in found.parts.items())
    times = (
        f"start {found.start_s:.3f} s, score {found.wall_s:.3f} s, processor "
        f"{f'{found.cpu_s:.3f} s' if found.cpu_s else 'not measured'}"
    )
    rows = [
        ("score", f"{score} ({found.status})"),
        ("parts", parts),
        ("detail", found.detail),
        ("verifier", f"{found.verifier}, task {found.task}"),
        ("isolation", found.isolation),
        ("times", times),
        ("problem", entry.question),
        ("read", found.read),
        ("printed", found.printed),
        ("refused", "\n".join(found.refused)),
    ]
    for name, text in rows:
        if text:
            first, *rest = _lines(text)
            out.print(f"{name:10} {first}", markup=False)
            for line in rest:
                out.print(f"{'':10} {line}", markup=False)


def _lines(text: str) -> list[str]:
    """Lines for a terminal, without the control characters of a model's output."""
    lines = text.strip("\n").split("\n")
    plain = ["".join(one if one.isprintable() else repr(one)[1:-1] for one in line) for line in lines]
    left = len(plain) - MAX_LINES
    return plain if left <= 0 else [*plain[:MAX_LINES], f"... {left} more lines; --json has all"]
