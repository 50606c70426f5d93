"""CommandError: ends a command with an exit code and lines that explain it."""

from collections.abc import Sequence

OK = 0
FAILED = 1
USAGE = 2
NOTHING = 3
UNSERVED = 4
UNCHECKED = 5
UNSCORED = 6
INTERRUPTED = 130

MEANINGS = (
    "exit codes: 0 done; 1 the run or the command failed; 2 usage or settings that cannot be used; "
    "3 nothing runs there, or not found; 4 no preemptible instance served and the settings require one; "
    "5 nothing is known to be broken, but not everything could be checked; 6 no score: the "
    "verifier failed for a response, for all of a run, or stayed sick; 130 interrupted"
)


class CommandError(Exception):
    """Ends a command. `code` is its exit code; each line becomes an `error: ...` line on standard error."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.code = code
        self.lines: Sequence[str] = lines


def usage(*lines: str) -> CommandError:
    """Arguments, settings, keys or traces that cannot be used."""
    return CommandError(USAGE, *lines)


def unserved(*lines: str) -> CommandError:
    """The settings require a preemptible instance, and none has served."""
    return CommandError(UNSERVED, *lines)


def unscored(*lines: str) -> CommandError:
    """The verifier failed for longer than the settings allow, or no sample of the run was scored."""
    return CommandError(UNSCORED, *lines)


def failed(*lines: str) -> CommandError:
    """Error of a command that was tried and failed."""
    return CommandError(FAILED, *lines)


def nothing(*lines: str) -> CommandError:
    """Error for a named object that does not exist, or does not run."""
    return CommandError(NOTHING, *lines)
