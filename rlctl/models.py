"""Making, checking and describing models in a process of its own.

The process keeps torch out of `rlctl`. Owns that process and its lines. The work is in
`gleaner.rlctl.model_process`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gleaner.rlctl.errors import CommandError, failed, usage
from gleaner.supervisor.process import PARENT_VARIABLE, last_words

MAX_SAID = 4096
"""Characters of an unforeseen failure that are shown, from its end."""


class ProcessLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """A line from the process."""


class Progress(ProcessLine, frozen=True, kw_only=True):
    """Progress of the warm start. loss: nats a token."""

    step: int
    steps: int
    loss: float


class MadeModel(ProcessLine, frozen=True, kw_only=True, tag="made"):
    """Contents of a checkpoint directory that loads. example: a problem of the task, if one was requested."""

    path: str
    parameters: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    vocabulary: int
    longest: int
    bytes: int
    example: str = ""


class Unusable(ProcessLine, frozen=True, kw_only=True):
    """The model cannot be used. `text` contains the fault, its place and the next step."""

    text: str


_decoder = msgspec.json.Decoder(Progress | MadeModel | Unusable)
OnProgress = Callable[[Progress], None]


def make(out_dir: Path, config_file: Path, on_progress: OnProgress) -> "Preparation":
    """The making of the settings' model in `out_dir`."""
    return Preparation(["new", str(out_dir), "--config", str(config_file)], on_progress)


def check(model_dir: Path, config_file: Path) -> "Preparation":
    """The check of a checkpoint as the trainer will load it; it renders some problems with its tokenizer."""
    return Preparation(["check", str(model_dir), "--config", str(config_file)], lambda _: None)


class Preparation:
    """Makes the model of a job, or checks the one that its settings name.

    Args:
        arguments: of the process that does it. on_progress: called in the thread of `run`.
    """

    def __init__(self, arguments: Sequence[str], on_progress: OnProgress) -> None:
        self._arguments = arguments
        self._on_progress = on_progress
        self._process: subprocess.Popen[str] | None = None
        self._cancelled = False

    def run(self) -> MadeModel:
        """Do it; it takes seconds. Raises CommandError, also where it was cancelled."""
        return _ask(self._arguments, self._on_progress, self._began)

    def cancel(self) -> None:
        """Cancel it from another thread, if it still runs."""
        self._cancelled = True
        if self._process is not None:
            self._process.kill()

    def _began(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        if self._cancelled:
            process.kill()


def show(model_dir: Path) -> MadeModel:
    """Load a checkpoint and describe it. Raises CommandError."""
    return _ask(["show", str(model_dir)], lambda _: None)


def _ask(
    arguments: Sequence[str],
    on_progress: OnProgress,
    on_begin: "Callable[[subprocess.Popen[str]], None]" = lambda _: None,
) -> MadeModel:
    made: MadeModel | None = None
    with _process(arguments) as process:
        on_begin(process)
        for line in _lines(process):
            if isinstance(line, Progress):
                on_progress(line)
            elif isinstance(line, Unusable):
                raise usage(*line.text.splitlines())
            else:
                made = line
    if made is None:
        raise failed(f"the process that handles models ended with {process.returncode} and no answer")
    return made


def _lines(process: "subprocess.Popen[str]") -> Iterator[Progress | MadeModel | Unusable]:
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        try:
            yield _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue  # a library's own print
    errors = process.stderr.read()
    if process.wait() != 0:
        lines = [line for line in errors[-MAX_SAID:].splitlines() if last_words([line])]
        raise failed("the process that handles models failed:", *lines[-6:])


@contextmanager
def _process(arguments: Sequence[str]) -> "Iterator[subprocess.Popen[str]]":
    """Ends with the block, and with this process: Ctrl-C reaches `rlctl` alone, which then stops it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gleaner.rlctl.model_process", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, PARENT_VARIABLE: str(os.getpid()), "TOKENIZERS_PARALLELISM": "false"},
    )
    try:
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()
    except OSError as problem:
        raise failed(f"cannot talk to the process that handles models: {problem}") from problem


__all__ = [
    "CommandError",
    "MadeModel",
    "OnProgress",
    "Preparation",
    "ProcessLine",
    "Progress",
    "Unusable",
    "check",
    "make",
    "show",
]
