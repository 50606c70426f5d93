"""`rlctl`: the command line.

Owns which command's module is imported, and the last word on what goes wrong: a line on standard error and an
exit code, never a traceback for something that a user can mend.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from rlctl.command_list import COMMANDS
from rlctl.commands.terminal import print_errors
from rlctl.errors import FAILED, INTERRUPTED, MEANINGS, OK, CommandError, failed
from rlctl.signals import SIGNALS

_DESCRIPTION = """\
Reinforcement-learning post-training with rollouts on machines that may vanish at any instant.

Begin with `rlctl doctor`, then `rlctl run quickstart`. What a job would cost on other machines: `rlctl
simulate quickstart`. Whether it keeps its promises when it is broken: `rlctl sim run` (on virtual time) and
`rlctl chaos run real-ci` (on real processes). Every command has a --help with examples."""


class _Version(argparse.Action):
    """Print the version of the installed distribution, which is read only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"gleaner {version('gleaner')}")
        parser.exit(OK)


def parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The command line of the command that `words` call; where they call none, the list of all commands.

    Only the called command's module is imported; packages that bring commands are imported where the words
    name none of `COMMANDS`.
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
            import_module(f"rlctl.commands.{name}").add(commands)
        else:
            commands.add_parser(name, help=help)
    if called not in COMMANDS:
        from rlctl.extensions import announced

        for command in announced():
            command.add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    args = parser(words).parse_args(words)
    logging.getLogger().addHandler(logging.NullHandler())  # what a user must know is said by the command
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except CommandError as problem:
        print_errors(problem)
        return problem.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `rlctl logs | head`: whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as problem:
        print_errors(failed(f"{problem.filename or 'the system'}: {problem.strerror or problem}"))
        return FAILED
    return code


def script() -> int:
    """`main` as a process of its own: behind its last word no signal is heard, so its exit code stands."""
    try:
        code = main()
    except KeyboardInterrupt:  # it came between the command's end and this line
        code = INTERRUPTED
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    sys.exit(script())
