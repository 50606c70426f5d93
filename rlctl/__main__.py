"""`rlctl`: the command line.

Owns the list of commands, and the last word on what goes wrong: a line on standard error and an exit code,
never a traceback for something that a user can mend.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence

from rlctl.commands import (
    audit,
    deadletters,
    describe,
    doctor,
    engine,
    gateway,
    generate,
    journal,
    keygen,
    kill,
    log,
    logs,
    model,
    preempt,
    ps,
    publish,
    report,
    resume,
    revoke,
    run,
    simulate,
    tap,
    top,
    tree,
    trust,
    waits,
    weights,
)
from rlctl.commands.terminal import print_errors
from rlctl.errors import FAILED, INTERRUPTED, MEANINGS, OK, CommandError, failed
from rlctl.extensions import announced
from rlctl.interrupt import SIGNALS

_DESCRIPTION = """\
Reinforcement-learning post-training with rollouts on machines that may vanish at any instant.

Begin with `rlctl doctor`, then `rlctl run quickstart`. What a job would cost on other machines: `rlctl
simulate quickstart`. Whether it keeps its promises when it is broken: `rlctl sim run` (on virtual time) and
`rlctl chaos run real-ci` (on real processes). Every command has a --help with examples."""

LOOKING = (ps, tree, top, tap, waits, deadletters, describe, logs)
COMMANDS = (
    run,
    resume,
    simulate,
    *LOOKING,
    kill,
    preempt,
    generate,
    gateway,
    publish,
    report,
    log,
    audit,
    journal,
    model,
    weights,
    engine,
    keygen,
    trust,
    revoke,
    doctor,
)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = argparse.ArgumentParser(
        prog="rlctl",
        description=_DESCRIPTION,
        epilog=MEANINGS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (*COMMANDS, *announced()):
        command.add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parser().parse_args(argv)
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
