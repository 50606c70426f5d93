"""Entry point of the command line `rlctl`.

Owns the choice of the command's module and the final error handling: a line on standard error and an exit
code, never a traceback for an error that a user can fix.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from gleaner.rlctl.command_list import COMMANDS
from gleaner.rlctl.commands.terminal import print_errors
from gleaner.rlctl.errors import FAILED, INTERRUPTED, MEANINGS, OK, CommandError, failed
from gleaner.rlctl.signals import SIGNALS

_DESCRIPTION = """\
Reinforcement-learning post-training with rollouts on machines that may vanish at any instant.

Begin with `rlctl doctor`, then `rlctl run quickstart`. `rlctl simulate quickstart` estimates the cost of a
job on other machines. `rlctl sim run` (on virtual time) and `rlctl chaos run real-ci` (on real processes)
check the guarantees under faults. Every command has a --help with examples."""


class _Version(argparse.Action):
    """Print the version of the installed distribution, which is read only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"gleaner {version('gleaner')}")
        parser.exit(OK)


def parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for the command named in `words`, or for the list of all commands where `words` names none.

    Only the module of the named command is imported. Packages that add commands are imported where `words`
    names none of `COMMANDS`.
    """
    root = argparse.ArgumentParser(
        prog="rlctl",
        description=_DESCRIPTION,
        epilog=MEANINGS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    called = words[0] if words else ""
    for name, help in COMMANDS.items():
        if name == called:
            import_module(f"gleaner.rlctl.commands.{name}").add(commands)
        else:
            commands.add_parser(name, help=help)
    if called not in COMMANDS:
        from gleaner.rlctl.extensions import announced

        for command in announced():
            command.add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    args = parser(words).parse_args(words)
    logging.getLogger().addHandler(logging.NullHandler())  # the command prints what a user must know
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except CommandError as problem:
        print_errors(problem)
        return problem.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `rlctl logs | head`: the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as problem:
        print_errors(failed(f"{problem.filename or 'the system'}: {problem.strerror or problem}"))
        return FAILED
    return code


def script() -> int:
    """Run `main` as a process; signals are ignored after it returns, so that the exit code stays the
    command's."""
    try:
        code = main()
    except KeyboardInterrupt:  # raised between the command's end and this line
        code = INTERRUPTED
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    sys.exit(script())
