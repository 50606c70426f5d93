"""`rlctl model new|show`: makes a small model, or describes a checkpoint."""

import argparse
import tempfile
from pathlib import Path
from typing import cast

from gleaner.configs.load import ConfigError, dump, load
from gleaner.configs.schema import Config
from gleaner.rlctl import models
from gleaner.rlctl.commands.run import progress_printer
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, console, print_json
from gleaner.rlctl.errors import OK, usage
from gleaner.rlctl.preflight import size

_DESCRIPTION = """\
Make a small model that RL can improve, or describe a checkpoint directory.

`new` writes a Hugging Face checkpoint (Qwen3 architecture, tokenizer, chat template) with the dimensions of
the settings' [model], warm-started by a short supervised phase on problems of [task] that RL never uses. The
same settings and seed give the same model. `rlctl run` does this itself when model.path is empty.
`show` loads a checkpoint exactly as the trainer will, and prints its contents."""

_EXAMPLES = """\
  rlctl model new my-model                                     with the settings of the preset quickstart
  rlctl model new my-model --set model.layers=4 --set model.warm_start.steps=1000
  rlctl model show my-model
  rlctl run quickstart --set model.path=my-model               train it"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "model", show, description=_DESCRIPTION, examples=_EXAMPLES)
    kinds = cast(Subparsers, parser.add_subparsers(dest="what", required=True, metavar="new|show"))
    make = add_command(
        kinds, "new", new, help="make a small model", description=_DESCRIPTION, examples=_EXAMPLES
    )
    make.add_argument("directory", type=Path, metavar="DIR", help="folder to write; it must not exist")
    make.add_argument("--config", default="quickstart", help="settings file or preset (default: quickstart)")
    make.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="one setting over the file's"
    )
    add_json(make)
    look = add_command(
        kinds, "show", show, help="describe a checkpoint", description=_DESCRIPTION, examples=_EXAMPLES
    )
    look.add_argument("directory", type=Path, metavar="DIR", help="a Hugging Face checkpoint directory")
    add_json(look)


def new(args: argparse.Namespace) -> int:
    """Make a model."""
    if args.directory.exists():
        raise usage(f"{args.directory} exists: choose another directory, or remove it")
    config = _settings(args)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_text(dump(config))
        made = models.make(args.directory, file, progress_printer("json" if args.json else "auto")).run()
    return _tell(made, as_json=args.json)


def show(args: argparse.Namespace) -> int:
    """Describe a checkpoint."""
    return _tell(models.show(args.directory), as_json=args.json)


def _settings(args: argparse.Namespace) -> Config:
    try:
        return load(args.config, args.set)
    except ConfigError as problem:
        raise usage(*problem.problems) from problem


def _tell(made: models.MadeModel, *, as_json: bool) -> int:
    if as_json:
        print_json(made)
        return OK
    out = console()
    out.print(f"{made.path}: loads", markup=False)
    for name, value in (
        ("parameters", f"{made.parameters:,} ({size(made.bytes)})"),
        (
            "layers",
            f"{made.layers} of width {made.hidden_size}, {made.heads} heads, {made.kv_heads} for keys",
        ),
        ("vocabulary", f"{made.vocabulary:,}"),
        ("positions", f"{made.longest:,}"),
        ("a problem", made.example),
    ):
        if value:
            out.print(f"  {name:11} {value}", markup=False)
    return OK
